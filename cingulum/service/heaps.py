"""The C library's heaps: few, and what is free is given back, so that a service of weeks does not grow."""

from __future__ import annotations

import ctypes
import os

# Numbers of glibc's mallopt (man 3 mallopt), the variable by which a site sets the same, and our value.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_OPTIONS = (
    # Else as many as eight for each core, of which each keeps what it once needed.
    (_ARENA_MAX, "MALLOC_ARENA_MAX", 2),
    # Else both grow with the largest block that was ever freed, and larger ones are not given back.
    (_MMAP_THRESHOLD, "MALLOC_MMAP_THRESHOLD_", 2**18),
    (_TRIM_THRESHOLD, "MALLOC_TRIM_THRESHOLD_", 2**18),
)


def keep_few() -> bool:
    """Bound the heaps; before threads start. Returns whether all was set: elsewhere than in glibc nothing is.

    What a site has set by variables of its own stays.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    done = [mallopt(option, value) for option, name, value in _OPTIONS if name not in os.environ]
    return all(one == 1 for one in done)
