"""A Keras network as the planner's `OperationGraph`: every layer becomes one operation or two."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from trainer.errors import ModelError
from trainer.planning.placement.operations import Operation, OperationGraph, Reading
from trainer.strategies.placed.gradients import keeps
from trainer.strategies.placed.kinds import READERS, Inputs, Shape, refused, samples_only

LOSS = "loss"


def read(model: keras.Model, batch: int, *, training: bool = True) -> OperationGraph:
    """Describe a functional Keras model, and the loss of its outputs, for a planner.

    Args:
        model: built of the layers that `divisible.LAYERS` has.
        batch: samples in a micro-batch.
        training: whether batch norm takes the statistics of the batch.

    Returns:
        The operations in an order in which they can be computed; the last one is `loss`, `(batch,)`, which
        reads all outputs of the model whole.

    Raises:
        ModelError: names a layer that cannot be divided, and says what to do.
    """
    if not isinstance(model, keras.Model) or not hasattr(model, "_nodes_by_depth"):
        raise ModelError(
            f"{model.name}: only functional Keras models can be divided over ranks.",
            cure="Build it with keras.Model(inputs, outputs), or take train.strategy=data.",
        )
    operations: list[Operation] = []
    for layer, inputs, output in _calls(model, batch):
        kind = next((kind for kinds, kind in READERS if isinstance(layer, kinds)), None)
        if kind is None:
            raise refused(layer, "is of a kind that cannot be divided")
        _check_penalties(layer)
        operations += [
            dataclasses.replace(one, width=_width(one, layer), keeps=keeps(one, layer))
            for one in kind(layer, inputs, output, training)
        ]
    outputs = [(_name_of(tensor), _shape(tensor, batch)) for tensor in model.outputs]
    whole = tuple(Reading(name, shape, samples_only(shape)) for name, shape in outputs)
    operations.append(Operation(LOSS, "loss", "", whole, (batch,)))
    return OperationGraph(tuple(operations), tuple(name for name, _ in outputs))


def _calls(model: Any, batch: int) -> list[tuple[Any, Inputs, Shape]]:
    """Every layer once, with names and shapes of its inputs, in an order in which they can be computed."""
    calls: list[tuple[Any, Inputs, Shape]] = []
    seen: set[str] = set()
    for depth in sorted(model._nodes_by_depth, reverse=True):
        for node in model._nodes_by_depth[depth]:
            layer = node.operation
            if layer.name in seen:
                raise refused(layer, "is called more than once")
            seen.add(layer.name)
            if len(node.output_tensors) != 1:
                raise refused(layer, "has several outputs")
            inputs = [(_name_of(tensor), _shape(tensor, batch)) for tensor in node.input_tensors]
            calls.append((layer, inputs, _shape(node.output_tensors[0], batch)))
    return calls


def _name_of(tensor: Any) -> str:
    return str(tensor._keras_history.operation.name)


def _shape(tensor: Any, batch: int) -> Shape:
    return (batch, *(int(length) for length in tensor.shape[1:]))


def _check_penalties(layer: Any) -> None:
    """Refuse what adds to the loss, or changes weights, of a whole variable."""
    for name in vars(layer):
        if name.endswith(("_regularizer", "_constraint")) and getattr(layer, name) is not None:
            raise refused(layer, f"has a {name}")


def _width(operation: Operation, layer: Any) -> int:
    """Bytes of an element of the output: statistics are never of 16 bits."""
    width = keras.backend.standardize_dtype(layer.compute_dtype)
    size = {"float64": 8, "float32": 4}.get(width, 2)
    return max(size, 4) if operation.kind.endswith("_moments") else size
