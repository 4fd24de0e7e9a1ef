"""A network of a few thousand weights, for tests and for trying things out."""

from __future__ import annotations

import keras

from trainer.models import layers
from trainer.models.registry import register


@register("tiny")
def tiny(
    input_shape: tuple[int, int, int, int],
    classes: int,
    *,
    width: int = 8,
    normalisation: str = "batch",
    dropout: float = 0.0,
) -> keras.Model:
    """Three 3x3x3 convolutions with stride 2, for tests and first trials."""
    x = volume = keras.Input(input_shape, name="volume")
    for stage in (1, 2, 3):
        name = f"stage{stage}"
        x = layers.convolution(x, width * 2 ** (stage - 1), 3, strides=2, norm=normalisation, name=name)
        x = layers.relu(x, name=name)
    return keras.Model(volume, layers.head(x, classes, dropout=dropout), name="tiny")
