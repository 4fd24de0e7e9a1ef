"""A network that computes nothing: its layers wait, as long as an accelerator would take for them.

While a GPU computes, the host's cores are free to move gradients. On a machine without one, a network that
computes needs those cores itself, so only an emulated accelerator shows what a reduction hides behind the
backward pass. A benchmark takes it as `--model benchmarks/emulated_accelerator.py:network`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# A ResNet-18's proportions: four stages of four convolutions; each stage has an eighth of the voxels and
# twice the channels of the one before, hence half the work and four times the weights.
STAGES, PER_STAGE = 4, 4


def network(
    input_shape: Sequence[int],
    classes: int,
    *,
    width: int = 16,
    forward_s: float = 0.07,
    backward_s: float = 0.14,
    layers: Sequence[tuple[Sequence[int], float, float]] = (),
) -> keras.Model:
    """Return a chain of waiting layers with the weights of a 3D ResNet-18, or with those of any network.

    Args:
        input_shape: (D, H, W, C).
        classes: outputs.
        width: channels of the first stage; a stage's convolutions have 27 x channels^2 weights.
        forward_s: seconds that all layers' forward pass takes.
        backward_s: the same of the backward pass.
        layers: of each layer the elements of its variables, and its seconds forward and backward; instead of
            `width`, `forward_s` and `backward_s`.
    """
    inputs = keras.Input(tuple(input_shape))
    x = keras.layers.GlobalAveragePooling3D()(inputs)
    x = keras.layers.Dense(classes, dtype="float32")(x)
    for number, layer in enumerate(layers or _resnet18(width, forward_s, backward_s)):
        x = _Waits(*layer, name=f"layer_{number}")(x)
    return keras.Model(inputs, x, name="emulated_accelerator")


def _resnet18(width: int, forward_s: float, backward_s: float) -> list[tuple[list[int], float, float]]:
    shares = np.repeat(0.5 ** np.arange(STAGES), PER_STAGE)
    shares /= shares.sum()
    channels = width * 2 ** np.repeat(np.arange(STAGES), PER_STAGE)
    return [
        ([27 * int(count) ** 2], share * forward_s, share * backward_s)
        for count, share in zip(channels, shares, strict=True)
    ]


class _Waits(keras.layers.Layer):
    """Hands on what it gets; has weights, and gradients for them."""

    def __init__(self, weights: Sequence[int], forward_s: float, backward_s: float, **options: Any) -> None:
        super().__init__(**options)
        self.sizes, self.forward_s, self.backward_s = tuple(weights), forward_s, backward_s

    def build(self, input_shape: Any) -> None:
        self.kernels = [
            self.add_weight(shape=(size,), initializer="zeros", name=f"kernel_{number}")
            for number, size in enumerate(self.sizes)
        ]
        self.built = True

    def call(self, inputs: Any) -> Any:
        @tf.custom_gradient
        def waits(x: Any, *kernels: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
            def gradient(upstream: Any) -> tuple[Any, ...]:
                # As on a device's stream: the layer's two gradients one after the other, then the next layer.
                down = _after(self.backward_s, upstream)
                # Made from what was waited for: a constant would be reduced once, before the first step.
                mean = tf.reduce_mean(down)
                return down, *(tf.fill((size,), mean) for size in self.sizes)

            return _after(self.forward_s, x), gradient

        return waits(inputs, *(kernel.value for kernel in self.kernels))


def _after(seconds: float, tensor: Any) -> Any:
    def wait(value: np.ndarray) -> np.ndarray:
        time.sleep(seconds)
        return value

    # TensorFlow does what has state in the order of the program: what hands gradients over, all waits first.
    waited = tf.numpy_function(wait, [tensor], tensor.dtype, stateful=False)
    waited.set_shape(tensor.shape)
    return waited
