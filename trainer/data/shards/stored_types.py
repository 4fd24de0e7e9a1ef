"""Stored types of voxels, and rounding to them.

`int16` has a scale for each volume: value = scale * stored. The scale is a power of two, so that the values
are exact in float32, and rounding what was rounded before changes nothing.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import ml_dtypes
import numpy as np

from trainer.data.shards.casting import cast_into

StoredType = Literal["float16", "float32", "bfloat16", "int16"]
STORED_TYPES: tuple[str, ...] = get_args(StoredType)

_LARGEST = 32767
# The exponent of the smallest normal float32.
_SMALLEST = -126


def stored_dtype(name: str | np.dtype) -> np.dtype:
    """Return the NumPy type of a stored type's name, little-endian; `bfloat16` is that of ml_dtypes.

    Raises:
        TypeError: there is no such type.
    """
    return np.dtype(ml_dtypes.bfloat16) if str(name) == "bfloat16" else np.dtype(name).newbyteorder("<")


def hdf5_dtype(dtype: np.dtype) -> np.dtype:
    """Return the type in HDF5: bfloat16, which it does not know, as the 16 bits of each value."""
    return np.dtype("<u2") if dtype == ml_dtypes.bfloat16 else dtype


def read_dtype(dtype: np.dtype, *, scaled: bool) -> np.dtype:
    """Return the type for a reader: float32 where NumPy lacks the stored type or values have a scale."""
    return np.dtype("<f4") if scaled or dtype == ml_dtypes.bfloat16 else dtype


def pack(values: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, float | None]:
    """Return values as they are stored, and their scale (for int16, else None).

    Args:
        values: of the stored type, or float32 for bfloat16 and int16.
        dtype: the stored type.

    Raises:
        ValueError: values of another type, or not finite ones for int16.
    """
    if values.dtype == dtype:
        return values, (1.0 if dtype == np.int16 else None)
    if values.dtype != np.float32 or dtype not in (np.int16, ml_dtypes.bfloat16):
        raise ValueError(f"{values.dtype} is not stored as {dtype}")
    if dtype != np.int16:
        return values.astype(dtype), None
    scale = _scale(values)
    return np.rint(values / np.float32(scale)).astype(dtype), scale


def rounded(values: np.ndarray, name: str) -> np.ndarray:
    """Return float32 values as they read back after being stored as `name`; `pack` then loses nothing more.

    Returns:
        of type float16 or float32 where that is the stored type, else float32.
    """
    dtype = stored_dtype(name)
    if dtype in (np.float16, np.float32):
        return values.astype(dtype)
    stored, scale = pack(values.astype(np.float32), dtype)
    out: np.ndarray = np.empty(values.shape, np.float32)
    cast_into(stored, out, scale)
    return out


def _scale(values: np.ndarray) -> float:
    """Return the smallest power of two that brings the values to -32767 ... 32767; 1 where all are 0."""
    largest = float(np.abs(values).max(initial=0.0))
    if not math.isfinite(largest):
        raise ValueError("values that are not finite cannot be scaled")
    if largest == 0:
        return 1.0
    mantissa, exponent = math.frexp(largest / _LARGEST)
    return math.ldexp(1.0, max(_SMALLEST, exponent - (mantissa == 0.5)))
