"""3D ResNet-18: the usual baseline for volumes.

He et al. (arXiv 1512.03385) in three dimensions as in Hara et al. (arXiv 1711.09577) and MedicalNet (arXiv
1904.00625): 7x7x7 stem, four stages of basic blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from trainer.models import layers
from trainer.models.registry import register


def residual_network(
    input_shape: tuple[int, int, int, int],
    classes: int,
    blocks: Sequence[int],
    *,
    width: int,
    normalisation: str,
    dropout: float,
    name: str,
    after_stage: Callable[[Any, int], Any] = lambda x, stage: x,
) -> keras.Model:
    """Stem, stages of `blocks[i]` residual blocks with `width * 2**i` channels, head.

    Args:
        after_stage: called with the output of each stage and the stage's number from 1; returns what goes on.
    """
    volume = keras.Input(input_shape, name="volume")
    x = layers.stem(volume, width, norm=normalisation)
    for stage, count in enumerate(blocks, start=1):
        for block in range(1, count + 1):
            x = layers.residual_block(
                x,
                width * 2 ** (stage - 1),
                strides=2 if stage > 1 and block == 1 else 1,
                norm=normalisation,
                name=f"stage{stage}_block{block}",
            )
        x = after_stage(x, stage)
    return keras.Model(volume, layers.head(x, classes, dropout=dropout), name=name)


@register("resnet18")
def resnet18(
    input_shape: tuple[int, int, int, int],
    classes: int,
    *,
    width: int = 64,
    normalisation: str = "batch",
    dropout: float = 0.0,
) -> keras.Model:
    """3D ResNet-18, the usual baseline."""
    return residual_network(
        input_shape,
        classes,
        (2, 2, 2, 2),
        width=width,
        normalisation=normalisation,
        dropout=dropout,
        name="resnet18",
    )
