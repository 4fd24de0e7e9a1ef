"""How many cases a test draws at random: a third in the gate, all of them in `make test-deep`."""

from __future__ import annotations

import os


def draws(count: int) -> int:
    """Return `count` where CINGULUM_DEEP is set, as `make test-deep` does; a third of it elsewhere."""
    return count if os.environ.get("CINGULUM_DEEP") else count // 3
