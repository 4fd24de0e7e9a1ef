"""Networks of a few thousand weights: for tests, and to begin a study with."""

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
    pool: str = "mean",
) -> keras.Model:
    """Three 3x3x3 convolutions with stride 2, for tests and first trials; `pool: none` keeps places apart."""
    x = volume = keras.Input(input_shape, name="volume")
    for stage in (1, 2, 3):
        name = f"stage{stage}"
        x = layers.convolution(x, width * 2 ** (stage - 1), 3, strides=2, norm=normalisation, name=name)
        x = layers.relu(x, name=name)
    return keras.Model(volume, layers.head(x, classes, dropout=dropout, pool=pool), name="tiny")


@register("small")
def small(
    input_shape: tuple[int, int, int, int],
    classes: int,
    *,
    width: int = 16,
    normalisation: str = "none",
    dropout: float = 0.0,
    pool: str = "none",
) -> keras.Model:
    """`tiny`, wider, without normalisation, and with a head that sees where something is; the default.

    docs/explanation/recipes.md judges it beside a linear model on cohorts of a few hundred subjects.
    """
    return tiny(input_shape, classes, width=width, normalisation=normalisation, dropout=dropout, pool=pool)
