"""Two convolutions for small images, the network on which filters were distributed first.

Marques, Falcao and Alexandre, "Distributed learning of CNNs on heterogeneous CPU/GPU architectures" (arXiv
1712.02546): two convolution layers of 5x5 kernels on CIFAR-10, in the sizes 50:500, 150:800, 300:1000 and
500:1500 kernels. Their full text we did not have: that the convolutions are not padded, the 2x2 maximum after
each and the one dense layer behind them are our choice.
"""

from __future__ import annotations

from typing import Any

import keras

from trainer.errors import ModelError
from trainer.models import layers
from trainer.models.registry import register

SIZES = ((50, 500), (150, 800), (300, 1000), (500, 1500))


@register("conv2", dimensions=2, paper="arXiv 1712.02546")
def conv2(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    width: int = 50,
    second: int | None = None,
    normalisation: str = "none",
    dropout: float = 0.0,
) -> keras.Model:
    """2D, two layers of 5x5 kernels, 50:500 or others, for images or volumes of one slice.

    Args:
        input_shape: (H, W, C) or (1, H, W, C).
        width: kernels of the first layer.
        second: kernels of the second layer; None for ten times as many as in the first.
    """
    kernels = (width, 10 * width if second is None else second)
    if not isinstance(kernels[1], int) or kernels[1] < 1:
        raise ModelError(
            f"conv2: second is {second!r}: it must be a whole number of kernels, at least 1.",
            key="model.options.second",
        )
    x: Any = keras.Input(input_shape, name="volume")
    image = x
    if len(input_shape) == 4:
        x = keras.layers.Reshape(input_shape[1:], name="image")(x)
    for stage, count in enumerate(kernels, start=1):
        name = f"stage{stage}"
        x = layers.convolution(x, count, 5, padding="valid", norm=normalisation, name=name)
        x = layers.max_pool(layers.relu(x, name=name), 2, strides=2, name=name)
    x = layers.drop(keras.layers.Flatten(name="head_flat")(x), dropout, name="head")
    logits = keras.layers.Dense(classes, dtype="float32", name="head_logits")(x)
    return keras.Model(image, logits, name="conv2")
