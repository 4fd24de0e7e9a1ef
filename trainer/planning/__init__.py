"""What a way to divide the work would cost, computed before anything runs: it knows numbers, never ranks."""
