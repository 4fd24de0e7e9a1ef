"""float16 to float32 by `halves.c`, where a C compiler was there when the package was installed.

One pass over the memory and one call per volume, outside Python's lock: docs/decisions/0007-hot-path.md
has the figures. Without a compiler, `casting.py` does the same with NumPy, in twice the time.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
from pathlib import Path

import numpy as np


def _library() -> ctypes.CDLL | None:
    for ending in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name("_halves" + ending)
        if path.is_file():
            library = ctypes.CDLL(str(path))
            size = ctypes.c_size_t
            array = (ctypes.c_void_p, size, size)
            library.cingulum_raise_halves.argtypes = (*array, *array, size, size, size)
            library.cingulum_raise_halves.restype = None
            return library
    return None


LIBRARY = _library()


def raise_into(stored: np.ndarray, out: np.ndarray) -> bool:
    """Fill `out` with the values of `stored`; False, and nothing done, where this cannot be done here.

    Args:
        stored: float16 of at most 4 axes, (D, H, W, C) or fewer.
        out: float32 of the same shape.

    That is without the compiled library, and where the values of an array's rows (all axes from the third
    on) do not lie side by side.
    """
    if LIBRARY is None or not stored.size:
        return False
    shape = stored.shape if stored.ndim > 2 else (1,) * (3 - stored.ndim) + stored.shape
    one, other = stored.reshape(shape), out.reshape(shape)
    steps = [_steps(array) for array in (one, other)]
    if steps[0] is None or steps[1] is None:
        return False
    values = stored.size // (shape[0] * shape[1])
    LIBRARY.cingulum_raise_halves(
        one.ctypes.data, *steps[0], other.ctypes.data, *steps[1], shape[0], shape[1], values
    )
    return True


def _steps(array: np.ndarray) -> tuple[int, int] | None:
    """From plane to plane and from row to row, in values; None where a row's values do not lie together."""
    plane, row, *within = array.strides
    expected = array.itemsize
    for length, stride in zip(reversed(array.shape[2:]), reversed(within), strict=True):
        if length > 1 and stride != expected:
            return None
        expected *= length
    if min(plane, row) < 0 or plane % array.itemsize or row % array.itemsize:
        return None
    return plane // array.itemsize, row // array.itemsize
