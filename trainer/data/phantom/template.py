"""The average brain that every phantom is made from, and the regions that age and disease change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from trainer.data.images.linear import average_brain
from trainer.data.images.linear.average_brain import FIELD_OF_VIEW

REGIONS = ("ventricles", "medial_temporal", "temporoparietal", "frontal", "everywhere")
"""Where tissue is lost, in the order of the first axis of `Template.regions`.

Everywhere is all cortex and the ventricles."""

_MEDIAL_TEMPORAL_MM = ((26, -20, -16), (24, -5, -22), (30, -35, -8))
_WORKING_SIZE = 106  # 2 mm: fine enough for fields smoothed over 3 mm, and an eighth of the work of 1 mm
_TISSUE_SMOOTHING_MM = 3.0
_VENTRICLE_WALL = 4.0


@dataclass(frozen=True)
class Template:
    """The average brain on a grid of `size`^3 voxels, RAS; all arrays float32.

    Attributes:
        size: voxels along each edge.
        affine: (4, 4) float64, voxel to mm.
        mask: (D, H, W) share of each voxel inside the skull, 0 to 1.
        grey, white, detail: (D, H, W) cubic spline coefficients of the tissue shares, and of what these do
            not explain of the T1 image.
        intensity: T1 intensity of pure grey matter, white matter, CSF; white matter is the unit of both.
        pull: (3, D, H, W) unit-free vectors, length below 1, from tissue toward the nearest CSF or the skull.
        regions: (len(REGIONS), D, H, W) weight of each region, 0 to 1.
        box: the part of the grid outside of which `regions` is 0.
    """

    size: int
    affine: np.ndarray
    mask: np.ndarray
    grey: np.ndarray
    white: np.ndarray
    detail: np.ndarray
    intensity: tuple[float, float, float]
    pull: np.ndarray
    regions: np.ndarray
    box: tuple[slice, slice, slice]

    @property
    def voxel(self) -> float:
        """Return the edge of a voxel in mm."""
        return FIELD_OF_VIEW / self.size


def build(size: int) -> Template:
    """Return the average brain on a grid of `size`^3 voxels.

    Raises:
        CingulumError: nilearn, or its template, is not installed.
    """
    t1, grey, white = (average_brain.full_resolution(kind) for kind in ("t1", "gm", "wm"))
    mask = average_brain.inside(t1, grey, white)
    small = {"t1": _halve(t1), "grey": _halve(grey), "white": _halve(white), "mask": _halve(mask)}
    source = {"t1": t1, "grey": grey, "white": white, "mask": mask} if size > _WORKING_SIZE else small
    on_grid = {name: average_brain.on_grid(volume, size) for name, volume in source.items()}
    intensity, detail = _explain(on_grid["t1"], on_grid["grey"], on_grid["white"], on_grid["mask"])

    pull = _pull(small["grey"] + small["white"])
    regions = _regions(small["grey"], small["white"], small["mask"])
    regions_on_grid = np.stack([average_brain.on_grid(region, size) for region in regions])
    return Template(
        size=size,
        affine=average_brain.affine_of(size),
        mask=on_grid["mask"],
        grey=_spline(on_grid["grey"]),
        white=_spline(on_grid["white"]),
        detail=_spline(detail),
        intensity=intensity,
        pull=np.stack([average_brain.on_grid(component, size) for component in pull]),
        regions=regions_on_grid,
        box=_box(regions_on_grid.max(axis=0) > 0),
    )


def _halve(volume: np.ndarray) -> np.ndarray:
    n = volume.shape[0] // 2
    return volume.reshape(n, 2, n, 2, n, 2).mean(axis=(1, 3, 5), dtype=np.float32)


def _spline(volume: np.ndarray) -> np.ndarray:
    return ndimage.spline_filter(volume, order=3, output=np.float32, mode="mirror")


def _box(inside: np.ndarray) -> tuple[slice, slice, slice]:
    found = ndimage.find_objects(inside.astype(np.int8))[0]
    # One voxel of margin, so that interpolation at the edge meets the zeros outside.
    x, y, z = (slice(max(0, s.start - 1), s.stop + 1) for s in found)
    return x, y, z


def _explain(
    t1: np.ndarray, grey: np.ndarray, white: np.ndarray, mask: np.ndarray
) -> tuple[tuple[float, float, float], np.ndarray]:
    """Fit the T1 image by the tissue shares; return three intensities and the rest, white matter as unit."""
    csf = np.clip(mask - grey - white, 0, 1)
    shares = np.stack([share[mask > 0.99] for share in (grey, white, csf)], axis=1).astype(np.float64)
    fitted, *_ = np.linalg.lstsq(shares, t1[mask > 0.99].astype(np.float64), rcond=None)
    # Rounded, so that the last bits of the solver never reach an image.
    grey_i, white_i, csf_i = (round(float(v), 4) for v in fitted)
    rest = (t1 - (grey_i * grey + white_i * white + csf_i * csf)) * mask / white_i
    return (grey_i / white_i, 1.0, csf_i / white_i), rest.astype(np.float32)


def _pull(tissue: np.ndarray) -> np.ndarray:
    """Return (3, n, n, n) vectors out of tissue, of nearly unit length at its edge."""
    smooth = ndimage.gaussian_filter(tissue, _TISSUE_SMOOTHING_MM / (FIELD_OF_VIEW / tissue.shape[0]))
    gradient = -np.stack(np.gradient(smooth)).astype(np.float32)
    length = np.sqrt((gradient**2).sum(axis=0))
    typical = np.float32(np.percentile(length[tissue > 0.1], 60))
    return gradient / np.sqrt(length**2 + typical**2)


def _regions(grey: np.ndarray, white: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return (len(REGIONS), n, n, n) weights on the working grid."""
    voxel = FIELD_OF_VIEW / grey.shape[0]
    affine = average_brain.affine_of(grey.shape[0])
    x, y, z = (
        (np.arange(n) * voxel + affine[axis, 3]).reshape([-1 if a == axis else 1 for a in range(3)])
        for axis, n in enumerate(grey.shape)
    )
    depth = ndimage.distance_transform_edt(mask > 0.5) * voxel
    csf = np.clip(mask - grey - white, 0, 1)
    inner = (np.abs(x) < 36) & (y > -55) & (y < 40) & (z > -8) & (z < 30)
    ventricles = ndimage.gaussian_filter(((csf > 0.4) & (depth > 26) & inner).astype(np.float32), 5.0 / voxel)
    ventricles = np.minimum(
        ventricles / ventricles.max() * _VENTRICLE_WALL, 1
    )  # full weight beyond their walls

    medial_temporal = np.zeros(grey.shape, np.float32)
    for cx, cy, cz in _MEDIAL_TEMPORAL_MM:
        medial_temporal += np.exp(-((np.abs(x) - cx) ** 2 + (y - cy) ** 2 + (z - cz) ** 2) / (2 * 10.0**2))

    hindbrain = ((z < -16 + 0.25 * (-40 - y)) & (y < -38)) | ((np.abs(x) < 20) & (y < -8) & (z < -8))
    shell = ndimage.gaussian_filter(
        ((depth < 20) & (grey > 0.25) & ~hindbrain).astype(np.float32), 4.0 / voxel
    )
    frontal = shell * _rising(y, 0, 12)
    temporoparietal = shell * (1 - _rising(y, -5, 12)) * (1 - 0.6 * _rising(-y, 78, 6))
    # White matter stays where it is next to the cortex: it is the grey matter that gets thinner.
    cortical = 1 - ndimage.gaussian_filter(white, 2.0 / voxel)
    everywhere = np.maximum(ventricles, shell * cortical / (shell * cortical).max())
    weights = np.stack(
        [ventricles, medial_temporal * cortical, temporoparietal * cortical, frontal * cortical, everywhere]
    )
    weights /= weights.max(axis=(1, 2, 3), keepdims=True)
    # A hard zero where next to nothing happens keeps the box, and so the work per subject, small.
    return np.where(weights * ndimage.gaussian_filter(mask, 1.0) > 0.01, weights, 0).astype(np.float32)


def _rising(coordinate: np.ndarray, middle: float, width: float) -> np.ndarray:
    return 1 / (1 + np.exp(-(coordinate - middle) / width))
