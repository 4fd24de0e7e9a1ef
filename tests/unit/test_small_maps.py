"""Convolutions in bfloat16 whose kernel is larger than their map compute in float32, and no others do."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import models
from trainer.models import small_maps
from trainer.runs import starting

CASES = {
    "same, larger kernel": (lambda: keras.layers.Conv3D(4, 3, padding="same"), 2, True),
    "same, as large": (lambda: keras.layers.Conv3D(4, 3, padding="same"), 3, False),
    "of one voxel": (lambda: keras.layers.Conv3D(4, 1, padding="same"), 1, False),
    "along one axis": (lambda: keras.layers.Conv3D(4, (1, 1, 5), padding="same"), 4, True),
    "dilated": (lambda: keras.layers.Conv3D(4, 3, dilation_rate=2, padding="same"), 4, True),
    "valid": (lambda: keras.layers.Conv3D(4, 2), 2, False),
    "transposed, to a smaller map": (lambda: keras.layers.Conv3DTranspose(4, 3, padding="same"), 2, True),
    "transposed, to a larger map": (
        lambda: keras.layers.Conv3DTranspose(4, 2, strides=2, padding="same"),
        1,
        False,
    ),
    "float32": (lambda: keras.layers.Conv3D(4, 3, padding="same", dtype="float32"), 2, True),
}


@pytest.fixture
def in_bfloat16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("name", CASES)
def test_what_computes_in_float32(in_bfloat16, name):
    make, edge, expected = CASES[name]
    volume = keras.Input((edge, edge, edge, 2))
    layer = make()
    model = keras.Model(volume, layer(volume))
    found = small_maps.in_float32(model)
    assert found == ([layer.name] if expected and name != "float32" else [])
    assert (layer.compute_dtype == "float32") == expected
    assert model(np.ones((1, edge, edge, edge, 2), "float32")).dtype == layer.compute_dtype


@pytest.mark.parametrize("name", ["unet3d", "resnet10", "tiny"])
def test_gradients_of_a_network_on_a_small_volume_are_those_of_float32_but_for_rounding(in_bfloat16, name):
    """Memory that was used before holds NaN, as far as a test can see to it."""
    dense = name == "unet3d"
    gradients = {}
    random = np.random.default_rng(0)
    volumes = random.normal(size=(2, 16, 16, 16, 1)).astype("float32")
    for policy in ("float32", "mixed_bfloat16"):
        keras.config.set_dtype_policy(policy)
        keras.utils.set_random_seed(1)
        model = models.build(name, (16, 16, 16, 1), 2, width=4, dense=dense)
        found = []
        for _ in range(6):
            del [*map(tf.identity, (tf.fill([2**n], np.float32(np.nan)) for n in range(4, 20)))][:]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.cast(model(volumes, training=False), "float32") - 1))
            found.append([g.numpy() for g in tape.gradient(loss, model.trainable_variables)])
        gradients[policy] = found
    largest = max(float(np.abs(one).max()) for one in gradients["float32"][0])
    for found in gradients["mixed_bfloat16"]:
        for mine, its in zip(found, gradients["float32"][0], strict=True):
            assert np.isfinite(mine).all()
            np.testing.assert_allclose(mine, its, rtol=0, atol=0.1 * largest)


def test_a_run_names_the_layers_that_compute_in_float32_all_the_same(in_bfloat16):
    model = models.build("tiny", (16, 16, 16, 1), 2)
    named = starting.float32_layers(model, "mixed_bfloat16")
    assert named[-1] == "head_logits" and len(named) < len(model.layers)
    assert starting.float32_layers(model, "float32") == []
