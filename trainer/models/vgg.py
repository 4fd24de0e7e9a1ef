"""VGG-like networks for volumes: stacks of 3x3x3 convolutions between poolings.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (arXiv
1409.1556), table 1, configurations A, B, D and E, in three dimensions. Two things are ours: a normalisation
after each convolution, and the mean over the volume in place of the flattened feature map, whose first dense
layer would alone have 719 million weights at 224 voxels a side. `hidden=4096` puts the two dense layers of
the original back.
"""

from __future__ import annotations

import keras

from trainer.errors import ModelError
from trainer.models import layers
from trainer.models.registry import register

# Convolutions in each of the five stages.
STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


@register("vgg", smallest=32, paper="arXiv 1409.1556")
def vgg(
    input_shape: tuple[int, int, int, int],
    classes: int,
    *,
    width: int = 64,
    normalisation: str = "batch",
    dropout: float = 0.0,
    depth: int = 11,
    hidden: int = 0,
) -> keras.Model:
    """VGG-like 3D network of 11 layers, or 13, 16, 19.

    Args:
        depth: layers with weights, counted as in the paper, which has three dense ones.
        hidden: units of each of the two dense layers before the last; 0 for none.
    """
    if depth not in STAGES:
        known = ", ".join(map(str, STAGES))
        raise ModelError(
            f"vgg: depth is {depth!r}: there are configurations of {known} layers.", key="model.options.depth"
        )
    x = volume = keras.Input(input_shape, name="volume")
    for stage, count in enumerate(STAGES[depth], start=1):
        channels = width * 2 ** min(stage - 1, 3)
        for number in range(1, count + 1):
            name = f"stage{stage}_{number}"
            x = layers.relu(layers.convolution(x, channels, 3, norm=normalisation, name=name), name=name)
        x = layers.max_pool(x, 2, strides=2, name=f"stage{stage}")
    return keras.Model(volume, layers.head(x, classes, dropout=dropout, hidden=hidden), name="vgg")
