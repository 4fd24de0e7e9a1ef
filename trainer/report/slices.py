"""Pictures of volumes: three planes side by side, with the contours of label maps on them."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.image import imsave

# Contours: Okabe and Ito's sky blue and orange, which differ for everybody on grey.
TRUE_COLOUR = (0.337, 0.706, 0.914)
PREDICTED_COLOUR = (0.902, 0.624, 0.0)
_GAP = 3


def three_planes(
    volume: np.ndarray,
    voxel_size: tuple[float, float, float],
    at: Sequence[int] | None = None,
    least: int = 128,
    window: tuple[float, float] | None = None,
) -> np.ndarray:
    """Return slices of a volume (D, H, W, C) in RAS order, as one float picture (rows, columns) from 0 to 1.

    Sagittal (front to the right), coronal, axial (front up); in the last two the subject's right is on the
    right. Of the first contrast; voxels are drawn in their proportions.

    Args:
        volume: the voxels.
        voxel_size: in mm.
        at: the sagittal, coronal and axial slice; the middle ones where None.
        least: pixels of a plane's longer side, at least.
        window: intensities that are drawn black and white; `window_of` the volume where None.
    """
    image = np.nan_to_num(np.asarray(volume[..., 0], np.float64))
    low, high = window or window_of(volume)
    image = np.clip((image - low) / (high - low if high > low else 1.0), 0, 1)
    return _side_by_side(_planes(image, voxel_size, at, least))


def window_of(volume: np.ndarray) -> tuple[float, float]:
    """Return the 1st and the 99.5th percentile of the first contrast of a volume (D, H, W, C)."""
    low, high = np.percentile(np.nan_to_num(np.asarray(volume[..., 0], np.float32)), [1, 99.5])
    return float(low), float(high)


def with_contours(
    volume: np.ndarray,
    voxel_size: tuple[float, float, float],
    true: np.ndarray | None,
    predicted: np.ndarray,
    at: Sequence[int] | None = None,
    least: int = 256,
    window: tuple[float, float] | None = None,
) -> np.ndarray:
    """`three_planes` in colour, with the outlines of two label maps (D, H, W); float (rows, columns, 3)."""
    grey = three_planes(volume, voxel_size, at, least, window)
    picture = np.repeat(grey[..., None], 3, axis=2)
    for labels, colour in ((true, TRUE_COLOUR), (predicted, PREDICTED_COLOUR)):
        if labels is not None:
            edges = [_edges(plane) for plane in _planes(labels, voxel_size, at, least)]
            picture[_side_by_side(edges).astype(bool)] = colour
    return picture


def where_they_differ(true: np.ndarray, predicted: np.ndarray) -> tuple[int, int, int]:
    """Return the sagittal, coronal and axial slice in which most voxels of two label maps
    (D, H, W) differ.
    """
    wrong = true != predicted
    if not wrong.any():
        x, y, z = (side // 2 for side in true.shape)
        return x, y, z
    x, y, z = (int(wrong.sum(axis=others).argmax()) for others in ((1, 2), (0, 2), (0, 1)))
    return x, y, z


def png(picture: np.ndarray) -> bytes:
    """Return a picture from 0 to 1, grey (rows, columns) or in colour (rows, columns, 3), as PNG."""
    file = io.BytesIO()
    imsave(file, picture, cmap="gray", vmin=0, vmax=1, format="png")
    return file.getvalue()


def _planes(
    image: np.ndarray, voxel_size: tuple[float, float, float], at: Sequence[int] | None, least: int
) -> list[np.ndarray]:
    x, y, z = (side // 2 for side in image.shape) if at is None else at
    dx, dy, dz = voxel_size
    return [
        _scaled(image[x].T[::-1], dz, dy, least),
        _scaled(image[:, y].T[::-1], dz, dx, least),
        _scaled(image[:, :, z].T[::-1], dy, dx, least),
    ]


def _side_by_side(planes: Sequence[np.ndarray]) -> np.ndarray:
    height = max(len(plane) for plane in planes)
    padded = []
    for plane in planes:
        above = (height - len(plane)) // 2
        padded.append(np.pad(plane, ((above, height - len(plane) - above), (_GAP, _GAP))))
    return np.hstack(padded)


def _edges(labels: np.ndarray) -> np.ndarray:
    """The pixels of a plane that differ from one beside them, bool: lines two pixels wide."""
    edges = np.zeros(labels.shape, dtype=bool)
    down, across = labels[:-1] != labels[1:], labels[:, :-1] != labels[:, 1:]
    edges[:-1] |= down
    edges[1:] |= down
    edges[:, :-1] |= across
    edges[:, 1:] |= across
    return edges


def _scaled(plane: np.ndarray, row_mm: float, column_mm: float, least: int) -> np.ndarray:
    """Repeat rows and columns so that pixels are square and the longer side has at least `least` of them."""
    finest = min(row_mm, column_mm)
    zoom = max(1.0, least / max(plane.shape))
    rows = _places(plane.shape[0], zoom * row_mm / finest)
    columns = _places(plane.shape[1], zoom * column_mm / finest)
    return plane[rows][:, columns]


def _places(count: int, factor: float) -> np.ndarray:
    size = max(1, round(count * factor))
    return np.minimum((np.arange(size) + 0.5) * count / size, count - 1).astype(int)
