"""Dice and distances of label maps, against scikit-learn, scipy and brute force on random blobs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from scipy.spatial.distance import cdist, directed_hausdorff
from sklearn.metrics import f1_score

from trainer.metrics.segmentation import sample_statistics, segmentation_metrics, surface

CLASSES = ("background", "grey", "white")
VOXEL = (1.0, 1.5, 3.0)


def blobs(seed: int, shape: tuple[int, ...] = (14, 12, 10), classes: int = 3) -> np.ndarray:
    """A label map of smooth random blobs that touch the image's border here and there."""
    rng = np.random.default_rng(seed)
    fields = [gaussian_filter(rng.normal(size=shape), 1.5) for _ in range(classes)]
    return np.argmax(fields, axis=0).astype(np.uint8)


def border_points(mask: np.ndarray) -> np.ndarray:
    """Places in mm of voxels with a face neighbour that is not in the mask, one by one."""
    padded = np.pad(mask, 1)
    found = []
    for place in np.argwhere(mask):
        neighbours = [place + 1 + step for axis in np.eye(3, dtype=int) for step in (axis, -axis)]
        if not all(padded[tuple(n)] for n in neighbours):
            found.append(place)
    return np.array(found) * VOXEL


@pytest.mark.parametrize("seed", range(8))
def test_distances_are_those_of_all_pairs_of_surface_points_in_millimetres(seed):
    true, predicted = blobs(seed), blobs(seed + 100)
    found = sample_statistics(true, predicted, CLASSES, VOXEL)
    assert list(found) == ["grey", "white"]
    for number, name in enumerate(found, start=1):
        one, other = border_points(true == number), border_points(predicted == number)
        expected = max(directed_hausdorff(one, other)[0], directed_hausdorff(other, one)[0])
        assert found[name]["hausdorff"] == pytest.approx(expected, rel=1e-12)
        pairs = cdist(one, other)
        robust = max(np.percentile(pairs.min(axis=1), 95), np.percentile(pairs.min(axis=0), 95))
        assert found[name]["hd95"] == pytest.approx(robust, rel=1e-12)
        assert found[name]["hd95"] <= found[name]["hausdorff"]


@pytest.mark.parametrize("seed", range(8))
def test_dice_is_scikit_learns_f1_and_volumes_are_counts(seed):
    true, predicted = blobs(seed), blobs(seed + 50)
    found = sample_statistics(true, predicted, CLASSES, VOXEL)
    expected = f1_score(true.ravel(), predicted.ravel(), average=None)
    assert [found[name]["dice"] for name in found] == pytest.approx(expected[1:].tolist(), rel=1e-12)
    assert found["grey"]["true_ml"] == pytest.approx(np.sum(true == 1) * 4.5 / 1000)
    assert found["grey"]["predicted_ml"] == pytest.approx(np.sum(predicted == 1) * 4.5 / 1000)


def test_a_shift_is_as_far_as_it_is_in_millimetres():
    true = np.zeros((20, 20, 20), np.uint8)
    true[5:10, 5:10, 5:10] = 1
    for axis, size in enumerate(VOXEL):
        found = sample_statistics(true, np.roll(true, 2, axis), CLASSES[:2], VOXEL)["grey"]
        assert found["hausdorff"] == pytest.approx(2 * size)
        assert found["dice"] == pytest.approx(3 / 5)


def test_one_far_voxel_moves_the_hausdorff_distance_and_not_its_robust_form():
    true = np.zeros((24, 24, 24), np.uint8)
    true[4:14, 4:14, 4:14] = 1
    predicted = true.copy()
    predicted[23, 8, 8] = 1
    found = sample_statistics(true, predicted, CLASSES[:2], (1, 1, 1))["grey"]
    assert (found["hausdorff"], found["hd95"]) == (10.0, 0.0)


def test_a_hole_within_is_a_surface_too():
    """A shell against a filled map: from the hole's wall it is 2 to the outside; whole masks would say 3."""
    shell = np.zeros((16, 16, 16), np.uint8)
    shell[2:13, 2:13, 2:13] = 1
    full = shell.copy()
    shell[5:10, 5:10, 5:10] = 0
    assert sample_statistics(shell, full, CLASSES[:2], (1, 1, 1))["grey"]["hausdorff"] == 2.0
    assert surface(shell == 1).sum() == 11**3 - 9**3 + 6 * 5**2


def test_equal_maps_agree_wholly():
    true = blobs(1)
    for figures in sample_statistics(true, true, CLASSES, VOXEL).values():
        assert (figures["dice"], figures["hausdorff"], figures["hd95"]) == (1.0, 0.0, 0.0)


def test_an_absent_class_has_no_dice_and_a_missed_or_made_up_one_none_of_it_and_no_distance():
    nothing, ball = np.zeros((6, 6, 6), np.uint8), np.zeros((6, 6, 6), np.uint8)
    ball[2:4, 2:4, 2:4] = 1
    absent = sample_statistics(nothing, nothing, CLASSES, VOXEL)["grey"]
    assert absent == {"dice": None, "hausdorff": None, "hd95": None, "true_ml": 0.0, "predicted_ml": 0.0}
    for true, predicted in ((ball, nothing), (nothing, ball)):
        found = sample_statistics(true, predicted, CLASSES, VOXEL)["grey"]
        assert (found["dice"], found["hausdorff"], found["hd95"]) == (0.0, None, None)


@pytest.mark.timeout(120)  # 1.8 s on a busy core; all pairs would take hours
def test_a_head_at_96_cubed_does_not_compare_all_pairs_of_voxels():
    true, predicted = (blobs(seed, (96, 96, 96), 4) for seed in (0, 1))
    found = sample_statistics(true, predicted, ("background", "csf", "grey", "white"), (2, 2, 2))
    assert found


def test_maps_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="shapes"):
        sample_statistics(np.zeros((2, 2, 2)), np.zeros((2, 2, 3)), CLASSES, VOXEL)
    with pytest.raises(ValueError, match="number 3, and there are 3 classes"):
        sample_statistics(np.zeros((2, 2, 2), int), np.full((2, 2, 2), 3), CLASSES, VOXEL)


def test_distances_may_be_left_out():
    true, predicted = blobs(0), blobs(1)
    with_them = sample_statistics(true, predicted, CLASSES, VOXEL)["grey"]
    without = sample_statistics(true, predicted, CLASSES, VOXEL, distances=False)["grey"]
    assert without == with_them | {"hausdorff": None, "hd95": None}


NAN = float("nan")


def table(**columns: list[float]) -> dict[str, np.ndarray]:
    return {name: np.array(values, np.float32) for name, values in columns.items()}


def test_a_split_s_figures_are_means_over_scans_and_count_the_failures():
    dice = table(grey=[0.9, 0.7, 0.8], white=[0.8, 0.0, NAN])
    found = segmentation_metrics(dice, table(grey=[1, 1, 4], white=[1, NAN, NAN]), list("abc"))
    assert found["n"] == 3
    assert found["dice"] == pytest.approx((0.85 + 0.35 + 0.8) / 3)
    assert found["dice_interval"] is None  # of three
    grey, white = found["per_class"]["grey"], found["per_class"]["white"]
    assert (grey["n"], grey["without_surface"]) == (3, 0)
    assert (grey["dice"], grey["dice_sd"]) == pytest.approx((0.8, 0.1))
    assert (grey["hd95"], grey["hd95_median"]) == (2.0, 1.0)
    assert (white["n"], white["hd95"], white["without_surface"]) == (2, 1.0, 1)
    assert white["dice"] == pytest.approx(0.4)


def test_the_interval_of_the_mean_is_about_its_standard_error():
    dice = np.random.default_rng(0).normal(0.9, 0.02, 100)
    low, high = segmentation_metrics({"grey": dice}, {"grey": dice}, [str(k) for k in range(100)])[
        "dice_interval"
    ]
    assert high - low == pytest.approx(
        2 * 1.96 * dice.std() / 10, rel=0.05
    )  # Student's quantile is 1 % larger


def test_what_cannot_be_told_is_none_and_all_of_it_is_json():
    nobody = segmentation_metrics({}, {}, [])
    assert nobody == {"n": 0, "subjects": 0, "dice": None, "dice_interval": None, "per_class": {}}
    empty = segmentation_metrics(table(grey=[]), table(grey=[]), [])
    assert empty["dice"] is None and empty["per_class"]["grey"]["dice"] is None
    absent = segmentation_metrics(table(grey=[NAN, NAN]), table(grey=[NAN, NAN]), list("ab"))
    assert (absent["n"], absent["dice"], absent["per_class"]["grey"]["n"]) == (2, None, 0)
    one = segmentation_metrics(table(grey=[0.5], white=[0.75]), table(grey=[1], white=[1]), ["a"])
    assert (one["dice"], one["dice_interval"], one["per_class"]["grey"]["dice_sd"]) == (0.625, None, None)
    real = sample_statistics(blobs(0), blobs(1), CLASSES, VOXEL)
    for found in (nobody, empty, absent, one, real):
        json.dumps(found, allow_nan=False)
