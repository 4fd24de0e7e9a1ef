"""float16 to float32 by `halves.c` and `blosc_halves.c`, where a C compiler was there at installation.

One pass over the memory and one call per volume, outside Python's lock: docs/decisions/0004-loader.md has the
reasons. Without a compiler, `codecs.py` and `casting.py` do the same with numcodecs and NumPy, and need more
time.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
from pathlib import Path

import numpy as np
from numcodecs import blosc

from trainer.data.shards.thread_memory import scratch


def _library() -> ctypes.CDLL | None:
    for ending in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name("_halves" + ending)
        if path.is_file():
            return opened(path)
    return None


def opened(path: Path) -> ctypes.CDLL:
    """Return the compiled library, with the types of its functions declared."""
    library = ctypes.CDLL(str(path))
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    box = (pointer, size, size)
    library.cingulum_raise_halves.argtypes = (*box, *box, size, size, size)
    library.cingulum_raise_halves.restype = None
    library.cingulum_halves_block.argtypes = (pointer, size, size)
    library.cingulum_halves_block.restype = size
    library.cingulum_decode_halves.argtypes = (pointer, size, pointer, size, pointer, pointer)
    library.cingulum_decode_halves.restype = ctypes.c_int
    return library


LIBRARY = _library()


def widen_into(stored: np.ndarray, out: np.ndarray) -> bool:
    """Fill `out` with the values of `stored`; return False, without effect, where this is not supported here.

    Args:
        stored: float16 of at most 4 axes, (D, H, W, C) or fewer.
        out: float32 of the same shape.

    That is without the compiled library, and where the values of an array's rows (all axes from the third
    on) do not lie side by side.
    """
    if LIBRARY is None or not stored.size:
        return False
    shape = stored.shape if stored.ndim > 2 else (1,) * (3 - stored.ndim) + stored.shape
    source, target = stored.reshape(shape), out.reshape(shape)
    steps = [_steps(array) for array in (source, target)]
    if steps[0] is None or steps[1] is None:
        return False
    values = stored.size // (shape[0] * shape[1])
    LIBRARY.cingulum_raise_halves(
        source.ctypes.data, *steps[0], target.ctypes.data, *steps[1], shape[0], shape[1], values
    )
    return True


def decode_into(chunk: np.ndarray, out: np.ndarray) -> bool:
    """Fill `out` with a chunk of `blosc-lz4` with float16 values; return False where that is not supported.

    Args:
        chunk: uint8 (n,), as it is stored; C-contiguous.
        out: float32, of as many values as the chunk has; undefined after False.

    That is without the compiled library, where `out` is not C-contiguous, and for a chunk that is damaged or
    that Blosc has stored in another way: `codecs.decode_into` knows what to say of it.
    """
    lz4 = _lz4()
    if LIBRARY is None or lz4 is None or not out.flags.c_contiguous:
        return False
    stored = chunk.ctypes.data, chunk.size
    block = LIBRARY.cingulum_halves_block(*stored, out.size)
    if not block:
        return False
    memory = scratch("block", block)
    return bool(LIBRARY.cingulum_decode_halves(*stored, out.ctypes.data, out.size, memory.ctypes.data, lz4))


@functools.cache
def _lz4() -> int | None:
    """Return the address of LZ4's own function in numcodecs; None where a build of it does not export it."""
    try:
        found = ctypes.CDLL(blosc.__file__).LZ4_decompress_safe
    except (OSError, AttributeError):
        return None
    return ctypes.cast(found, ctypes.c_void_p).value


def _steps(array: np.ndarray) -> tuple[int, int] | None:
    """Return strides from plane to plane and row to row, in values; None where rows are not contiguous."""
    plane, row, *within = array.strides
    expected = array.itemsize
    for length, stride in zip(reversed(array.shape[2:]), reversed(within), strict=True):
        if length > 1 and stride != expected:
            return None
        expected *= length
    if min(plane, row) < 0 or plane % array.itemsize or row % array.itemsize:
        return None
    return plane // array.itemsize, row // array.itemsize
