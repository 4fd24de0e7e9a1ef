"""What the gradients of an operation are computed from, so that nothing else is kept, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import keras
import tensorflow as tf
from keras import layers

from trainer.planning.placement.operations import Operation
from trainer.strategies.draws import NOISE

Keeps = Literal["inputs", "output", "nothing"]

# Gradients of these depend on shapes alone, or (dropout) on what is drawn again.
_LINEAR = ("input", "average", "mean", "upsampling", "reshape", "concatenate", "dropout")
_LINEAR_LAYERS = (
    layers.Add,
    layers.Subtract,
    layers.Average,
    *NOISE,
    layers.Identity,
    layers.Rescaling,
)
# The inputs are kept for the gradients of the weights alone.
_LINEAR_IN_THEIR_INPUTS = ("convolution", "transposed", "dense", "batch_norm_inference")


@dataclass
class UnitRecord:
    """A unit that is being differentiated.

    Attributes:
        tape: that saw it computed again.
        output: of it.
        reads: boxes of its inputs; None where one is not needed.
        weights: blocks.
        seed: the gradient of its output; None: 1.
    """

    tape: Any
    output: Any
    reads: list[Any]
    weights: list[Any]
    seed: Any

    def gradients(self, sources: list[Any]) -> list[Any]:
        """Return the gradients of some of `reads` and `weights`."""
        return list(
            self.tape.gradient(
                self.output,
                sources,
                output_gradients=self.seed,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        )


def keeps(operation: Operation, layer: Any) -> Keeps:
    """Return what must be kept of an operation to differentiate it, beside its weights."""
    if operation.kind in _LINEAR_IN_THEIR_INPUTS:
        return "inputs" if any(weight.trainable for weight in operation.weights) else "nothing"
    if operation.kind == "activation" and _is_relu(layer):
        return "output"
    pointwise = operation.kind in ("activation", "elementwise") and isinstance(layer, _LINEAR_LAYERS)
    return "nothing" if pointwise or operation.kind in _LINEAR else "inputs"


def from_output(output: Any, upstream: Any) -> Any:
    """Return the gradient of the input of an operation that keeps its output: of plain ReLU.

    Args:
        output: `(b, ..., c)`.
        upstream: the gradient of the output, of the same shape.
    """
    return tf.raw_ops.ReluGrad(gradients=upstream, features=output)


def _is_relu(layer: Any) -> bool:
    if isinstance(layer, layers.ReLU):
        return layer.max_value is None and not layer.negative_slope and not layer.threshold
    return getattr(layer, "activation", None) is keras.activations.relu
