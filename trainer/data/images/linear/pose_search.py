"""Find out roughly how a head lies: every turn of a set, every place, by correlation.

For each turn and scale the average brain is correlated with the scan at all places at once, by Fourier
transforms, and only where the brain would be: outside of it, beyond a rim of dark CSF and bone, anything may
be seen (masked normalised cross-correlation; D. Padfield, IEEE Trans. Image Processing 21(5), 2012).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import fft, ndimage
from scipy.spatial.transform import Rotation

from trainer.data.images import geometry
from trainer.data.images.linear import average_brain
from trainer.data.images.linear.average_brain import CENTRE, FIELD_OF_VIEW

SIZE = 21
"""Voxels along an edge of the average brain that is searched with."""

SPACING = FIELD_OF_VIEW / SIZE
"""Edge of those voxels, and of the scan's that are searched, in mm."""

RIM_MM = 6.0
"""How far beyond the brain a scan is compared: CSF and bone, which are dark as the average brain is there."""

# Turns 6 degrees off, places half a voxel off and scales between these are within reach of the ascent.
_STEP_DEGREES = 12.0
_SCALES = (0.93, 1.07)
# The brain's half length and its rim, in a head as large as `_SCALES` says.
_REACH_MM = 105.0
# Poses this close lead to the same place.
_SAME_DEGREES, _SAME_MM = 18.0, 20.0
# Parts of a scan with less contrast than this share of the most that was seen hold no brain.
_LEAST_CONTRAST = 0.05


@dataclass(frozen=True)
class Pose:
    """One way in which a head may lie.

    Attributes:
        matrix: (4, 4) from mm of the average brain to mm of the scan.
        correlation: with the average brain, -1 to 1.
    """

    matrix: np.ndarray
    correlation: float


@functools.cache
def surroundings(size: int) -> np.ndarray:
    """Return the share of each voxel, (size, size, size) float32, that lies in the brain or its rim."""
    fine = 106
    outside = average_brain.of_size(fine).mask <= 0.5
    near = ndimage.distance_transform_edt(outside) * (FIELD_OF_VIEW / fine) <= RIM_MM
    return average_brain.on_grid(near.astype(np.float32), size)


@functools.cache
def near_turns() -> tuple[np.ndarray, ...]:
    """Return turns, (3, 3) each, of up to 24 degrees about each axis, as heads lie in scanners."""
    angles = np.arange(-2, 3) * _STEP_DEGREES
    return _by_angles(itertools.product(angles, repeat=3))


@functools.cache
def all_turns() -> tuple[np.ndarray, ...]:
    """Return turns, (3, 3) each, that lie everywhere: about each of the 24 ways to exchange axes.

    These are headers that name the wrong axes, and heads laid otherwise than the scanner was told.
    """
    small = _by_angles(itertools.product((-30.0, 0.0, 30.0), repeat=3))
    exchanged = [
        np.eye(3)[list(axes)] * np.array(signs)[:, None]
        for axes in itertools.permutations(range(3))
        for signs in itertools.product((1.0, -1.0), repeat=3)
    ]
    return tuple(turn @ axes for axes in exchanged if np.linalg.det(axes) > 0 for turn in small)


def _by_angles(angles: Iterable[Sequence[float]]) -> tuple[np.ndarray, ...]:
    return tuple(Rotation.from_euler("xyz", list(each), degrees=True).as_matrix() for each in angles)


def best_poses(
    scan: np.ndarray, affine: np.ndarray, turns: Sequence[np.ndarray], most: int = 8
) -> list[Pose]:
    """Return the `most` best poses that differ from one another, the best first.

    Args:
        scan: (X, Y, Z) float32 with voxels of `SPACING` mm; air is 0.
        affine: (4, 4) of it, axes at right angles, voxel indices to mm.
        turns: (3, 3) each, from axes of the average brain to those of the scan's space.
        most: how many to return.
    """
    axes = affine[:3, :3] / SPACING
    image = _Searched(scan)
    poses = []
    for turn, scale in itertools.product(turns, _SCALES):
        place, correlation = image.best_place(*_kernel(axes.T @ turn, scale))
        matrix = np.eye(4)
        matrix[:3, :3] = scale * turn
        matrix[:3, 3] = affine[:3, :3] @ place + affine[:3, 3] - matrix[:3, :3] @ np.array(CENTRE)
        poses.append(Pose(matrix, correlation))
    return distinct(sorted(poses, key=lambda pose: -pose.correlation), most)


def _kernel(turn: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the average brain and the weight of each voxel on axes of a scan, both (m, m, m) float32.

    Args:
        turn: (3, 3), from axes of the average brain to those of the scan's grid.
        scale: how large it is.
    """
    half = int(np.ceil(_REACH_MM * max(_SCALES) / SPACING))
    edge = 2 * half + 1
    offsets = (np.indices((edge,) * 3).reshape(3, -1) - half) * SPACING
    places = turn.T @ offsets / scale + np.array(CENTRE)[:, None]
    affine = average_brain.affine_of(SIZE)
    voxels = (places - affine[:3, 3:]) / SPACING
    sampled = [
        ndimage.map_coordinates(volume, voxels, order=1, mode="constant").reshape((edge,) * 3)
        for volume in (average_brain.of_size(SIZE).t1, surroundings(SIZE))
    ]
    return sampled[0], sampled[1]


class _Searched:
    """A scan whose Fourier transforms are kept: every kernel has the same size."""

    def __init__(self, scan: np.ndarray) -> None:
        half = int(np.ceil(_REACH_MM * max(_SCALES) / SPACING))
        self._shape = scan.shape
        self._padded = tuple(fft.next_fast_len(length + 2 * half, real=True) for length in scan.shape)
        padded = np.zeros(self._padded, np.float32)
        padded[tuple(slice(half, half + length) for length in scan.shape)] = scan
        self._of_scan = fft.rfftn(padded)
        self._of_square = fft.rfftn(padded**2)

    def best_place(self, brain: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the voxel of the scan, (3,), where the kernel's middle fits best, and the correlation."""
        total = float(weight.sum(dtype=np.float64))
        centred = weight * (brain - float((weight * brain).sum(dtype=np.float64)) / total)
        contrast = float((centred * (brain - brain.mean())).sum(dtype=np.float64))
        of_weight = np.conj(fft.rfftn(weight, self._padded))
        product = self._sums(np.conj(fft.rfftn(centred, self._padded)) * self._of_scan)
        mean = self._sums(of_weight * self._of_scan)
        spread = self._sums(of_weight * self._of_square) - mean**2 / total
        least = max(_LEAST_CONTRAST * float(spread.max()), float(np.finfo(np.float32).tiny))
        correlation = np.where(spread > least, product / np.sqrt(np.maximum(spread, least) * contrast), -1.0)
        best = np.unravel_index(int(correlation.argmax()), correlation.shape)
        return np.array(best, np.float64), float(correlation[best])

    def _sums(self, transformed: np.ndarray) -> np.ndarray:
        """Return the sums for a kernel whose middle lies on each voxel of the scan."""
        sums = fft.irfftn(transformed, self._padded)
        return np.asarray(sums[tuple(slice(0, length) for length in self._shape)], np.float64)


def distinct(poses: Sequence[Pose], most: int) -> list[Pose]:
    """Return the first `most` that do not lead to the place of one before."""
    taken: list[Pose] = []
    for pose in poses:
        if len(taken) == most:
            break
        if not any(_same(pose.matrix, other.matrix) for other in taken):
            taken.append(pose)
    return taken


def _same(matrix: np.ndarray, other: np.ndarray) -> bool:
    middle = np.array([*CENTRE, 1.0])
    if np.linalg.norm((matrix @ middle - other @ middle)[:3]) > _SAME_MM:
        return False
    return geometry.angle_degrees(matrix, other) < _SAME_DEGREES
