"""Which images there are, of whom, with which label."""
