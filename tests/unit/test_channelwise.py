"""Scaling of channels: values and gradients of the same of plain operations in float64."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.strategies.placed import normalising


@pytest.mark.parametrize("shape", [(2, 6, 5, 4, 3), (3, 7, 4), (5, 2), (1, 1, 1, 1, 6)])
def test_normalising_gives_the_values_and_gradients_of_float64(shape):
    random = np.random.default_rng(0)
    given = [random.normal(3, 2, shape), *(random.uniform(0.5, 2, shape[-1]) for _ in range(2))]
    back = random.normal(size=shape)

    axes = list(range(len(shape) - 1))

    def normalised(scaled, dtype):
        x, gamma, beta = (tf.constant(one, dtype) for one in given)
        with tf.GradientTape() as tape:
            tape.watch([x, gamma, beta])
            mean, variance = tf.nn.moments(x, axes)
            scale = gamma * tf.math.rsqrt(variance + 1e-2)
            y = scaled(x, scale, beta - mean * scale)
        return [y, *tape.gradient(y, [x, gamma, beta], tf.constant(back, dtype))]

    found = normalised(normalising.scaled, "float32")
    expected = normalised(lambda x, scale, offset: x * scale + offset, "float64")
    for mine, its in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-4)


def test_cudnn_is_never_given_more_samples_than_it_takes():
    shape = (2, 64, 64, 64, 3)
    graph = tf.function(normalising.scaled).get_concrete_function(
        tf.TensorSpec(shape), tf.TensorSpec((3,)), tf.TensorSpec((3,))
    )
    scaling = [one for one in graph.graph.get_operations() if one.type == "FusedBatchNormV3"]
    assert len(scaling) == 1
    assert scaling[0].inputs[0].shape[0] <= 65_535  # 442,368 failed on an H200


def test_only_float32_is_taken():
    assert normalising.can_take(tf.zeros((2, 3)))
    assert not normalising.can_take(tf.zeros((2, 3), "float64"))
    assert not normalising.can_take(tf.zeros((2, 3), "bfloat16"))


def test_a_mean_over_a_million_voxels_has_all_digits_of_float32():
    x = np.random.default_rng(0).normal(1, 1, (4, 64, 64, 64, 3)).astype(np.float32)
    found = normalising.reduced(tf.reduce_mean, tf.constant(x))
    np.testing.assert_allclose(found, x.mean(axis=(0, 1, 2, 3), dtype=np.float64), rtol=1e-6)
    assert normalising.reduced(tf.reduce_sum, tf.constant(x[:, :2, :2, :2]), kept=1).shape == (4, 3)
