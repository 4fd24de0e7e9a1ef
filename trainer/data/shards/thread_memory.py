"""Memory reused by a reading thread: fresh memory costs as much time as reading into it."""

from __future__ import annotations

import contextlib
import mmap
import sys
import threading
from math import prod

import numpy as np

# Tensors begin at a multiple of this: tf.data copies an array that does not, DLPack takes it as it is.
ALIGNMENT = 64
# Bytes of a huge page, where the system has them.
HUGE_PAGE = 2 << 20
# Advice of Linux that Python's `mmap` has no name for.
MADV_WIPEONFORK = 18

_kept = threading.local()


def aligned(shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
    """Return an uninitialised C-contiguous array that begins at a multiple of 64 bytes."""
    dtype = np.dtype(dtype)
    nbytes = prod(shape) * dtype.itemsize
    raw: np.ndarray = np.empty(nbytes + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    return raw[first : first + nbytes].view(dtype).reshape(shape)


def on_huge_pages(nbytes: int) -> np.ndarray:
    """Return zeros, uint8 (n,) with n at least `nbytes`, on huge pages where the system gives them.

    To a disk such memory is one piece, and not one of every 4 KiB. A forked child finds zeros in it: were its
    pages shared until one of both writes, what a disk writes at that moment could go to the other's.
    """
    nbytes += -nbytes % HUGE_PAGE
    # Pages that are never touched take no memory.
    pages = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        for advice in (mmap.MADV_HUGEPAGE, MADV_WIPEONFORK):
            # A kernel that lacks one of both refuses, and the memory is as any other.
            with contextlib.suppress(OSError):
                pages.madvise(advice)
    raw = np.frombuffer(pages, np.uint8)
    first = -raw.ctypes.data % HUGE_PAGE
    return raw[first : first + nbytes]


def scratch(purpose: str, nbytes: int, *, huge_pages: bool = False) -> np.ndarray:
    """Return memory of the calling thread, uint8 (nbytes,), until it calls again with the same purpose.

    It grows to the most that was asked for, and is freed when the thread ends. A purpose is on huge pages or
    not, every time.
    """
    memory: np.ndarray | None = getattr(_kept, purpose, None)
    if memory is None or memory.size < nbytes:
        memory = on_huge_pages(nbytes) if huge_pages else aligned((nbytes,), np.uint8)
        setattr(_kept, purpose, memory)
    return memory[:nbytes]
