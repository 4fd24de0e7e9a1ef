"""The U-Nets: what each voxel's logits depend on, and sizes that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from network_cases import small

from trainer import models
from trainer.errors import ModelError

both = pytest.mark.parametrize("name", models.names(dense=True))


def unet(name: str, side: int, **options):
    options = {"width": 2, "depth": 1, "normalisation": "none", **options}
    return small(name, sides=(side, side, side), **options)


@both
def test_it_moves_with_the_volume(name):
    # 2**depth voxels, so that the pooling falls on the same voxels; away from the padding.
    model = unet(name, 32)
    x = np.random.default_rng(0).normal(size=(1, 32, 32, 32, 1)).astype("float32")
    shift = 2
    moved = np.roll(x, shift, axis=1)
    inside = slice(12, 20)
    here = np.asarray(model(x))[:, inside, inside, inside]
    there = np.asarray(model(moved))[:, 12 + shift : 20 + shift, inside, inside]
    np.testing.assert_allclose(there, here, atol=1e-5)
    assert not np.allclose(np.asarray(model(moved))[:, inside, inside, inside], here, atol=1e-3)


@both
@pytest.mark.parametrize(("open_way", "arrives"), [("below", True), ("beside", True), ("none", False)])
def test_a_voxel_reaches_its_logits_from_below_and_from_beside(name, open_way, arrives):
    model = unet(name, 8, width=4)
    if open_way != "below":
        silence(model.get_layer("up0_grow"))
    if open_way != "beside":
        beside = model.get_layer("up0_joined").input[0].shape[-1]
        silence(model.get_layer("up0_1_conv"), beside)
        if name == "unet3d_residual":
            silence(model.get_layer("up0_shortcut_conv"), beside)
    x = np.zeros((2, 8, 8, 8, 1), "float32")
    x[1, 3, 4, 5] = 10
    logits = np.asarray(model(x))
    assert np.array_equal(logits[0], logits[1]) != arrives


def silence(layer, channels=None):
    """Make a convolution deaf to its first channels, or to all."""
    kernel = layer.kernel.numpy()
    kernel[..., :channels, :] = 0
    layer.kernel.assign(kernel)


@both
@pytest.mark.parametrize(
    ("sides", "depth", "says"),
    [
        ((20, 24, 16), 3, "volumes of 20x24x16 voxels cannot be halved 3 times"),
        ((20, 24, 16), 3, "model.options.depth=2"),
        ((24, 24, 24), 4, "divisible by 16, or set model.options.depth=3"),
        ((17, 16, 16), 1, "each side must be divisible by 2"),
        ((16, 16, 16), 0, "depth is 0"),
        ((16, 16, 16), 1.5, "depth is 1.5"),
    ],
)
def test_a_size_that_does_not_fit_is_told_with_what_does(name, sides, depth, says):
    with pytest.raises(ModelError) as caught:
        small(name, sides=sides, depth=depth)
    assert says in str(caught.value)


@both
def test_an_odd_size_is_not_offered_a_depth_of_none(name):
    with pytest.raises(ModelError) as caught:
        small(name, sides=(17, 16, 16), depth=1)
    assert "model.options.depth" not in str(caught.value)


@both
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_its_bottom_is_halved_as_often_as_is_asked(name, depth):
    model = small(name, sides=(16, 32, 16), depth=depth, make=models.outline)
    bottom = next(layer for layer in model.layers if layer.name.startswith("bottom"))
    assert bottom.output.shape[1:4] == (16 // 2**depth, 32 // 2**depth, 16 // 2**depth)
    assert model.output_shape == (None, 16, 32, 16, 2)
