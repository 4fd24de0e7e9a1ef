"""Memory that a reading thread uses again and again: fresh memory costs as much time as reading into it."""

from __future__ import annotations

import threading
from math import prod

import numpy as np

# TensorFlow takes an array over without a copy where it begins at a multiple of this.
ALIGNMENT = 64

_kept = threading.local()


def aligned(shape: tuple[int, ...], dtype: np.dtype | type, alignment: int = ALIGNMENT) -> np.ndarray:
    """An array of this shape and type, C-contiguous, not filled, that begins at a multiple of `alignment`."""
    dtype = np.dtype(dtype)
    nbytes = prod(shape) * dtype.itemsize
    raw: np.ndarray = np.empty(nbytes + alignment, np.uint8)
    first = -raw.ctypes.data % alignment
    return raw[first : first + nbytes].view(dtype).reshape(shape)


def scratch(purpose: str, nbytes: int, alignment: int = ALIGNMENT) -> np.ndarray:
    """Memory of the calling thread, uint8 (nbytes,), until it asks for the same purpose again.

    It grows to the most that was asked for, and is freed when the thread ends. A purpose has one alignment.
    """
    memory: np.ndarray | None = getattr(_kept, purpose, None)
    if memory is None or memory.size < nbytes:
        memory = aligned((nbytes,), np.uint8, alignment)
        setattr(_kept, purpose, memory)
    return memory[:nbytes]
