"""3D DenseNet-121: every layer sees the feature maps of all layers before it in its block.

Huang et al., "Densely Connected Convolutional Networks" (arXiv 1608.06993), table 1, DenseNet-BC: layers of
normalisation, ReLU and convolution, 1x1x1 to four times the growth rate and then 3x3x3, in three dimensions
as MONAI has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from trainer.errors import ModelError
from trainer.models import layers
from trainer.models.registry import register

BOTTLENECK = 4


@register("densenet121", paper="arXiv 1608.06993")
def densenet121(
    input_shape: tuple[int, int, int, int],
    classes: int,
    *,
    width: int = 64,
    normalisation: str = "batch",
    dropout: float = 0.0,
    growth_rate: int | None = None,
    compression: float = 0.5,
    blocks: Sequence[int] = (6, 12, 24, 16),
) -> keras.Model:
    """3D DenseNet-121, dense blocks 6-12-24-16.

    Args:
        width: channels of the stem; the paper has twice the growth rate.
        growth_rate: channels that each layer adds; None for half the width.
        compression: share of the channels that a transition between blocks keeps.
    """
    if not 0 < compression <= 1:
        raise ModelError(
            f"compression is {compression!r}: it must be above 0 and at most 1.",
            key="model.options.compression",
        )
    if growth_rate is not None and (not isinstance(growth_rate, int) or growth_rate < 1):
        raise ModelError(
            f"growth_rate is {growth_rate!r}: it must be a whole number of channels, at least 1.",
            key="model.options.growth_rate",
        )
    if not blocks or not all(isinstance(count, int) and count > 0 for count in blocks):
        raise ModelError(
            f"blocks is {list(blocks)!r}: it must be a list of whole numbers of layers.",
            key="model.options.blocks",
        )
    growth = max(1, width // 2) if growth_rate is None else growth_rate
    volume = keras.Input(input_shape, name="volume")
    x = layers.stem(volume, width, norm=normalisation)
    for block, count in enumerate(blocks, start=1):
        for layer in range(1, count + 1):
            x = _dense_layer(x, growth, norm=normalisation, name=f"block{block}_layer{layer}")
        if block < len(blocks):
            kept = max(1, int(compression * x.shape[-1]))
            x = _convolution(x, kept, 1, norm=normalisation, name=f"transition{block}")
            pool = keras.layers.AveragePooling3D(
                2, padding="same", dtype=layers.pooling_dtype(), name=f"transition{block}_pool"
            )
            x = pool(x)
    x = layers.relu(layers.normalised(x, normalisation, name="last"), name="last")
    return keras.Model(volume, layers.head(x, classes, dropout=dropout), name="densenet121")


def _dense_layer(x: Any, growth: int, *, norm: str, name: str) -> Any:
    """What is there already, and `growth` new channels made of it."""
    y = _convolution(x, BOTTLENECK * growth, 1, norm=norm, name=f"{name}_1")
    y = _convolution(y, growth, 3, norm=norm, name=f"{name}_2")
    return keras.layers.Concatenate(name=f"{name}_joined")([x, y])


def _convolution(x: Any, channels: int, kernel: int, *, norm: str, name: str) -> Any:
    """Normalisation, ReLU, and then the convolution."""
    x = layers.relu(layers.normalised(x, norm, name=name), name=name)
    convolution = keras.layers.Conv3D(
        channels,
        kernel,
        padding="same",
        use_bias=norm == "none",
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )
    return convolution(x)
