"""Cast stored values to the type that a reader wants, at memory speed.

NumPy converts float16 one value at a time. `halves.py` does it compiled, where there was a compiler. Where
there was none, the bits are moved with whole-array operations, which run on many values at once, block by
block, so that a block stays in a core's cache between them. The results are the same, bit for bit;
docs/results/loader.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np

from trainer.data.shards import halves

# Values in a block: 512 KiB of float32.
BLOCK = 1 << 17

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# A float16 is a sign, 5 bits of exponent and 10 of mantissa; a float32 has 8 and 23. Widened with its sign
# and moved left by 13, the mantissa is in place, and the bits between sign and exponent are cleared.
_MANTISSA_SHIFT = 13
_IN_PLACE = np.int32(0x8FFFE000 - (1 << 32))
# Their exponents count from 15 and from 127. As a product this is right for subnormal numbers too.
_RISE = np.float32(2.0 ** (127 - 15))
# The smallest bits that are infinite or not a number, without the sign and with it.
_NOT_FINITE, _NOT_FINITE_NEGATIVE = 0x7C00, 0xFC00
# The smallest float16, before it is raised.
_TINY = np.array([1 << _MANTISSA_SHIFT], np.int32).view(np.float32)


def cast_into(
    stored: np.ndarray,
    out: np.ndarray,
    scale: float | None = None,
    *,
    finite: Callable[[], bool] = lambda: False,
) -> None:
    """Fill `out` with stored values, times their scale where they have one.

    Args:
        stored: of any stored type; bfloat16 as the type of ml_dtypes.
        out: of the same shape and any real type; any strides.
        scale: of int16 values, else None. Each value times it is rounded to float32 once.
        finite: whether it is known that all float16 values are finite, see `is_finite`. Asked only where it
            matters, which is without the compiled cast: there, finding out takes a sixth of the time.

    Raises:
        ValueError: the shapes differ.
    """
    if stored.shape != out.shape:
        raise ValueError(f"an array of {out.shape} for values of {stored.shape}")
    if out.dtype != np.float32 or not stored.ndim:
        out[...] = stored if scale is None else stored.astype(np.float32) * np.float32(scale)
    elif scale is not None:
        for block, target in _blocks(stored, out):
            target[...] = block
            np.multiply(target, np.float32(scale), out=target)
    elif stored.dtype == np.float16:
        if not halves.widen_into(stored, out):
            _widen_halves(stored.view(np.int16), out, finite())
    elif stored.dtype == _BFLOAT16:
        # The upper half of a float32.
        for block, bits in _blocks(stored.view(np.uint16), out.view(np.uint32)):
            bits[...] = block
            np.left_shift(bits, 16, out=bits)
    else:
        out[...] = stored


def _widen_halves(stored: np.ndarray, out: np.ndarray, finite: bool) -> None:
    # TensorFlow sets its threads to take subnormal numbers for 0, and threads inherit it.
    exact = bool(np.multiply(_TINY, _RISE)[0])
    for block, target in _blocks(stored, out):
        if exact and (finite or _are_finite(block)):
            bits = target.view(np.int32)
            bits[...] = block
            np.left_shift(bits, _MANTISSA_SHIFT, out=bits)
            np.bitwise_and(bits, _IN_PLACE, out=bits)
            np.multiply(target, _RISE, out=target)
        else:
            target[...] = block.view(np.float16)


def is_finite(stored: np.ndarray) -> bool:
    """Return whether all values of a float16 array are finite."""
    bits = stored.view(np.int16)
    return all(_are_finite(block) for block, _ in _blocks(bits, bits))


def _are_finite(bits: np.ndarray) -> bool:
    return not bits.size or bool(
        bits.max() < _NOT_FINITE and bits.view(np.uint16).max() < _NOT_FINITE_NEGATIVE
    )


def _blocks(stored: np.ndarray, out: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield both arrays in slabs along their first axis, of about `BLOCK` values each."""
    size = max(1, BLOCK * len(stored) // max(1, stored.size))
    for first in range(0, len(stored), size):
        yield stored[first : first + size], out[first : first + size]
