"""Draw the three mid-slices of a volume."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from PIL import Image as Picture

# Edge of one slice in the sheet, in pixels: small enough that a thousand images stay within 30 MB.
EDGE = 112


# Okabe and Ito's colours, which most colour-blind people tell apart; classes take them in turn.
_COLOURS = np.array(
    [(230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (213, 94, 0), (204, 121, 167)], np.uint8
)


def mid_slices(data: np.ndarray, voxel: tuple[float, float, float], low: float, high: float) -> np.ndarray:
    """Return the sagittal, coronal and axial mid-slice side by side, (EDGE, 3 EDGE) uint8 in grey.

    Args:
        data: (X, Y, Z) float, axes to the right, front and top.
        voxel: size in mm, so that slices keep their proportions.
        low: value shown black.
        high: value shown white.
    """
    return _side_by_side(data, voxel, lambda plane: _grey(plane, low, high), Picture.Resampling.BILINEAR)


def with_borders(sheet: np.ndarray, label_map: np.ndarray) -> np.ndarray:
    """Return a sheet of `mid_slices` with the borders of its label map, (EDGE, 3 EDGE, 3) uint8."""
    labels = _side_by_side(label_map, (1.0, 1.0, 1.0), np.ascontiguousarray, Picture.Resampling.NEAREST)
    border = np.zeros(labels.shape, bool)
    border[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    border[1:] |= labels[1:] != labels[:-1]
    # A border belongs to the class on either side of it that is not the background.
    inside = np.maximum(labels, np.maximum(np.roll(labels, 1, 0), np.roll(labels, 1, 1)))
    coloured = np.repeat(sheet[..., None], 3, axis=2)
    coloured[border] = _COLOURS[(inside[border].astype(int) - 1) % len(_COLOURS)]
    return coloured


def png(sheet: np.ndarray) -> bytes:
    """Encode a sheet, grey or in colour, as a PNG file."""
    file = io.BytesIO()
    Picture.fromarray(sheet).save(file, "PNG", optimize=True)
    return file.getvalue()


def _side_by_side(
    data: np.ndarray,
    voxel: tuple[float, float, float],
    shade: Callable[[np.ndarray], np.ndarray],
    resampling: Picture.Resampling,
) -> np.ndarray:
    sheet = np.zeros((EDGE, 3 * EDGE), np.uint8)
    x, y, z = (length // 2 for length in data.shape)
    # Rows run downwards: the second axis is flipped so that top and front are up. Left is left.
    planes = (
        (data[x], voxel[1], voxel[2]),
        (data[:, y], voxel[0], voxel[2]),
        (data[:, :, z], voxel[0], voxel[1]),
    )
    scale = EDGE / max(float(length * size) for length, size in zip(data.shape, voxel, strict=True))
    for number, (plane, across, up) in enumerate(planes):
        width = max(1, min(EDGE, round(plane.shape[0] * across * scale)))
        height = max(1, min(EDGE, round(plane.shape[1] * up * scale)))
        picture = Picture.fromarray(shade(plane.T[::-1])).resize((width, height), resampling)
        left, top = number * EDGE + (EDGE - width) // 2, (EDGE - height) // 2
        sheet[top : top + height, left : left + width] = np.asarray(picture)
    return sheet


def _grey(plane: np.ndarray, low: float, high: float) -> np.ndarray:
    finite = np.nan_to_num(plane.astype(np.float32), nan=low, posinf=high, neginf=low)
    span = max(high - low, float(np.finfo(np.float32).tiny))
    # 64 levels: the eye sees no more here, and the files are a third smaller.
    return (np.clip((finite - low) / span, 0, 1) * 63).astype(np.uint8) * 4
