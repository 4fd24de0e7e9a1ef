"""SFCN, the simple fully convolutional network for brain age.

Peng et al., "Accurate brain age prediction with lightweight deep neural networks" (Medical Image Analysis 68,
2021, 101871), figure 1: five blocks of a 3x3x3 convolution, batch normalisation, 2x2x2 maximum and ReLU; one
of a 1x1x1 convolution, batch normalisation and ReLU; mean over the volume, dropout 0.5 and a 1x1x1
convolution, which on one voxel is the dense layer written here.

The paper's network predicts a distribution over 40 age bins; with `outputs=1` it is a regression.
"""

from __future__ import annotations

import keras

from trainer.models import layers
from trainer.models.registry import register

# Channels of the blocks in widths: 32, 64, 128, 256, 256, 64 in the paper.
BLOCKS = (1, 2, 4, 8, 8, 2)


@register("sfcn", smallest=32, paper="doi 10.1016/j.media.2020.101871")
def sfcn(
    input_shape: tuple[int, int, int, int],
    classes: int,
    *,
    width: int = 32,
    normalisation: str = "batch",
    dropout: float = 0.5,
) -> keras.Model:
    """SFCN, a light fully convolutional network made for brain age."""
    x = volume = keras.Input(input_shape, name="volume")
    for number, widths in enumerate(BLOCKS, start=1):
        name = f"block{number}"
        last = number == len(BLOCKS)
        x = layers.convolution(x, widths * width, 1 if last else 3, norm=normalisation, name=name)
        if not last:
            x = layers.max_pool(x, 2, strides=2, name=name)
        x = layers.relu(x, name=name)
    return keras.Model(volume, layers.head(x, classes, dropout=dropout), name="sfcn")
