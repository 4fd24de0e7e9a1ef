"""What the networks are made of, against numpy and scipy in float64: outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import scipy.signal
import tensorflow as tf

from trainer.models import layers
from trainer.models.attention import self_attention
from trainer.models.resnet import bottleneck_block

Forward = Callable[..., np.ndarray]


def close(ours: np.ndarray, reference: np.ndarray, least: float = 0.0) -> None:
    """float32 against float64: a few hundred roundings of 6e-8, relative to the largest entry.

    Args:
        least: what to be relative to where all entries should be 0, or nearly so.
    """
    assert ours.shape == reference.shape
    size = max(np.abs(reference).max(), least)
    np.testing.assert_allclose(ours, reference, rtol=0, atol=2e-5 * size)


def check(model: keras.Model, x: np.ndarray, forward: Forward, seed: int = 0) -> None:
    """Compare a model's output, and the gradient of a random sum of it for x and all weights.

    Args:
        forward: the same in float64, called with x and the model's weights, in their order.
    """
    weights = [v.numpy().astype("float64") for v in model.trainable_variables]
    reference = forward(x.astype("float64"), *weights)
    with tf.GradientTape() as tape:
        inputs = tf.constant(x)
        tape.watch(inputs)
        outputs = model(inputs, training=True)
        factors = np.random.default_rng(seed).normal(size=outputs.shape)
        total = tf.reduce_sum(outputs * tf.constant(factors, tf.float32))
    close(np.asarray(outputs), reference)
    gradients = tape.gradient(total, [inputs, *(v.value for v in model.trainable_variables)])
    values = [x.astype("float64"), *weights]
    references = []
    for place, value in enumerate(values):

        def changed(moved: np.ndarray, place: int = place) -> float:
            return float(np.sum(factors * forward(*values[:place], moved, *values[place + 1 :])))

        references.append(differences(changed, value))
    # Some gradients are 0, as that of a bias which moves all scores of a softmax alike.
    least = 0.01 * max(np.abs(reference).max() for reference in references)
    for gradient, gradient_reference in zip(gradients, references, strict=True):
        close(np.asarray(gradient), gradient_reference, least)


def differences(function: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Gradient by central differences."""
    gradient = np.empty(at.shape)
    for index in np.ndindex(at.shape):
        moved = np.array(at)
        moved[index] += step
        above = function(moved)
        moved[index] -= 2 * step
        gradient[index] = (above - function(moved)) / (2 * step)
    return gradient


def noise(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def shaken(model: keras.Model) -> keras.Model:
    """The model with random weights: scales of 1 or 0 and shifts of 0 would hide mistakes."""
    rng = np.random.default_rng(2)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    return model


def convolved(x: np.ndarray, kernel: np.ndarray, strides: int) -> np.ndarray:
    """`(B, D, H, W, C)` by `(k, k, k, C, F)`, padded with zeros so that ceil(size / strides) come out."""
    pads = []
    for size in x.shape[1:4]:
        total = max((-(-size // strides) - 1) * strides + kernel.shape[0] - size, 0)
        pads.append((total // 2, total - total // 2))
    x = np.pad(x, [(0, 0), *pads, (0, 0)])
    maps = [
        sum(
            scipy.signal.correlate(sample[..., c], kernel[..., c, f], mode="valid")
            for c in range(kernel.shape[3])
        )
        for sample in x
        for f in range(kernel.shape[4])
    ]
    stacked = np.moveaxis(np.reshape(maps, (len(x), kernel.shape[4], *maps[0].shape)), 1, -1)
    return stacked[:, ::strides, ::strides, ::strides]


@pytest.mark.parametrize(("kernel", "strides"), [(3, 1), (3, 2), (1, 2), (7, 2), (11, 4)])
def test_a_convolution_with_stride_is_scipys(kernel, strides):
    volume = keras.Input((5, 4, 3, 2))
    model = keras.Model(volume, layers.convolution(volume, 3, kernel, strides=strides, norm="none", name="c"))
    weights = shaken(model).get_weights()
    x = noise(2, 5, 4, 3, 2)
    reference = convolved(x.astype("float64"), weights[0].astype("float64"), strides) + weights[1]
    close(np.asarray(model(x)), reference)


def test_the_gradient_of_a_convolution_with_stride_is_that_of_scipys():
    volume = keras.Input((4, 3, 3, 2))
    out = layers.convolution(volume, 2, 3, strides=2, norm="none", name="c")
    check(
        shaken(keras.Model(volume, out)),
        noise(1, 4, 3, 3, 2),
        lambda x, kernel, bias: convolved(x, kernel, 2) + bias,
    )


def standardised(x: np.ndarray, groups: int) -> np.ndarray:
    """Each sample's channels in `groups` groups, each with mean 0 and variance 1."""
    parts = x.reshape(*x.shape[:-1], groups, -1)
    axes = (1, 2, 3, 5)
    mean, variance = parts.mean(axes, keepdims=True), parts.var(axes, keepdims=True)
    return ((parts - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape)


@pytest.mark.parametrize(("kind", "groups"), [("group", 2), ("instance", 8), ("layer", 1)])
def test_a_normalisation_within_a_sample_is_that_of_its_formula(kind, groups):
    volume = keras.Input((3, 2, 2, 8))
    model = shaken(keras.Model(volume, layers.normalised(volume, kind, name="n")))
    x = 3 * noise(2, 3, 2, 2, 8) + 5
    check(model, x, lambda x, gamma, beta: gamma * standardised(x, groups) + beta)


def test_a_bottleneck_block_is_that_of_its_description():
    volume = keras.Input((3, 2, 2, 3))
    model = keras.Model(volume, bottleneck_block(volume, 2, strides=2, norm="layer", name="b"))
    shaken(model)

    def forward(x, *weights):
        by_name = dict(zip((v.path for v in model.trainable_variables), weights, strict=True))

        def part(x, name, strides=1):
            y = standardised(convolved(x, by_name[f"b_{name}_conv/kernel"], strides), 1)
            return by_name[f"b_{name}_norm/gamma"] * y + by_name[f"b_{name}_norm/beta"]

        y = np.maximum(part(x, "1"), 0)
        y = np.maximum(part(y, "2", strides=2), 0)
        return np.maximum(part(y, "3") + part(x, "shortcut", strides=2), 0)

    check(model, noise(1, 3, 2, 2, 3), forward)


def test_self_attention_and_its_gradients_are_those_of_the_paper():
    volume = keras.Input((2, 3, 2, 8))
    model = shaken(keras.Model(volume, self_attention(volume, name="a")))
    order = [v.path for v in model.trainable_variables]

    def forward(x, *weights):
        by_name = dict(zip(order, weights, strict=True))

        def project(part):
            kernel, bias = by_name[f"a_{part}/kernel"], by_name[f"a_{part}/bias"]
            return x.reshape(len(x), -1, 8) @ kernel[0, 0, 0] + bias

        f, g, h = (project(part) for part in "fgh")
        scores = np.einsum("njc,nic->nji", g, f)
        beta = np.exp(scores - scores.max(-1, keepdims=True))
        beta /= beta.sum(-1, keepdims=True)
        return by_name["a_sum/gamma"] * (beta @ h).reshape(x.shape) + x

    check(model, noise(2, 2, 3, 2, 8), forward)


def test_an_up_convolution_writes_each_voxel_into_its_own_eight():
    from trainer import models

    model = models.build("unet3d", (8, 8, 8, 1), 2, dense=True, width=2, depth=1, normalisation="none")
    grow = model.get_layer("up0_grow")
    x = noise(1, 3, 2, 2, grow.kernel.shape[-1])
    kernel = grow.kernel.numpy().astype("float64")  # (2, 2, 2, out, in)
    reference = np.einsum("ndhwc,ijkfc->ndihjwkf", x.astype("float64"), kernel)
    close(np.asarray(grow(x)), reference.reshape(1, 6, 4, 4, -1))
