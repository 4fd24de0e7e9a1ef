"""Grad-CAM, integrated gradients and occlusion, against answers known beforehand."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logsumexp
from wording import fails_with

from trainer import models
from trainer.errors import InputError, ModelError
from trainer.explain import score
from trainer.explain.gradcam import Axis, axes_of, choose_layer, enlarged, grad_cam, spatial_layers
from trainer.explain.integrated_gradients import integrated_gradients
from trainer.explain.occlusion import cubes, occlusion

SIDE = 8
SHAPE = (SIDE, SIDE, SIDE, 1)


def volumes(count: int = 2, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.5, 1.0, (count, *shape)).astype(np.float32)


def linear(outputs: int = 1, seed: int = 1) -> tuple[keras.Model, np.ndarray]:
    """Outputs that are weighted sums of the voxels; the weights (D, H, W, 1, outputs)."""
    volume = keras.Input(SHAPE)
    dense = keras.layers.Dense(outputs)
    model = keras.Model(volume, dense(keras.layers.Flatten()(volume)))
    weights = np.random.default_rng(seed).normal(size=(SIDE**3, outputs)).astype(np.float32)
    dense.set_weights([weights, np.full(outputs, 0.3, np.float32)])
    return model, weights.reshape(*SHAPE, outputs)


def two_features() -> keras.Model:
    """Features x and -2x on a grid of half the size; score: mean of 3 times the first and of the second."""
    volume = keras.Input(SHAPE)
    pooled = keras.layers.AveragePooling3D(2, name="halved")(volume)
    conv = keras.layers.Conv3D(2, 1, use_bias=False, name="features")
    features = conv(pooled)
    dense = keras.layers.Dense(1, use_bias=False)
    model = keras.Model(volume, dense(keras.layers.GlobalAveragePooling3D()(features)))
    conv.set_weights([np.array([1.0, -2.0], np.float32).reshape(1, 1, 1, 1, 2)])
    dense.set_weights([np.array([[3.0], [1.0]], np.float32)])
    return model


def small_network(classes: int = 2, covariates: int = 0) -> keras.Model:
    keras.utils.set_random_seed(5)
    return models.build("tiny", (16, 16, 16, 1), classes, width=4, covariates=covariates)


def halves(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), 4, 2, 4, 2, 4, 2).mean(axis=(2, 4, 6))


def test_the_score_is_the_log_odds_of_the_class() -> None:
    model, _ = linear(3)
    x = volumes(5)
    logits = model.predict(x, verbose=0).astype(np.float64)
    for k in range(3):
        others = np.delete(logits, k, axis=1)
        assert score.scores(model, x, k, batch=2) == pytest.approx(
            logits[:, k] - logsumexp(others, axis=1), abs=1e-4
        )
    each = score.scores(model, x, [0, 1, 2, 0, 1])
    assert each[2] == pytest.approx(score.scores(model, x[2:3], 2)[0], abs=1e-4)
    assert abs(each[2] - score.scores(model, x[2:3], 0)[0]) > 0.1
    shifted = score.of_outputs(logits + 7.0, 1).numpy()
    assert shifted == pytest.approx(score.of_outputs(logits, 1).numpy(), abs=1e-4)


def test_what_has_no_score_is_refused() -> None:
    model, _ = linear(3)
    for target in (None, 3, -1, [0, 5]):
        with pytest.raises(ModelError):
            score.scores(model, volumes(2), target)
    dense = keras.Sequential([keras.Input(SHAPE), keras.layers.Conv3D(2, 1)])
    with fails_with(ModelError):
        grad_cam(dense, volumes(1), 1)
    with fails_with(ModelError):
        score.scores(model, volumes(2), 1, covariates=np.zeros((2, 1), np.float32))
    with fails_with(ModelError):
        score.scores(small_network(covariates=2), volumes(1, (16, 16, 16, 1)), 1)


def test_grad_cam_of_a_linear_network_is_the_weighted_sum_of_its_features() -> None:
    x = volumes(3)
    found = grad_cam(two_features(), x)
    # Each feature's mean gradient is its weight over the 64 cells; 3 * x - 2 * x = x.
    coarse = np.maximum(halves(x[..., 0]) / 64, 0)
    assert found.shape == (3, SIDE, SIDE, SIDE) and found.dtype == np.float32
    expected = np.stack([enlarged(one, (Axis(0.5, 2.0),) * 3, (SIDE,) * 3) for one in coarse])
    assert np.abs(found - expected).max() < 1e-6
    assert found.max() > 0.001


def test_grad_cam_takes_the_last_grid_unless_told_another() -> None:
    model = small_network()
    grids = [model.get_layer(name).output.shape[1] for name in spatial_layers(model)]
    assert grids == sorted(grids, reverse=True) and grids[-1] == 2
    assert choose_layer(model) == "stage3_relu"
    assert choose_layer(model, "stage1_relu") == "stage1_relu"
    x = volumes(1, (16, 16, 16, 1))
    fine, coarse = grad_cam(model, x, 1, layer="stage1_relu"), grad_cam(model, x, 1)
    assert len(np.unique(fine)) > 8 * 8 and not np.array_equal(fine, coarse)
    with fails_with(ModelError):  # the cure names what there is
        grad_cam(model, x, 1, layer="head_pool")
    with fails_with(ModelError):
        grad_cam(linear(1)[0], volumes(1))


def test_enlarging_puts_cells_where_they_look_and_keeps_a_plane_a_plane() -> None:
    coarse = np.zeros((4, 4, 4), np.float32)
    coarse[1, 2, 3] = 1
    fine = enlarged(coarse, (Axis(3.0, 4.0), Axis(1.0, 4.0), Axis(0.0, 2.0)), (16, 16, 8))
    assert fine.shape == (16, 16, 8) and fine[7, 9, 6] == fine.max() == 1
    ramp = np.broadcast_to(np.arange(4, dtype=np.float32)[:, None, None], (4, 4, 4))
    assert np.diff(enlarged(ramp, (Axis(3.0, 4.0),) * 3, (16, 16, 16))[3:, 8, 8]) == pytest.approx(0.25)


@pytest.mark.parametrize("side", [16, 21])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_cells_lie_in_the_middle_of_the_voxels_that_reach_them(side: int, padding: str) -> None:
    """The middle as a gradient finds it, in a network whose weights are all 1."""
    volume = keras.Input((side, side, side, 1))
    x = keras.layers.ZeroPadding3D(((1, 0), (0, 2), (1, 1)))(volume)
    ones = {"kernel_initializer": "ones", "padding": padding}
    x = keras.layers.Conv3D(1, (3, 5, 2), strides=2, **ones)(x)
    x = keras.layers.Conv3D(1, 3, dilation_rate=2, padding="same", kernel_initializer="ones")(x)
    x = keras.layers.AveragePooling3D(2)(keras.layers.ReLU()(x))
    model = keras.Model(volume, keras.layers.Cropping3D(((0, 0), (1, 0), (0, 0)), name="last")(x))
    cell = [n // 2 for n in model.output_shape[1:4]]
    given = tf.Variable(np.ones((1, side, side, side, 1), np.float32))
    with tf.GradientTape() as tape:
        value = model(given)[0, cell[0], cell[1], cell[2], 0]
    reach = tape.gradient(value, given).numpy()[0, ..., 0]
    found = axes_of(model, "last")
    for k, index in enumerate(np.indices(reach.shape)):
        middle = float((index * reach).sum() / reach.sum())
        touches = np.any(np.take(reach, [0, -1], axis=k) != 0)  # cut off at the border: its middle has moved
        assert touches or found[k].first + found[k].step * cell[k] == pytest.approx(middle, abs=1e-4)


@pytest.mark.parametrize("name", ["tiny", "resnet18"])
def test_a_bright_spot_is_found_where_it_is(name: str) -> None:
    """With positive weights the map lies about the spot: on average over places, within a voxel."""
    keras.utils.set_random_seed(1)
    model = models.build(name, (32, 32, 32, 1), 1, width=2, normalisation="none")
    model.set_weights([np.abs(w) for w in model.get_weights()])
    layer = {"tiny": "stage3_relu", "resnet18": "stage2_block2_relu"}[name]
    off = []
    for place in range(8, 24):
        x = np.zeros((1, 32, 32, 32, 1), np.float32)
        x[0, place, place, place] = 1
        found = grad_cam(model, x, layer=layer)[0]
        middle = [float((i * found**2).sum() / (found**2).sum()) for i in np.indices(found.shape)]
        off.append(np.array(middle) - place)
    assert np.abs(np.mean(off, axis=0)).max() < 1


@pytest.mark.parametrize("baseline", [0.0, -1.5, "mean"])
def test_integrated_gradients_of_a_linear_network_are_its_weights_times_the_way(
    baseline: float | str,
) -> None:
    model, weights = linear(2)
    x = volumes(3)
    start = x.mean(axis=0) if baseline == "mean" else baseline
    found = integrated_gradients(model, x, [0, 1, 1], baseline=start, steps=3, batch=2)
    toward = weights[..., 1] - weights[..., 0]
    expected = np.stack([-1, 1, 1]).reshape(3, 1, 1, 1, 1) * toward * (x - start)
    assert found.values.shape == x.shape
    assert np.abs(found.values - expected).max() < 1e-4
    assert np.abs(found.gap).max() < 1e-3


def test_integrated_gradients_of_squares_are_exact() -> None:
    volume = keras.Input(SHAPE)
    summed = keras.layers.GlobalAveragePooling3D()(keras.layers.Multiply()([volume, volume]))
    model = keras.Model(volume, summed)
    x = volumes(2)
    found = integrated_gradients(model, x, baseline=0.5, steps=2)
    assert np.abs(found.values - (x**2 - 0.25) / SIDE**3).max() < 1e-6


@pytest.mark.parametrize(("activation", "most"), [("tanh", 1e-3), ("relu", 0.05)])
def test_attributions_add_up_to_the_difference_of_the_outputs(activation: str, most: float) -> None:
    """To rounding where the network is smooth; with kinks within the 5 % that the paper asks for."""
    keras.utils.set_random_seed(5)
    volume = keras.Input((16, 16, 16, 1))
    x = volume
    for channels in (4, 8):
        x = keras.layers.Conv3D(channels, 3, strides=2, activation=activation)(x)
    model = keras.Model(volume, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling3D()(x)))
    x = volumes(2, (16, 16, 16, 1))
    found = integrated_gradients(model, x, [0, 2], baseline=x.min(), steps=64)
    start = np.full_like(x, x.min())
    difference = score.scores(model, x, [0, 2]) - score.scores(model, start, [0, 2])
    assert found.difference == pytest.approx(difference)
    assert found.values.sum(axis=(1, 2, 3, 4)) - difference == pytest.approx(found.gap, abs=1e-4)
    assert np.all(np.abs(found.gap) < most * np.abs(difference))
    coarse = integrated_gradients(model, x, [0, 2], baseline=x.min(), steps=2)
    assert np.abs(coarse.gap).max() > 3 * np.abs(found.gap).max()


def test_occlusion_of_a_linear_network_is_what_the_cube_weighs() -> None:
    model, weights = linear(2)
    x = volumes(2)
    found = occlusion(model, x, 1, patch=4, stride=4, fill=-1.0, batch=3)
    weighed = ((weights[..., 1] - weights[..., 0]) * (x + 1.0))[..., 0]
    cubewise = weighed.reshape(2, 2, 4, 2, 4, 2, 4).sum(axis=(2, 4, 6))
    expected = np.kron(cubewise, np.ones((1, 4, 4, 4)))
    assert found.shape == (2, SIDE, SIDE, SIDE)
    assert np.abs(found - expected).max() < 1e-3


def test_overlapping_cubes_are_averaged_and_every_voxel_is_covered() -> None:
    model, weights = linear(1)
    x = volumes(1)
    found = occlusion(model, x, patch=4, stride=3)
    total, count = np.zeros((SIDE,) * 3), np.zeros((SIDE,) * 3)
    for cube in cubes((SIDE,) * 3, 4, 3):
        total[cube] += (weights[..., 0] * x[0])[cube].sum()
        count[cube] += 1
    assert count.min() >= 1 and count.max() > 1
    assert np.abs(found[0] - total / count).max() < 1e-3
    assert [c[0].start for c in cubes((8, 4, 4), 4, 3)] == [0, 3, 4]
    for wrong in ({"patch": 9, "stride": 4}, {"patch": 2, "stride": 3}, {"patch": 2, "stride": 0}):
        with fails_with(InputError):
            occlusion(model, x, **wrong)


def test_where_nothing_is_covered_nothing_changes_and_nothing_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, _ = linear(1)
    x = np.zeros((1, *SHAPE), np.float32)
    x[0, :4, :4, :4] = 1
    seen = []
    plain = score.scores
    monkeypatch.setattr(score, "scores", lambda m, v, *a, **k: seen.append(len(v)) or plain(m, v, *a, **k))
    found = occlusion(model, x, patch=4, stride=4)
    assert sum(seen) == 2  # the volume, and the one cube that holds something
    assert np.all(found[0, 4:] == 0) and np.all(found[0, :4, :4, :4] != 0)


def test_covariates_go_along_unchanged_in_all_three_methods() -> None:
    model = small_network(covariates=2)
    x = volumes(2, (16, 16, 16, 1))
    told, other = np.zeros((2, 2), np.float32), np.full((2, 2), 3.0, np.float32)
    # The covariates enter beside the image's features, so they move the score and no attribution.
    assert not np.allclose(
        score.scores(model, x, 1, covariates=told), score.scores(model, x, 1, covariates=other)
    )
    for explain in (
        lambda c: grad_cam(model, x, 1, covariates=c),
        lambda c: integrated_gradients(model, x, 1, covariates=c, steps=4).values,
        lambda c: occlusion(model, x, 1, covariates=c, patch=8, stride=8),
    ):
        assert np.abs(explain(told)).max() > 0
        assert np.abs(explain(told) - explain(other)).max() < 1e-5


def test_frozen_networks_are_explained_too() -> None:
    model, x = small_network(), volumes(1, (16, 16, 16, 1))
    before = grad_cam(model, x, 1), integrated_gradients(model, x, 1, steps=4).values
    model.trainable = False
    assert np.array_equal(before[0], grad_cam(model, x, 1))
    assert np.array_equal(before[1], integrated_gradients(model, x, 1, steps=4).values)


def test_a_network_without_weights_is_explained_too() -> None:
    volume = keras.Input(SHAPE)
    halved = keras.layers.AveragePooling3D(2)(volume)
    model = keras.Model(volume, keras.layers.GlobalAveragePooling3D()(halved))
    x = volumes(1)
    coarse = np.maximum(halves(x[..., 0]) / 64, 0)
    assert (
        np.abs(grad_cam(model, x)[0] - enlarged(coarse[0], (Axis(0.5, 2.0),) * 3, (SIDE,) * 3)).max() < 1e-6
    )
