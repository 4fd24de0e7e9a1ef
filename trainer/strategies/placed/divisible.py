"""The Keras layers that can be divided over ranks, by what they are to a planner."""

from __future__ import annotations

from typing import Any

from keras import layers

from trainer.errors import ModelError
from trainer.models.attention import AttentionSum
from trainer.strategies.draws import NOISE

INPUTS = (layers.InputLayer,)
BATCH_NORMS = (layers.BatchNormalization,)
GROUP_NORMS = (layers.GroupNormalization,)
CONCATENATIONS = (layers.Concatenate,)
ATTENTIONS = (AttentionSum,)
DENSE = (layers.Dense,)
RESHAPES = (layers.Flatten, layers.Reshape)
ELEMENTWISE = (layers.Add, layers.Multiply, layers.Average, layers.Maximum, layers.Minimum, layers.Subtract)
ACTIVATIONS = (
    layers.Activation,
    layers.Softmax,
    *NOISE,
    layers.ReLU,
    layers.LeakyReLU,
    layers.ELU,
    layers.Identity,
    layers.Rescaling,
)
POOLS = (
    layers.MaxPooling1D,
    layers.MaxPooling2D,
    layers.MaxPooling3D,
    layers.AveragePooling1D,
    layers.AveragePooling2D,
    layers.AveragePooling3D,
)
CONVOLUTIONS = (layers.Conv1D, layers.Conv2D, layers.Conv3D)
TRANSPOSED = (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose)
MEANS = (layers.GlobalAveragePooling1D, layers.GlobalAveragePooling2D, layers.GlobalAveragePooling3D)
UPSAMPLINGS = (layers.UpSampling1D, layers.UpSampling2D, layers.UpSampling3D)
LAYERS = (
    *INPUTS,
    *TRANSPOSED,
    *CONVOLUTIONS,
    *POOLS,
    *MEANS,
    *BATCH_NORMS,
    *GROUP_NORMS,
    *ACTIVATIONS,
    *ELEMENTWISE,
    *CONCATENATIONS,
    *ATTENTIONS,
    *UPSAMPLINGS,
    *DENSE,
    *RESHAPES,
)


def refused(layer: Any, why: str) -> ModelError:
    """Return the error for a layer that cannot be divided."""
    known = ", ".join(kind.__name__ for kind in LAYERS)
    return ModelError(
        f"Layer {layer.name} ({type(layer).__name__}) {why}.",
        cure=f"Known: {known}. Build the network of these, or take train.strategy=data.",
    )
