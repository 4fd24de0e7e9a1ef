"""Follow the correlation of a scan with the average brain uphill, from a rough pose to an affine transform.

Gauss-Newton steps on the average brain's side (inverse composition; S. Baker and I. Matthews, IJCV 56(3),
2004) of the least squares between the scan and the average brain with any gain and offset, whose minimum is
the highest correlation (G. Evangelidis and E. Psarakis, IEEE PAMI 30(10), 2008). Voxels that fit badly, such
as skull and vessels, count less (M. Reuter et al., NeuroImage 53, 2010).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import nibabel
import numpy as np
from scipy import ndimage

from trainer.data.images import resampling
from trainer.data.images.linear import average_brain, pose_search
from trainer.data.images.linear.average_brain import CENTRE, FIELD_OF_VIEW
from trainer.data.images.linear.pose_search import Pose

# A change of the matrix is measured by how far it moves what lies so far from the centre, in mm.
_REACH_MM = 70.0
# No step moves anything there by more than this, in mm.
_LONGEST_STEP_MM = 12.0
# Residuals of so many times the median one count half.
_ROBUST = 3.0
# Where less of the compared places was scanned, nothing is compared.
_LEAST_SEEN = 0.4


@dataclass(frozen=True)
class ComparedPoints:
    """Where the average brain and a scan are compared.

    Attributes:
        places: (3, N) mm in the space of the average brain: its voxels, and those of the rim about it.
        values: (N,) its intensity there.
        slopes: (N, 12) change of it with each entry of an affine change, see `_changed`.
        brain: (N,) bool, whether it is inside the brain, further from its surface than the rim is wide: there
            the CSF of the surface does not count, which any ball in a dark rim has.
    """

    places: np.ndarray
    values: np.ndarray
    slopes: np.ndarray
    brain: np.ndarray


@dataclass(frozen=True)
class ScanLevel:
    """A scan at one resolution, axes at right angles; from 0 for air to about 1."""

    data: np.ndarray
    affine: np.ndarray

    @classmethod
    def of(cls, data: np.ndarray, affine: np.ndarray, spacing: float) -> ScanLevel:
        """Resample (X, Y, Z) data with this affine to cubes of `spacing` mm."""
        x, y, z = (float(size) for size in nibabel.affines.voxel_sizes(affine))
        resampled = resampling.resample(data, (x, y, z), spacing)
        placed = resampling.resampled_affine(affine, data.shape, resampled.shape, (x, y, z), spacing)
        return cls(resampled, placed)

    def at(self, places: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return values (N,) float64 at places (3, N) of the average brain, moved by `matrix`; else NaN."""
        to_voxels = np.linalg.inv(self.affine) @ matrix
        voxels = to_voxels[:3, :3] @ places + to_voxels[:3, 3:]
        return ndimage.map_coordinates(self.data, voxels, np.float64, order=1, mode="constant", cval=np.nan)


@functools.cache
def compared_points(size: int) -> ComparedPoints:
    """Return the points of the average brain on `size`^3 voxels."""
    spacing, affine = FIELD_OF_VIEW / size, average_brain.affine_of(size)
    brain = average_brain.of_size(size).t1
    there = pose_search.surroundings(size) > 0.5
    places = affine[:3, :3] @ np.array(np.nonzero(there)) + affine[:3, 3:]
    gradient = np.stack([part[there] for part in np.gradient(brain, spacing)], axis=1).astype(np.float64)
    offsets = ((places - np.array(CENTRE)[:, None]) / _REACH_MM).T
    of_matrix = (gradient[:, :, None] * offsets[:, None, :]).reshape(-1, 9)
    mask = average_brain.of_size(size).mask > 0.5
    inside = (ndimage.distance_transform_edt(mask) * spacing > pose_search.RIM_MM)[there]
    return ComparedPoints(places, brain[there].astype(np.float64), np.hstack([gradient, of_matrix]), inside)


def ascend(scan: ScanLevel, size: int, start: Pose, steps: int, *, affine: bool) -> Pose:
    """Return the best pose of `steps` steps uphill.

    Args:
        scan: at a resolution like that of `size`.
        size: voxels along an edge of the average brain.
        start: where to begin.
        steps: how many steps to make.
        affine: change all twelve entries; else shift, turn and one scale.
    """
    points = compared_points(size)
    slopes = points.slopes if affine else points.slopes @ _SIMILAR
    matrix, best = start.matrix, Pose(start.matrix, -1.0)
    for step in range(steps + 1):
        seen = scan.at(points.places, matrix)
        correlation = correlation_of(points.values, seen)
        if correlation > best.correlation:
            best = Pose(matrix, correlation)
        if step == steps or not np.isfinite(correlation):
            break
        there = np.isfinite(seen)
        change = _change(points.values[there], seen[there], slopes[there])
        if not affine:
            change = _SIMILAR @ change
        matrix = matrix @ np.linalg.inv(_changed(change))
        if not affine:
            matrix = _similar(matrix)
    return best


def inner_correlation(scan: ScanLevel, size: int, pose: Pose) -> float:
    """Return the correlation inside the brain alone: its outline, which any ball has, does not count."""
    points = compared_points(size)
    return correlation_of(points.values[points.brain], scan.at(points.places[:, points.brain], pose.matrix))


def correlation_of(values: np.ndarray, seen: np.ndarray) -> float:
    """Return the correlation of two (N,) float64, -1 to 1, where the second is no NaN.

    NaN where too little was seen, or one of them is constant.
    """
    there = np.isfinite(seen)
    if there.mean() < _LEAST_SEEN:
        return float("nan")
    values, others = values[there] - values[there].mean(), seen[there] - seen[there].mean()
    norm = float(np.linalg.norm(values) * np.linalg.norm(others))
    return float(values @ others) / norm if norm > 0 else float("nan")


def _change(values: np.ndarray, seen: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Return the change of the average brain, an entry per column of `slopes`, that fits it to the scan.

    The scan is fitted by gain * (values + slopes @ change) + offset. The other way round, fitting the average
    brain by the scan, a change that makes it flat would fit best.
    """
    columns = np.column_stack([values, np.ones_like(values)])
    weights = np.ones_like(values)
    for _ in range(2):
        weights = _weights(seen - columns @ _weighted_fit(columns, seen, weights))
    fitted = _weighted_fit(np.hstack([slopes, columns]), seen, weights)
    gain = float(fitted[-2])
    if gain <= 0:  # bright where the average brain is dark: nothing to follow
        return np.zeros(slopes.shape[1])
    change = fitted[: slopes.shape[1]] / gain
    longest = float(np.abs(change).max())
    return change * min(1.0, _LONGEST_STEP_MM / longest) if longest > 0 else change


def _weights(residuals: np.ndarray) -> np.ndarray:
    typical = max(float(np.median(np.abs(residuals))), float(np.finfo(np.float32).tiny))
    return 1 / (1 + (residuals / (_ROBUST * typical)) ** 2)


def _weighted_fit(columns: np.ndarray, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    weighted = columns * weights[:, None]
    normal = weighted.T @ columns
    # A trace of the diagonal keeps it solvable where a scan is constant or has one plane.
    normal[np.diag_indices_from(normal)] *= 1 + 1e-6
    return np.linalg.lstsq(normal, weighted.T @ values, rcond=None)[0]


def _changed(change: np.ndarray) -> np.ndarray:
    """Return (4, 4) that moves mm by twelve numbers: a shift in mm, and (3, 3) in mm at `_REACH_MM`."""
    matrix, centre = np.eye(4), np.array(CENTRE)
    matrix[:3, :3] += change[3:].reshape(3, 3) / _REACH_MM
    matrix[:3, 3] = change[:3] + centre - matrix[:3, :3] @ centre
    return matrix


def _similar(matrix: np.ndarray) -> np.ndarray:
    """Return an affine (4, 4) whose three scales are one: turns of the first order stretch a little.

    What lies at the centre stays where it is.
    """
    u, scales, v = np.linalg.svd(matrix[:3, :3])
    similar = matrix.copy()
    similar[:3, :3] = u @ v * np.cbrt(scales.prod())
    similar[:3, 3] += (matrix[:3, :3] - similar[:3, :3]) @ np.array(CENTRE)
    return similar


def _similarities() -> np.ndarray:
    """Return (12, 7): what a shift, a turn about each axis and a scale are of an affine change."""
    basis = np.zeros((12, 7))
    basis[:3, :3] = np.eye(3)
    for turn, (first, second) in enumerate(((1, 2), (2, 0), (0, 1)), start=3):
        basis[3 + 3 * first + second, turn] = -1.0
        basis[3 + 3 * second + first, turn] = 1.0
    basis[[3, 7, 11], 6] = 1.0
    return basis


_SIMILAR = _similarities()
