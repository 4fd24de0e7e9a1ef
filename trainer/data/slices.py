"""Pictures of the three mid-slices of a volume, as PNG."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image as Picture

# Edge of one slice in the sheet, in pixels: small enough that a thousand images stay within 30 MB.
EDGE = 112


def mid_slices(data: np.ndarray, voxel: tuple[float, float, float], low: float, high: float) -> bytes:
    """Sagittal, coronal and axial mid-slice side by side, as a grey PNG of 3 EDGE x EDGE pixels.

    Args:
        data: (X, Y, Z) float, axes to the right, front and top.
        voxel: size in mm, so that slices keep their proportions.
        low: value shown black.
        high: value shown white.
    """
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
        picture = Picture.fromarray(_grey(plane.T[::-1], low, high)).resize(
            (width, height), Picture.Resampling.BILINEAR
        )
        left, top = number * EDGE + (EDGE - width) // 2, (EDGE - height) // 2
        sheet[top : top + height, left : left + width] = np.asarray(picture)
    file = io.BytesIO()
    Picture.fromarray(sheet).save(file, "PNG", optimize=True)
    return file.getvalue()


def _grey(plane: np.ndarray, low: float, high: float) -> np.ndarray:
    finite = np.nan_to_num(plane.astype(np.float32), nan=low, posinf=high, neginf=low)
    span = max(high - low, float(np.finfo(np.float32).tiny))
    # 64 levels: the eye sees no more here, and the files are a third smaller.
    return (np.clip((finite - low) / span, 0, 1) * 63).astype(np.uint8) * 4
