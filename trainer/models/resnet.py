"""3D ResNet-10, -18, -34 and -50: the usual baselines for volumes.

He et al. (arXiv 1512.03385) in three dimensions as in Hara et al. (arXiv 1711.09577) and MedicalNet (arXiv
1904.00625): 7x7x7 stem, four stages of basic blocks, or of bottleneck blocks in ResNet-50. Shortcuts are
those of Hara et al.'s code with `shortcut_type="B"`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from trainer.errors import ModelError
from trainer.models import layers
from trainer.models.network import Function
from trainer.models.registry import register

EXPANSION = 4
# Stages of MedicalNet that begin with strides, if any does.
_STRIDED = 2


def residual_network(
    input_shape: tuple[int, int, int, int],
    classes: int,
    blocks: Sequence[int],
    *,
    width: int,
    normalisation: str,
    dropout: float,
    name: str,
    residual_block: Callable[..., Any] = layers.residual_block,
    after_stage: Callable[[Any, int], Any] = lambda x, stage: x,
    medicalnet: str = "",
) -> keras.Model:
    """Build a network of stem, stages of `blocks[i]` residual blocks with `width * 2**i` channels, and head.

    Args:
        residual_block: called as `layers.residual_block` is.
        after_stage: called with the output of each stage and the stage's number from 1; returns what goes on.
        medicalnet: shortcuts 'A' or 'B' as in MedicalNet, with its even borders, and its last two stages,
            which are dilated instead of having strides; '': none of it.

    Raises:
        ModelError: there are no such shortcuts.
    """
    if medicalnet not in ("", "A", "B"):
        raise ModelError(
            f"medicalnet is {medicalnet!r}: it must be A or B, the kind of shortcuts, or empty.",
            key="model.options.medicalnet",
        )
    volume = keras.Input(input_shape, name="volume")
    x = layers.stem(volume, width, norm=normalisation, padding="even" if medicalnet else "same")
    for stage, count in enumerate(blocks, start=1):
        dilation = 2 ** (stage - 2) if medicalnet and stage > _STRIDED else 1
        special = {"padding": "even", "dilation": dilation, "shortcut": medicalnet} if medicalnet else {}
        for block in range(1, count + 1):
            x = residual_block(
                x,
                width * 2 ** (stage - 1),
                strides=2 if stage > 1 and block == 1 and dilation == 1 else 1,
                norm=normalisation,
                name=f"stage{stage}_block{block}",
                **special,
            )
        x = after_stage(x, stage)
    return keras.Model(volume, layers.head(x, classes, dropout=dropout), name=name)


def bottleneck_block(
    x: Any,
    channels: int,
    *,
    strides: int = 1,
    norm: str,
    name: str,
    padding: str = "same",
    dilation: int = 1,
    shortcut: str = "B",
) -> Any:
    """Add a bottleneck block: 1x1x1, 3x3x3 and 1x1x1 convolutions beside a shortcut, 4 * `channels` out of
    it.

    He et al., section 4, figure 5; the stride is in the 3x3x3 convolution, as in Hara et al.'s code. The
    last normalisation starts with scale 0: see `layers.residual_block`.
    """
    beside = layers.shortcut_of(x, EXPANSION * channels, strides=strides, norm=norm, name=name, kind=shortcut)
    y = layers.relu(layers.convolution(x, channels, 1, norm=norm, name=f"{name}_1"), name=f"{name}_1")
    y = layers.convolution(
        y, channels, 3, strides=strides, padding=padding, dilation=dilation, norm=norm, name=f"{name}_2"
    )
    y = layers.relu(y, name=f"{name}_2")
    y = layers.convolution(y, EXPANSION * channels, 1, norm=norm, name=f"{name}_3", gamma="zeros")
    return layers.relu(keras.layers.Add(name=f"{name}_sum")([y, beside]), name=name)


def _registered(
    name: str,
    blocks: Sequence[int],
    paper: str,
    about: str,
    block: Callable[..., Any] = layers.residual_block,
) -> Function:
    """Register and return the network of this name, which `about` describes."""

    def network(
        input_shape: tuple[int, int, int, int],
        classes: int,
        *,
        width: int = 64,
        normalisation: str = "batch",
        dropout: float = 0.0,
        medicalnet: str = "",
    ) -> keras.Model:
        rest: dict[str, Any] = {
            "width": width, "normalisation": normalisation, "dropout": dropout, "medicalnet": medicalnet
        }  # fmt: skip
        return residual_network(input_shape, classes, blocks, name=name, residual_block=block, **rest)

    network.__name__ = network.__qualname__ = name
    network.__doc__ = about
    return register(name, paper=paper)(network)


_PAPERS = "arXiv 1512.03385, 1711.09577"
resnet10 = _registered(
    "resnet10",
    (1, 1, 1, 1),
    "MedicalNet, arXiv 1904.00625",
    "3D ResNet-10, residual blocks 1-1-1-1: the smallest of MedicalNet.",
)
resnet18 = _registered(
    "resnet18", (2, 2, 2, 2), _PAPERS, "3D ResNet-18, residual blocks 2-2-2-2: the usual baseline."
)
resnet34 = _registered("resnet34", (3, 4, 6, 3), _PAPERS, "3D ResNet-34, residual blocks 3-4-6-3.")
resnet50 = _registered(
    "resnet50", (3, 4, 6, 3), _PAPERS, "3D ResNet-50, bottleneck blocks 3-4-6-3.", bottleneck_block
)
