"""3D U-Net, plain and with residual blocks: an output for each voxel.

`unet3d` is Cicek et al., "3D U-Net: Learning Dense Volumetric Segmentation from Sparse Annotation" (arXiv
1606.06650), figure 2: pairs of 3x3x3 convolutions, 2x2x2 maximum on the way down, 2x2x2 up-convolution with
stride 2 on the way up, and the feature maps of equal size from the way down beside it. Unlike there, the
convolutions are padded, so that every voxel of the volume gets its logits.

`unet3d_residual` has residual blocks in place of the pairs, as Lee et al. (arXiv 1706.00120) and Zhang et al.
(arXiv 1711.10684) have them; the channels of its levels are our choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from trainer.errors import ModelError
from trainer.models import layers
from trainer.models.registry import register

Block = Callable[..., Any]  # (feature map, level, name=) -> feature map


@register("unet3d", dense=True, smallest=8, paper="arXiv 1606.06650")
def unet3d(
    input_shape: tuple[int, int, int, int],
    classes: int,
    *,
    width: int = 32,
    normalisation: str = "batch",
    dropout: float = 0.0,
    depth: int = 3,
) -> keras.Model:
    """3D U-Net, logits for each voxel.

    Args:
        width: channels of the very first convolution; level i has `width * 2**(i+1)` in the end.
        dropout: share dropped at the bottom, as in the 2D U-Net (arXiv 1505.04597, section 3.1).
        depth: how often the volume is halved; each side must be divisible by `2**depth`.
    """

    def pair(x: Any, first: int, second: int, *, name: str) -> Any:
        for number, channels in enumerate((first, second), start=1):
            part = f"{name}_{number}"
            x = layers.relu(layers.convolution(x, channels, 3, norm=normalisation, name=part), name=part)
        return x

    return _u_shaped(
        input_shape,
        classes,
        depth=depth,
        dropout=dropout,
        down=lambda x, level, name: pair(x, width * 2**level, width * 2 ** (level + 1), name=name),
        up=lambda x, level, name: pair(x, width * 2 ** (level + 1), width * 2 ** (level + 1), name=name),
        name="unet3d",
    )


@register("unet3d_residual", dense=True, smallest=8, paper="arXiv 1706.00120, 1711.10684")
def unet3d_residual(
    input_shape: tuple[int, int, int, int],
    classes: int,
    *,
    width: int = 32,
    normalisation: str = "batch",
    dropout: float = 0.0,
    depth: int = 3,
) -> keras.Model:
    """3D U-Net of residual blocks, logits for each voxel.

    Args:
        width: channels at full size; level i has `width * 2**i`.
        dropout: share dropped at the bottom.
        depth: how often the volume is halved; each side must be divisible by `2**depth`.
    """

    def block(x: Any, level: int, *, name: str) -> Any:
        return layers.residual_block(x, width * 2**level, norm=normalisation, name=name)

    return _u_shaped(
        input_shape, classes, depth=depth, dropout=dropout, down=block, up=block, name="unet3d_residual"
    )


def _u_shaped(
    input_shape: tuple[int, int, int, int],
    classes: int,
    *,
    depth: int,
    dropout: float,
    down: Block,
    up: Block,
    name: str,
) -> keras.Model:
    """Way down, bottom, way up; level 0 has the size of the volume, level `depth` is the bottom."""
    _check_depth(name, input_shape, depth)
    x = volume = keras.Input(input_shape, name="volume")
    beside = []
    for level in range(depth):
        x = down(x, level, name=f"down{level}")
        beside.append(x)
        x = layers.max_pool(x, 2, strides=2, name=f"down{level}")
    x = layers.drop(down(x, depth, name="bottom"), dropout, name="bottom")
    for level in reversed(range(depth)):
        # Without a bias: with one, the count of parameters is not the paper's.
        x = keras.layers.Conv3DTranspose(
            x.shape[-1], 2, strides=2, use_bias=False, kernel_initializer="he_normal", name=f"up{level}_grow"
        )(x)
        x = keras.layers.Concatenate(name=f"up{level}_joined")([beside[level], x])
        x = up(x, level, name=f"up{level}")
    logits = keras.layers.Conv3D(classes, 1, dtype="float32", name="head_logits")(x)
    return keras.Model(volume, logits, name=name)


def _check_depth(name: str, input_shape: tuple[int, int, int, int], depth: int) -> None:
    if not isinstance(depth, int) or depth < 1:
        raise ModelError(
            f"{name}: depth is {depth!r}: it must be a whole number of halvings, at least 1.",
            key="model.options.depth",
        )
    sides = input_shape[:3]
    if all(side % 2**depth == 0 for side in sides):
        return
    size = "x".join(map(str, sides))
    fits = 0
    while all(side % 2 ** (fits + 1) == 0 for side in sides):
        fits += 1
    other = f", or set model.options.depth={fits}" if fits else ""
    raise ModelError(
        f"{name}: volumes of {size} voxels cannot be halved {depth} times: "
        f"each side must be divisible by {2**depth}.",
        cure=f"Import the images again with a `--size` divisible by {2**depth}{other}.",
        key="model.options.depth",
    )
