"""Losses and their gradients, against numpy in float64 and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax, softmax

from trainer.config import TaskConfig
from trainer.config.task import LOSSES
from trainer.tasks import losses

# float32 rounds at 1.2e-7 of the largest term; sums of some dozen terms of both signs keep five digits of it.
DIGITS = 1e-5


def cross_entropy(targets, logits, smoothing=0.0, gamma=0.0):
    shares, classes = log_softmax(logits, axis=-1), logits.shape[-1]
    wanted = np.eye(classes)[targets] * (1 - smoothing) + smoothing / classes
    return -(wanted * (1 - np.exp(shares)) ** gamma * shares).sum(axis=-1)


def dice_cross_entropy(targets, logits, smoothing=1e-5):
    found = []
    for truth, sample in zip(targets, logits, strict=True):
        shares, costs = softmax(sample, axis=-1), []
        for k in range(1, sample.shape[-1]):
            p, t = shares[..., k].ravel(), (truth == k).ravel().astype(float)
            costs.append(1 - (2 * p @ t + smoothing) / (p.sum() + t.sum() + smoothing))
        found.append(cross_entropy(truth, sample).mean() + np.mean(costs))
    return np.array(found)


def huber(targets, outputs, delta=1.0, scale=1.0):
    e = np.abs(outputs[:, 0] - targets) / scale
    return np.where(e <= delta, e**2 / 2, delta * (e - delta / 2))


RNG = np.random.default_rng(3)
LOGITS = RNG.normal(size=(6, 4)).astype(np.float32) * 3
CLASSES = RNG.integers(0, 4, 6).astype(np.int32)
DENSE = RNG.normal(size=(2, 3, 4, 2, 3)).astype(np.float32) * 3
MAPS = RNG.integers(0, 3, DENSE.shape[:-1]).astype(np.uint8)
YEARS = RNG.normal(70, 8, (6, 1)).astype(np.float32)
AGES = RNG.normal(70, 8, 6).astype(np.float32)

CASES = {
    "cross entropy": (losses.cross_entropy(), cross_entropy, CLASSES, LOGITS),
    "smoothed": (losses.cross_entropy(0.1), lambda t, x: cross_entropy(t, x, 0.1), CLASSES, LOGITS),
    "focal": (losses.focal(2.0), lambda t, x: cross_entropy(t, x, 0.0, 2.0), CLASSES, LOGITS),
    "focal, half": (losses.focal(0.5, 0.1), lambda t, x: cross_entropy(t, x, 0.1, 0.5), CLASSES, LOGITS),
    "dice": (losses.dice_cross_entropy(), dice_cross_entropy, MAPS, DENSE),
    "dice, smooth": (
        losses.dice_cross_entropy(1.0),
        lambda t, x: dice_cross_entropy(t, x, 1.0),
        MAPS,
        DENSE,
    ),
    "squared": (losses.squared(7.5), lambda t, x: ((x[:, 0] - t) / 7.5) ** 2, AGES, YEARS),
    "absolute": (losses.absolute(7.5), lambda t, x: np.abs(x[:, 0] - t) / 7.5, AGES, YEARS),
    "huber": (losses.huber(0.8, 7.5), lambda t, x: huber(t, x, 0.8, 7.5), AGES, YEARS),
}
each = pytest.mark.parametrize(("loss", "reference", "targets", "outputs"), CASES.values(), ids=CASES)


def gradient(loss, targets, outputs):
    at = tf.constant(outputs)
    with tf.GradientTape() as tape:
        tape.watch(at)
        values = loss(tf.constant(targets), at)
    return values.numpy(), tape.gradient(values, at).numpy()


def differences(reference, targets, outputs, step=1e-6):
    """Central differences in float64 of the sum over samples."""
    outputs, slopes = outputs.astype(np.float64), np.zeros(outputs.shape)
    for place in np.ndindex(outputs.shape):
        up, down = outputs.copy(), outputs.copy()
        up[place] += step
        down[place] -= step
        slopes[place] = (reference(targets, up).sum() - reference(targets, down).sum()) / (2 * step)
    return slopes


@each
def test_values_and_gradients_are_those_of_the_formula(loss, reference, targets, outputs):
    values, slopes = gradient(loss, targets, outputs)
    assert values.shape == (len(targets),) and values.dtype == np.float32
    for found, expected in (
        (values, reference(targets, outputs.astype(np.float64))),
        (slopes, differences(reference, targets, outputs)),
    ):
        np.testing.assert_allclose(found, expected, rtol=DIGITS, atol=DIGITS * np.abs(expected).max())


@each
def test_a_sample_does_not_see_the_others_in_its_batch_and_a_graph_gives_the_same(
    loss, reference, targets, outputs
):
    together = loss(targets, outputs).numpy()
    shape = tf.TensorSpec([None, *outputs.shape[1:]], tf.float32)
    graph = tf.function(
        loss, input_signature=[tf.TensorSpec([None, *targets.shape[1:]], targets.dtype), shape]
    )
    for i in range(len(targets)):
        np.testing.assert_allclose(graph(targets[i : i + 1], outputs[i : i + 1])[0], together[i], rtol=1e-6)


@each
def test_half_precision_outputs_are_taken_to_float32_before_anything_else(loss, reference, targets, outputs):
    half = outputs.astype(np.float16)
    values, slopes = gradient(loss, targets, half)
    assert values.dtype == np.float32 and slopes.dtype == np.float16
    np.testing.assert_array_equal(values, loss(targets, half.astype(np.float32)).numpy())


@each
def test_float64_outputs_keep_all_their_digits(loss, reference, targets, outputs):
    wide = outputs.astype(np.float64)
    values, slopes = gradient(loss, targets, wide)
    assert values.dtype == np.float64 and slopes.dtype == np.float64
    np.testing.assert_allclose(values, reference(targets, wide), rtol=1e-12)


@pytest.mark.parametrize("name", ["cross entropy", "smoothed", "focal", "focal, half"])
@pytest.mark.parametrize("size", [1e2, 3e4])
def test_a_network_that_is_very_sure_gives_finite_losses_and_gradients(name, size):
    loss = CASES[name][0]
    targets, logits = np.array([0, 1], np.int32), np.full((2, 3), -size, np.float32)
    logits[:, 0] = size  # right on the first, wrong on the second
    values, slopes = gradient(loss, targets, logits)
    assert np.isfinite(values).all() and np.isfinite(slopes).all()
    smoothing = 0.1 if name in ("smoothed", "focal, half") else 0.0
    assert values[1] == pytest.approx(2 * size * (1 - smoothing + smoothing * 2 / 3), rel=0.04)
    assert values[1] > 2 * size * 0.9
    if not smoothing:
        assert values[0] == 0 and not slopes[0].any()


def test_focal_loss_with_a_sure_and_right_network_is_not_rounded_away():
    logits = np.array([[12.0, -12.0]], np.float32)  # p is 1 in float32, 1 - p is 4e-11
    exact = np.exp(-24.0) ** 0.5 * np.exp(-24.0)
    values, slopes = gradient(losses.focal(0.5), np.array([0]), logits)
    assert np.isfinite(slopes).all()
    assert values[0] <= exact * 1.01
    wrong, _ = gradient(losses.focal(0.5), np.array([1]), logits)
    assert wrong[0] == pytest.approx(24.0)


def test_gamma_zero_is_cross_entropy_and_a_larger_one_counts_the_sure_less():
    targets, logits = np.array([0, 0]), np.array([[4.0, 0.0], [0.0, 4.0]], np.float32)
    plain = losses.cross_entropy()(targets, logits).numpy()
    np.testing.assert_array_equal(losses.focal(0.0)(targets, logits).numpy(), plain)
    share = losses.focal(2.0)(targets, logits).numpy() / plain
    assert share[0] < 1e-3 and share[1] > 0.95


def sure(labels, classes, size=40.0):
    """Logits of a network without doubt."""
    return (np.eye(classes)[labels] * size).astype(np.float32)


def test_a_perfect_map_costs_nothing_absent_classes_included():
    labels = np.zeros((1, 4, 4, 4), np.uint8)
    labels[0, :2] = 1  # class 2 is absent
    assert losses.dice_cross_entropy()(labels, sure(labels, 3))[0] < 1e-4
    nothing = np.zeros((1, 4, 4, 4), np.uint8)
    values, slopes = gradient(losses.dice_cross_entropy(), nothing, sure(nothing, 3))
    assert values[0] < 1e-4 and np.isfinite(slopes).all()


def test_a_class_that_is_missed_or_made_up_costs_its_share_of_the_dice_term():
    labels = np.zeros((1, 4, 4, 4), np.uint8)
    labels[0, :2] = 1
    called = labels.copy()
    called[0, 3] = 2  # made up: 16 of 64 voxels, each 40 off
    values, slopes = gradient(losses.dice_cross_entropy(), labels, sure(called, 3))
    assert values[0] == pytest.approx(40 * 16 / 64 + 1 / 2, abs=1e-4)
    # Cross-entropy drives it out: about 1/64 per voxel, nothing to speak of from Dice.
    assert slopes[0, 3, ..., 2] == pytest.approx(np.full((4, 4), 1 / 64), rel=1e-3)


def test_background_takes_no_part_in_dice():
    labels = np.zeros((1, 4, 4, 4), np.uint8)
    labels[0, 0, 0, 0] = 1
    missed = losses.dice_cross_entropy()(labels, sure(np.zeros_like(labels), 2))[0]
    assert float(missed) == pytest.approx(40 / 64 + 1, abs=1e-4)  # with background it would be about 0.5


def test_huge_dense_logits_give_finite_numbers():
    labels = np.zeros((1, 2, 2, 2), np.uint8)
    values, slopes = gradient(losses.dice_cross_entropy(), labels, sure(labels + 1, 3, 3e4))
    assert np.isfinite(values).all() and np.isfinite(slopes).all()


def test_squared_error_starts_near_one_whatever_the_unit():
    ages = np.random.default_rng(0).normal(70, 8, 500).astype(np.float32)
    for unit in (1, 12, 365.25):
        guess = np.full((500, 1), ages.mean() * unit, np.float32)
        mean = losses.squared(ages.std() * unit)(ages * unit, guess).numpy().mean()
        assert mean == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("loss", [losses.squared(), losses.absolute(), losses.huber()])
def test_shapes_that_would_broadcast_are_refused(loss):
    for targets, outputs in (((4, 1), (4, 1)), ((4,), (4,)), ((4,), (4, 2))):
        with pytest.raises(ValueError, match="are not"):
            loss(np.zeros(targets, np.float32), np.zeros(outputs, np.float32))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: losses.squared(0.0), "scale is 0"),
        (lambda: losses.absolute(float("nan")), "scale is nan"),
        (lambda: losses.huber(0.0), "delta is 0"),
        (lambda: losses.focal(-1.0), "gamma is -1"),
        (lambda: losses.focal(2.0, 1.0), "label_smoothing is 1"),
        (lambda: losses.cross_entropy(-0.1), "label_smoothing is -0.1"),
        (lambda: losses.dice_cross_entropy(0.0), "divides 0 by 0"),
    ],
)
def test_impossible_parameters_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize(
    ("task", "name"), [(task, name) for name, kind in LOSSES.items() for task in kind.tasks]
)
def test_every_loss_that_a_configuration_may_name_is_computed_and_told(task, name):
    section = TaskConfig(name=task, loss=name)
    targets = {
        "classification": CLASSES,
        "regression": AGES,
        "segmentation": np.zeros((2, 2, 2, 2), np.uint8),
    }
    outputs = {"classification": LOGITS, "regression": YEARS, "segmentation": np.ones((2, 2, 2, 2, 3), "f4")}
    values = losses.of(section)(targets[task], outputs[task])
    assert values.shape == (len(targets[task]),) and np.isfinite(values).all()
    assert "{" not in section.loss_in_words
