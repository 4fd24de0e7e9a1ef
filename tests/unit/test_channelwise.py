"""Scaling of channels: values and gradients of the same of plain operations in float64."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.strategies.placed import channelwise


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

    found = normalised(channelwise.scaled, "float32")
    expected = normalised(lambda x, scale, offset: x * scale + offset, "float64")
    for mine, its in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-4)


def test_only_float32_is_taken():
    assert channelwise.can_take(tf.zeros((2, 3)))
    assert not channelwise.can_take(tf.zeros((2, 3), "float64"))
    assert not channelwise.can_take(tf.zeros((2, 3), "bfloat16"))
