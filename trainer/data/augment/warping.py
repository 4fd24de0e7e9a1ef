"""Resample a volume and its label map: affine and elastic changes together, once.

Volumes linearly, label maps to the nearest voxel. What comes from outside is the background: the least value
of the channel, which `trainer.data.images.preprocess` gives to the air around a head (its `clip_low`,
standardised), and class 0 of the label map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trainer.data.augment import elastic as splines
from trainer.data.augment.affine import Affine
from trainer.data.augment.change import VolumeGrid
from trainer.data.augment.elastic import Elastic

# Voxels that are resampled at a time: few enough for their coordinates to stay in a core's cache.
_AT_A_TIME = 32768


def warp(
    channels: Sequence[np.ndarray],
    label_map: np.ndarray | None,
    grid: VolumeGrid,
    affine: Affine | None,
    elastic: Elastic | None,
    backgrounds: Sequence[float],
) -> tuple[list[np.ndarray], np.ndarray | None]:
    """Resample channels and a label map on one grid.

    Args:
        channels: each float32 (D, H, W).
        label_map: of any integer type (D, H, W), or None.
        grid: of all of them.
        affine: what moves as a whole, or None.
        elastic: what is displaced before, or None.
        backgrounds: of each channel, for what comes from outside.

    Returns:
        New arrays of the same shapes and types. Half a voxel beyond an edge is half background.
    """
    padded = [_padded(channel, background) for channel, background in zip(channels, backgrounds, strict=True)]
    made = [np.empty(grid.shape, np.float32) for _ in channels]
    labels = None if label_map is None else _padded(label_map, 0)
    moved = None if label_map is None else np.empty(grid.shape, label_map.dtype)
    strides = ((grid.shape[1] + 3) * (grid.shape[2] + 3), grid.shape[2] + 3)
    for part, places in _places(grid, affine or Affine(), elastic):
        shape = made[0][part].shape
        if labels is not None and moved is not None:
            near = (places + np.float32(0.5)).astype(np.intp)
            index = near[0] * strides[0] + near[1] * strides[1] + near[2]
            moved[part] = labels.take(index, mode="clip").reshape(shape)
        corner = places.astype(np.intp)
        places -= corner
        index = corner[0] * strides[0] + corner[1] * strides[1] + corner[2]
        for source, target in zip(padded, made, strict=True):
            target[part] = _linear(source, index, places, strides).reshape(shape)
    return made, moved


def _padded(volume: np.ndarray, value: float) -> np.ndarray:
    """Pad with one voxel of background before, and two behind each axis; flat."""
    padded = np.full([size + 3 for size in volume.shape], value, volume.dtype)
    padded[1:-2, 1:-2, 1:-2] = volume
    return padded.ravel()


def _places(grid: VolumeGrid, affine: Affine, elastic: Elastic | None) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield slabs of the result and their sampling points in the padded volume, float32 (3, voxels)."""
    matrix, offset = affine.sampling(grid)
    depth, height, width = grid.shape
    rows, columns = np.arange(height)[:, None], np.arange(width)
    plane = np.stack([m[1] * rows + m[2] * columns + b + 1 for m, b in zip(matrix, offset, strict=True)])
    plane = plane.astype(np.float32)
    last = np.array([size + 1 for size in grid.shape], np.float32)[:, None]
    bent = None
    if elastic is not None:
        # The displacement comes first: the volume at A (o + u) + b. A is applied to the few control points.
        voxels = np.einsum("ab,b...->a...", matrix / grid.step, elastic.coefficients).astype(np.float32)
        bent = splines.planes(voxels, grid, elastic.spacing)
        first, weights = splines.basis(depth, grid.voxel_mm[0], elastic.spacing)
    thick = max(1, _AT_A_TIME // (height * width))
    for begin in range(0, depth, thick):
        slab = range(begin, min(begin + thick, depth))
        places = np.empty((3, len(slab), height, width), np.float32)
        for here, d in enumerate(slab):
            np.add(plane, (matrix[:, 0] * d).astype(np.float32)[:, None, None], out=places[:, here])
            if bent is not None:
                for tap in range(4):
                    places[:, here] += bent[:, first[d] + tap] * weights[d, tap]
        flat = places.reshape(3, -1)
        np.clip(flat, np.float32(0), last, out=flat)
        yield slice(begin, slab.stop), flat


def _linear(source: np.ndarray, index: np.ndarray, share: np.ndarray, strides: tuple[int, int]) -> np.ndarray:
    """Interpolate linearly over the eight voxels from `index` on; `share` (3, voxels) is the position."""
    deep, high = strides

    def along_width(offset: int) -> np.ndarray:
        return _between(
            source[offset:].take(index, mode="clip"), source[offset + 1 :].take(index, mode="clip"), share[2]
        )

    near = _between(along_width(0), along_width(high), share[1])
    far = _between(along_width(deep), along_width(deep + high), share[1])
    return _between(near, far, share[0])


def _between(near: np.ndarray, far: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return near + share (far - near), in the memory of `far`."""
    far -= near
    far *= share
    far += near
    return far
