"""AlexNet-like network for volumes: few and large convolutions.

Krizhevsky et al. (NeurIPS 2012) in the single-tower form of Krizhevsky (arXiv 1404.5997), with the channels
that torchvision gives it, in three dimensions. Ours: a normalisation after each convolution, padding that
keeps ceil(size / stride), and the mean over the volume in place of the flattened feature map; `hidden=4096`
puts the two dense layers of the original back behind it.
"""

from __future__ import annotations

import keras

from trainer.models import layers
from trainer.models.registry import register

# (channels in widths, kernel, stride, whether a pooling follows) of each convolution.
CONVOLUTIONS = ((1, 11, 4, True), (3, 5, 1, True), (6, 3, 1, False), (4, 3, 1, False), (4, 3, 1, True))


@register("alexnet", smallest=32, paper="arXiv 1404.5997")
def alexnet(
    input_shape: tuple[int, int, int, int],
    classes: int,
    *,
    width: int = 64,
    normalisation: str = "batch",
    dropout: float = 0.0,
    hidden: int = 0,
) -> keras.Model:
    """AlexNet-like 3D network of five convolutions.

    Args:
        hidden: units of each of the two dense layers before the last; 0 for none.
    """
    x = volume = keras.Input(input_shape, name="volume")
    for stage, (widths, kernel, strides, pooled) in enumerate(CONVOLUTIONS, start=1):
        name = f"stage{stage}"
        x = layers.convolution(x, widths * width, kernel, strides=strides, norm=normalisation, name=name)
        x = layers.relu(x, name=name)
        if pooled:
            x = layers.max_pool(x, 3, strides=2, padding="same", name=name)
    return keras.Model(volume, layers.head(x, classes, dropout=dropout, hidden=hidden), name="alexnet")
