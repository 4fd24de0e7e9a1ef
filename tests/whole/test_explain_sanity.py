"""The sanity check itself: what it calls alike, and which maps pass it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import models
from trainer.explain import sanity
from trainer.explain.gradcam import grad_cam
from trainer.explain.integrated_gradients import integrated_gradients

SIDE = 16


def blobs(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noise; volumes of class 1 have a bright cube somewhere in their left half."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 0.3, (count, SIDE, SIDE, SIDE, 1)).astype(np.float32)
    y = np.arange(count) % 2
    for k in np.flatnonzero(y):
        a, b, c = rng.integers(1, (6, 11, 11))
        x[k, a : a + 4, b : b + 4, c : c + 4] += 2
    return x, y


@pytest.fixture(scope="module")
def trained() -> keras.Model:
    keras.utils.set_random_seed(3)
    model = models.build("tiny", (SIDE, SIDE, SIDE, 1), 2, width=4)
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = blobs(64)
    model.fit(x, y, batch_size=16, epochs=12, verbose=0)
    return model


def test_structural_similarity_is_that_of_the_paper() -> None:
    """Against TensorFlow's, which knows pictures only: volumes that are the same in every slice."""
    rng = np.random.default_rng(0)
    first = rng.random((24, 24)).astype(np.float32)
    second = np.clip(first + rng.normal(0, 0.2, first.shape), 0, 1).astype(np.float32)
    stack = [np.broadcast_to(p, (24, 24, 24)) for p in (first, second)]
    whole = tf.image.ssim(
        first[None, ..., None], second[None, ..., None], 1.0, return_index_map=True
    ).numpy()[0]
    ours = sanity.ssim_map(*stack)[12, 5:-5, 5:-5]
    assert np.abs(ours - whole).max() < 1e-4
    assert sanity.ssim(stack[0], stack[0]) == pytest.approx(1)


def test_a_map_is_like_itself_and_unlike_another() -> None:
    rng = np.random.default_rng(1)
    maps, other = rng.random((2, 3, 12, 12, 12))
    assert sanity.similarity(maps, maps) == pytest.approx((1, 1))
    assert sanity.similarity(maps, 5 * maps**3)[0] == pytest.approx(1)  # ranks do not care
    ranks, structure = sanity.similarity(maps, other)
    assert abs(ranks) < 0.1 and structure < 0.5
    empty = np.zeros_like(maps)
    assert sanity.similarity(maps, empty)[0] == 0 and sanity.similarity(empty, empty) == pytest.approx((1, 1))


def test_shuffling_keeps_a_tensors_values_and_the_model_given(trained: keras.Model) -> None:
    before = trained.get_weights()
    random = sanity.randomised(trained, seed=1)
    for old, kept, new in zip(before, trained.get_weights(), random.get_weights(), strict=True):
        assert np.array_equal(old, kept)
        assert np.array_equal(np.sort(old.ravel()), np.sort(new.ravel()))
    assert sum(not np.array_equal(a, b) for a, b in zip(before, random.get_weights(), strict=True)) > 8
    again, other = sanity.randomised(trained, seed=1), sanity.randomised(trained, seed=2)
    assert all(np.array_equal(a, b) for a, b in zip(random.get_weights(), again.get_weights(), strict=True))
    assert not np.array_equal(random.get_weights()[0], other.get_weights()[0])
    last = sanity.randomised(trained, seed=1, layers=["head_logits"])
    changed = [
        layer.name
        for layer, same in zip(trained.layers, last.layers, strict=True)
        if any(not np.array_equal(a, b) for a, b in zip(layer.get_weights(), same.get_weights(), strict=True))
    ]
    assert changed == ["head_logits"]


@pytest.mark.parametrize("method", ["gradcam", "integrated gradients"])
def test_maps_of_a_trained_network_are_lost_when_its_weights_are(trained: keras.Model, method: str) -> None:
    x, y = blobs(40, seed=9)
    assert (trained.predict(x, verbose=0).argmax(axis=1) == y).mean() > 0.9, "it has learned"
    shown = x[1:12:2]

    def explain(model: keras.Model) -> np.ndarray:
        if method == "gradcam":
            return grad_cam(model, shown, 1, layer="stage1_relu")
        return integrated_gradients(model, shown, 1, steps=8).values[..., 0]

    story = sanity.cascade(trained, explain, seed=0, most=4)
    assert [s.randomised for s in story] == sorted(s.randomised for s in story)
    assert story[0].layer is None and story[0].rank_correlation == pytest.approx(1)
    assert story[1].layer == "head_logits" and story[-1].layer == "stage1_conv"
    assert story[-1].rank_correlation < 0.5 and story[-1].ssim < 0.9
    assert story[-1].rank_correlation < story[0].rank_correlation


def test_a_map_that_ignores_the_network_fails_the_check(trained: keras.Model) -> None:
    """As an edge detector would, which Adebayo et al. show some methods to be."""
    x, _ = blobs(4, seed=9)
    story = sanity.cascade(trained, lambda model: np.abs(x[..., 0]), most=3)
    assert all(s.rank_correlation == pytest.approx(1) and s.ssim == pytest.approx(1) for s in story)


def test_the_trained_map_lies_on_the_bright_cube_and_the_random_one_does_not(trained: keras.Model) -> None:
    x, y = blobs(40, seed=9)
    shown = x[y == 1]
    cube = shown[..., 0] > 1.2

    def share(maps: np.ndarray) -> float:
        return float(
            np.mean([(m * c).sum() / m.sum() for m, c in zip(maps, cube, strict=True) if m.sum() > 0])
        )

    chance = float(cube.mean())
    found = share(grad_cam(trained, shown, 1, layer="stage1_relu"))
    random = share(grad_cam(sanity.randomised(trained, 0), shown, 1, layer="stage1_relu"))
    assert found > 5 * chance and found > 2 * random


def test_weights_are_randomised_from_the_last_layer_to_the_first(trained: keras.Model) -> None:
    stages = []

    def changed(model: keras.Model) -> np.ndarray:
        pairs = zip(trained.layers, model.layers, strict=True)
        differing = [
            old.name
            for old, new in pairs
            if any(
                not np.array_equal(a, b) for a, b in zip(old.get_weights(), new.get_weights(), strict=True)
            )
        ]
        stages.append(differing)
        return np.ones((1, 4, 4, 4))

    story = sanity.cascade(trained, changed, most=20)
    names = sanity.layers_with_weights(trained)
    assert names[0] == "stage1_conv" and names[-1] == "head_logits"
    assert stages == [names[len(names) - count :] for count in range(len(names) + 1)]
    assert [s.layer for s in story[1:]] == names[::-1]
