"""Register a scan of a head to the average brain by an affine transform, and judge the result."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from trainer.data.images import foreground, geometry, resampling
from trainer.data.images.findings import Finding, bad, warning
from trainer.data.images.linear import ascent, average_brain, bias_field, brain, pose_search
from trainer.data.images.linear.ascent import ScanLevel
from trainer.data.images.linear.average_brain import FIELD_OF_VIEW
from trainer.data.images.linear.pose_search import Pose

# Voxels along an edge of the average brain at each level of the ascent: 8, 4 and 2 mm.
_ROUGH, _MIDDLE, _FINE = 26, 53, 106
# How many poses go on from the search, and from the rough level.
_TRIED, _REFINED = 8, 3
# A correlation inside the brain that only the right pose reaches; below it all turns are tried.
_SURE = 0.55
# Brightest values, fat and vessels, count as the foreground's percentile.
_BRIGHTEST = 99.0
# Two threads of a prediction prepare scans, and the number of threads of BLAS is the process's.
_ONE_AT_A_TIME = threading.Lock()

# docs/results/registration.md shows where right and wrong ones lie.
_LEAST_INNER, _GOOD_INNER = 0.35, 0.50
_GOOD_DICE = 0.88
_SCALES = (0.75, 1.3)
_MOST_STRETCH = 1.35
_MOST_TURN_DEGREES = 45.0
_MOST_MISSING = 0.02

_LOOK = "Look at it in qc.html."


@dataclass(frozen=True)
class Registration:
    """Where a scan lies, and what was made of it.

    Attributes:
        world: (4, 4) from mm of the scan to mm of the average brain (MNI space).
        correlation: of the scan with the average brain, within the brain and its rim, -1 to 1.
        inner: the same within the brain alone: its outline, which any ball has, does not count.
        dice: overlap of the scan's brain with the average brain, 0 to 1.
        turn_degrees: of the scan's head against the axes of its space.
        scale: of lengths in the scan against the average brain; 1 is its size.
        stretch: longest by shortest of the scales along three axes.
        seen: share of the average brain that the scan covers.
        brain: bool on the grid of `brain.SIZE`.
        placed: (SIZE, SIZE, SIZE) float32, the scan without its bias field on that grid; NaN outside of it.
        corrected: (X, Y, Z) the scan without its bias field, on its own grid.
        is_corrected: whether there was a bias field to remove.
    """

    world: np.ndarray
    correlation: float
    inner: float
    dice: float
    turn_degrees: float
    scale: float
    stretch: float
    seen: float
    brain: np.ndarray
    placed: np.ndarray
    corrected: np.ndarray
    is_corrected: bool

    def to_json(self) -> dict[str, Any]:
        """Return its numbers, rounded for people but for `world`."""
        numbers = ("correlation", "inner", "dice", "turn_degrees", "scale", "stretch", "seen")
        return {**{name: round(getattr(self, name), 3) for name in numbers}, "world": self.world.tolist()}


def register(data: np.ndarray, affine: np.ndarray) -> Registration:
    """Return where a scan lies.

    Args:
        data: (X, Y, Z) float32, axes in RAS+ and at right angles; NaN in corners that a sheared scan lacks.
        affine: (4, 4) of it, voxel indices to mm.
    """
    reached = np.isfinite(data)
    if not reached.all():
        data = resampling.filled(data)
    corrected, is_corrected = bias_field.corrected(data, affine)
    # One thread: sums in one order, so that a scan comes out the same whatever its neighbours are.
    with _ONE_AT_A_TIME, threadpool_limits(1, user_api="blas"):
        pose, inner = _pose(_Levels(_compressed(corrected, affine), affine))
    world = _rounded(np.linalg.inv(pose.matrix))
    size = (brain.SIZE,) * 3
    fine = average_brain.affine_of(brain.SIZE)
    placed = resampling.placed_on(corrected, world @ affine, FIELD_OF_VIEW / brain.SIZE, size, fine)
    template = average_brain.of_size(brain.SIZE).mask > 0.5
    if not reached.all():
        share = resampling.placed_on(
            reached.astype(np.float32), world @ affine, FIELD_OF_VIEW / brain.SIZE, size, fine
        )
        placed[~(share > 0.5)] = np.nan
    there = np.isfinite(placed)
    its_brain = brain.of_registered(np.where(there, placed, 0), there) & there
    scales = np.linalg.svd(pose.matrix[:3, :3], compute_uv=False)
    return Registration(
        world=world,
        correlation=pose.correlation,
        inner=inner,
        dice=brain.dice(its_brain, template),
        turn_degrees=geometry.angle_degrees(pose.matrix, np.eye(4)),
        scale=float(np.prod(scales) ** (1 / 3)),
        stretch=float(scales.max() / scales.min()),
        seen=float((template & there).sum() / template.sum()),
        brain=its_brain,
        placed=placed,
        corrected=corrected,
        is_corrected=is_corrected,
    )


def judge(registration: Registration) -> list[Finding]:
    """Return what is odd about a registration; bad where it shows no brain like the average one."""
    inner, dice = registration.inner, registration.dice
    numbers = f"correlation {inner:.2f} in the brain, overlap of the brains {dice:.2f}"
    if not inner >= _LEAST_INNER:  # NaN too
        cure = "Check that it is a T1-weighted scan of a whole human head; else leave it out."
        return [bad("no-brain", f"shows nothing like a human brain in T1 contrast ({numbers}).", cure)]
    findings = [] if registration.is_corrected else [bias_field.NOT_REMOVED]
    if inner < _GOOD_INNER or dice < _GOOD_DICE:
        findings.append(warning("registration", f"fits the average brain badly ({numbers}).", _LOOK))
    smallest, largest = _SCALES
    if not smallest <= registration.scale <= largest or registration.stretch > _MOST_STRETCH:
        message = (
            f"is {registration.scale:.2f} times as large as the average brain, and stretched by "
            f"{registration.stretch:.2f}."
        )
        advice = "Check voxel sizes in its header, and whether it is a human head. " + _LOOK
        findings.append(warning("brain-size", message, advice))
    if registration.turn_degrees > _MOST_TURN_DEGREES:
        message = f"its head is turned by {registration.turn_degrees:.0f} degrees against its header's axes."
        findings.append(warning("turned", message, "The orientation in its header may be wrong. " + _LOOK))
    if registration.seen < 1 - _MOST_MISSING:
        message = f"covers {100 * registration.seen:.0f} % of the brain."
        findings.append(warning("partly-covered", message, "Use a scan of the whole brain."))
    return findings


class _Levels:
    """A scan at the resolutions of search and ascent, each made when it is asked for."""

    def __init__(self, data: np.ndarray, affine: np.ndarray) -> None:
        self._data, self._affine = data, affine
        self._made: dict[int, ScanLevel] = {}

    def of_size(self, size: int) -> ScanLevel:
        """Return the scan with voxels as large as those of the average brain on `size`^3."""
        if size not in self._made:
            self._made[size] = ScanLevel.of(self._data, self._affine, FIELD_OF_VIEW / size)
        return self._made[size]


def _compressed(data: np.ndarray, affine: np.ndarray) -> np.ndarray:
    """Return data from 0 for air to 1 for what is as bright as nearly all of the head, or brighter."""
    small = ScanLevel.of(data, affine, pose_search.SPACING / 2).data
    inside = foreground.mask(small)
    high = float(np.percentile(small[inside], _BRIGHTEST)) if inside.any() else 0.0
    return np.clip(data / np.float32(high if high > 0 else 1.0), 0, 1)


def _pose(levels: _Levels) -> tuple[Pose, float]:
    """Return the best pose and the correlation inside its brain.

    Of turns as in scanners; of all turns where none of these fits.
    """
    best = _refined(levels, pose_search.near_turns())
    if best[1] < _SURE:
        best = max(best, _refined(levels, pose_search.all_turns()), key=lambda pose: pose[1])
    return best


def _refined(levels: _Levels, turns: Sequence[np.ndarray]) -> tuple[Pose, float]:
    searched = levels.of_size(pose_search.SIZE)
    poses = pose_search.best_poses(searched.data, searched.affine, turns, _TRIED)
    rough, middle, fine = (levels.of_size(size) for size in (_ROUGH, _MIDDLE, _FINE))
    poses = [ascent.ascend(rough, _ROUGH, pose, 15, affine=False) for pose in poses]
    poses = pose_search.distinct(sorted(poses, key=lambda pose: -pose.correlation), _REFINED)
    poses = [ascent.ascend(middle, _MIDDLE, pose, 6, affine=False) for pose in poses]
    poses = [ascent.ascend(middle, _MIDDLE, pose, 15, affine=True) for pose in poses]
    inner = [ascent.inner_correlation(middle, _MIDDLE, pose) for pose in poses]
    best = poses[int(np.argmax(np.nan_to_num(inner, nan=-1.0)))]
    best = ascent.ascend(fine, _FINE, best, 10, affine=True)
    return best, float(np.nan_to_num(ascent.inner_correlation(fine, _FINE, best), nan=-1.0))


def _rounded(matrix: np.ndarray) -> np.ndarray:
    """Round an affine to what moves nothing by a thousandth of a millimetre: last bits stay out of images."""
    rounded = np.round(matrix, 6)
    rounded[:3, 3] = np.round(matrix[:3, 3], 4)
    return rounded
