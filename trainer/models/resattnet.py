"""3D-ResAttNet-18 and -34: residual networks with self-attention for structural MRI.

After Zhang et al., "An Explainable 3D Residual Self-Attention Deep Neural Network for Joint Atrophy
Localization and Alzheimer's Disease Diagnosis using Structural MRI" (arXiv 2008.04024), whose full text we
did not have: the blocks are those of ResNet-18 and -34; where the attention stands and its width (C/8) are
our choice: after the stages named in `attention`, by default the last two, whose grids are small enough to
compare every voxel with every other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from trainer.errors import ModelError
from trainer.models.attention import self_attention
from trainer.models.registry import register
from trainer.models.resnet import residual_network


def _resattnet(
    name: str,
    blocks: Sequence[int],
    input_shape: tuple[int, int, int, int],
    classes: int,
    attention: Any,
    **rest: Any,
) -> keras.Model:
    stages = tuple(attention)
    if not set(stages) <= {1, 2, 3, 4}:
        raise ModelError(
            f"{name}: attention after stages {list(stages)}: the stages are numbered 1 to 4.",
            key="model.options.attention",
        )

    def after_stage(x: Any, stage: int) -> Any:
        return self_attention(x, name=f"stage{stage}_attention") if stage in stages else x

    return residual_network(input_shape, classes, blocks, name=name, after_stage=after_stage, **rest)


@register("resattnet18", paper="arXiv 2008.04024")
def resattnet18(
    input_shape: tuple[int, int, int, int],
    classes: int,
    *,
    width: int = 64,
    normalisation: str = "batch",
    dropout: float = 0.0,
    attention: Sequence[int] = (3, 4),
) -> keras.Model:
    """3D-ResAttNet-18, residual blocks 2-2-2-2 with self-attention."""
    rest = {"width": width, "normalisation": normalisation, "dropout": dropout}
    return _resattnet("resattnet18", (2, 2, 2, 2), input_shape, classes, attention, **rest)


@register("resattnet34", paper="arXiv 2008.04024")
def resattnet34(
    input_shape: tuple[int, int, int, int],
    classes: int,
    *,
    width: int = 64,
    normalisation: str = "batch",
    dropout: float = 0.0,
    attention: Sequence[int] = (3, 4),
) -> keras.Model:
    """3D-ResAttNet-34, residual blocks 3-4-6-3 with self-attention."""
    rest = {"width": width, "normalisation": normalisation, "dropout": dropout}
    return _resattnet("resattnet34", (3, 4, 6, 3), input_shape, classes, attention, **rest)
