"""From values as they are stored to the type that a reader wants."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def cast_into(stored: np.ndarray, out: np.ndarray, scale: float | None = None) -> None:
    """Fill `out` with stored values, times their scale where they have one.

    Args:
        stored: of any stored type; bfloat16 as the type of ml_dtypes.
        out: of the same shape and any real type; any strides.
        scale: of int16 values, else None.
    """
    if scale is not None:
        np.multiply(stored, np.float32(scale), out=out, casting="unsafe")
    elif stored.dtype == ml_dtypes.bfloat16 and out.dtype == np.float32:
        # The upper half of a float32.
        np.left_shift(stored.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        out[...] = stored
