"""How well predicted label maps agree with the true ones: Dice, Hausdorff distance, volumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from trainer.metrics.subjects import Subjects, mean_left_out


def sample_statistics(
    true_map: np.ndarray,
    predicted_map: np.ndarray,
    classes: Sequence[str],
    voxel_size: Sequence[float],
    *,
    distances: bool = True,
) -> dict[str, dict[str, float | None]]:
    """Return the figures of one scan's label map, for every class but the background.

    Args:
        true_map: int or uint8 (D, H, W), numbers of classes; 0 is background.
        predicted_map: the same of the network.
        classes: names, background first.
        voxel_size: mm along D, H, W.
        distances: whether to measure them, which takes far longer than all else; None where not.

    Returns:
        For each class but the first:
        dice: 2 |A and B| / (|A| + |B|) over voxels; None where neither map has the class, 0 where one has.
        hausdorff: mm, the largest distance of a surface voxel of one map from the other map's surface.
        hd95: mm, the larger of both directions' 95th percentiles of those distances (as Metrics Reloaded and
            MONAI; medpy pools the directions instead). Both distances are None where a map lacks the class:
            there is no surface to measure to, which is worse than any distance.
        true_ml, predicted_ml: volumes in mL.

    Raises:
        ValueError: maps of different shapes, not three-dimensional, or with a number that is no class.
    """
    true_map, predicted_map = np.asarray(true_map), np.asarray(predicted_map)
    if true_map.ndim != 3 or true_map.shape != predicted_map.shape:
        raise ValueError(f"label maps of shapes {true_map.shape} and {predicted_map.shape}")
    for name, found in (("true", true_map), ("predicted", predicted_map)):
        if found.size and not 0 <= found.min() <= found.max() < len(classes):
            raise ValueError(
                f"the {name} map has the number {found.max()}, and there are {len(classes)} classes"
            )
    millilitres = float(np.prod(voxel_size)) / 1000
    statistics = {}
    for number, name in enumerate(classes[1:], start=1):
        true, predicted = true_map == number, predicted_map == number
        n_true, n_predicted = int(true.sum()), int(predicted.sum())
        both = n_true + n_predicted
        hausdorff, hd95 = None, None
        if distances and n_true and n_predicted:
            hausdorff, hd95 = _distances(true, predicted, voxel_size)
        statistics[name] = {
            "dice": 2 * int((true & predicted).sum()) / both if both else None,
            "hausdorff": hausdorff,
            "hd95": hd95,
            "true_ml": n_true * millilitres,
            "predicted_ml": n_predicted * millilitres,
        }
    return statistics


def surface(mask: np.ndarray) -> np.ndarray:
    """Return the voxels of a mask with a face neighbour outside the mask or the image; bool."""
    return mask & ~scipy.ndimage.binary_erosion(mask)


def segmentation_metrics(
    dice: Mapping[str, np.ndarray], hd95: Mapping[str, np.ndarray], subjects: Sequence[str] | None
) -> dict[str, Any]:
    """Return the figures of a split from those of its scans.

    Args:
        dice: by class, float (N,), of each scan; NaN where neither map has the class.
        hd95: by class, float (N,), in mm; NaN where a map lacks the class.
        subjects: whose scan each is, (N,), for the 95 % intervals (see `trainer.metrics.subjects`); None
            for no interval.

    Returns:
        n (scans), subjects (how many, where they are given); dice (mean over classes of a scan, then over
        scans), dice_interval; and `per_class`: for each its n (scans that have the class in either map),
        dice, dice_sd and dice_interval over them, hd95 (mean, mm) and hd95_median over those where both maps
        have it, and without_surface (how many of n have it in one map only: the mean distance leaves these
        failures out). What is undefined is None.
    """
    people = None if subjects is None else Subjects.named(subjects)
    mean, bounds = _mean_and_interval(mean_dice(dice), people)
    return {
        "n": len(next(iter(dice.values()), ())),
        **({} if people is None else {"subjects": people.count}),
        "dice": mean,
        "dice_interval": bounds,
        "per_class": {name: _of_class(dice[name], hd95[name], people) for name in dice},
    }


def mean_dice(dice: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the mean over the classes that a scan has, float64 (N,); NaN where it has none.

    A scan with no class in either map says nothing of overlap, so means over scans leave it out.

    Args:
        dice: by class, float (N,), NaN where neither map has the class.
    """
    table = np.array([np.asarray(values, np.float64) for values in dice.values()])
    if not len(table):
        return np.zeros(0)
    known = np.isfinite(table)
    counts = known.sum(axis=0)
    sums = np.where(known, table, 0.0).sum(axis=0)
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


def _of_class(dice: np.ndarray, hd95: np.ndarray, people: Subjects | None) -> dict[str, Any]:
    there = np.isfinite(dice)
    values = np.asarray(dice, np.float64)[there]
    distances = np.asarray(hd95, np.float64)[np.isfinite(hd95)]
    mean, bounds = _mean_and_interval(dice, people)
    return {
        "n": len(values),
        "dice": mean,
        "dice_sd": float(values.std(ddof=1)) if len(values) > 1 else None,
        "dice_interval": bounds,
        "hd95": float(distances.mean()) if len(distances) else None,
        "hd95_median": float(np.median(distances)) if len(distances) else None,
        "without_surface": len(values) - len(distances),
    }


def _mean_and_interval(
    values: np.ndarray, people: Subjects | None
) -> tuple[float | None, list[float] | None]:
    values = np.asarray(values, np.float64)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None, None
    bounds = None if people is None else mean_left_out(people, values).interval("share")
    return float(finite.mean()), bounds


def _distances(true: np.ndarray, predicted: np.ndarray, voxel_size: Sequence[float]) -> tuple[float, float]:
    """Hausdorff distance and its 95 % form, in mm, of two masks that are not empty."""
    box = _box(true | predicted)  # nothing outside it is a surface, nor between two
    one, other = surface(true[box]), surface(predicted[box])
    there = scipy.ndimage.distance_transform_edt(~other, sampling=voxel_size)[one]
    back = scipy.ndimage.distance_transform_edt(~one, sampling=voxel_size)[other]
    return (
        float(max(there.max(), back.max())),
        float(max(np.percentile(there, 95), np.percentile(back, 95))),
    )


def _box(mask: np.ndarray) -> tuple[slice, ...]:
    """The smallest box that holds a mask."""
    ends = []
    for axis in range(mask.ndim):
        others = tuple(a for a in range(mask.ndim) if a != axis)
        places = np.flatnonzero(mask.any(axis=others))
        ends.append(slice(int(places[0]), int(places[-1]) + 1))
    return tuple(ends)
