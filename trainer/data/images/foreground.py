"""Foreground (head or brain) of an image: a mask, and the box about it."""

from __future__ import annotations

import numpy as np
import scipy

# Bins of the histogram that the threshold is chosen on (256: Otsu's own example and the usual choice).
_BINS = 256


def otsu(values: np.ndarray) -> float:
    """Return the threshold that best separates two groups of values (N. Otsu, IEEE Trans. SMC 9(1), 1979).

    Values above their 99.5th percentile count as that percentile, so that a few bright voxels do not decide.
    """
    low, high = (float(v) for v in np.percentile(values, [0.0, 99.5]))
    if high <= low:
        return low
    counts, edges = np.histogram(np.minimum(values, high), bins=_BINS, range=(low, high))
    centres = (edges[:-1] + edges[1:]) / 2
    below = np.cumsum(counts)[:-1].astype(np.float64)
    above = counts.sum() - below
    moment = np.cumsum(counts * centres)
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = moment[:-1] / below - (moment[-1] - moment[:-1]) / above
        between = np.nan_to_num(below * above * difference**2)
    # Empty bins between the groups tie: take the middle, which is furthest from both.
    best = np.flatnonzero(between == between.max())
    return float(edges[1 + (best[0] + best[-1]) // 2])


def mask(data: np.ndarray) -> np.ndarray:
    """Return the largest connected part of (X, Y, Z) brighter than Otsu's threshold, as bool (X, Y, Z).

    All False where nothing stands out.
    """
    bright = data > otsu(data)
    parts, count = scipy.ndimage.label(bright)
    if count < 2:
        return bright
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return parts == int(sizes.argmax())


def box(foreground: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Return first and last index + 1 of the True voxels along each axis."""
    bounds = []
    for axis in range(foreground.ndim):
        others = tuple(a for a in range(foreground.ndim) if a != axis)
        occupied = np.flatnonzero(foreground.any(axis=others))
        bounds.append((int(occupied[0]), int(occupied[-1]) + 1))
    return tuple(bounds)


def crop_start(bounds: tuple[tuple[int, int], ...], size: int) -> tuple[int, int, int]:
    """Return where the cube of `size` voxels about the foreground of a RAS+ image begins, in voxels.

    The cube is centred on the foreground's box. Only upwards it is not when the foreground is taller than the
    cube: then it hangs from the top, because what a tall head image has too much of is neck.
    """
    starts = [(first + last - size) // 2 for first, last in bounds]
    first, last = bounds[2]
    if last - first > size:
        starts[2] = last - size
    return starts[0], starts[1], starts[2]


def crop(data: np.ndarray, start: tuple[int, int, int], size: int, fill: float) -> np.ndarray:
    """Return the cube (size, size, size) that begins at `start`, with `fill` outside the data."""
    cube = np.full((size,) * 3, fill, dtype=data.dtype)
    source, target = [], []
    for first, length in zip(start, data.shape, strict=True):
        low, high = max(first, 0), min(first + size, length)
        source.append(slice(low, max(low, high)))
        target.append(slice(low - first, max(low, high) - first))
    cube[tuple(target)] = data[tuple(source)]
    return cube
