"""Which of an optimizer's variables belong to which of the network's.

Keras keeps an optimizer's state as one flat list. Its slots (momenta, averages) are all made by one method
from the variable that they belong to, so listening to that method while the optimizer is built tells which is
whose. An optimizer that is built already is compared with a small copy of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from trainer.errors import ConfigError

# Gradients that wait on a worker for its next update: no server needs them.
_ACCUMULATOR = "gradient_accumulator"


@dataclass(frozen=True)
class Slots:
    """An optimizer's variables in order.

    Attributes:
        of: for each of the network's variables those that belong to it, without accumulated gradients.
        common: scalars that belong to none, such as the number of iterations; that number is first.
    """

    of: tuple[tuple[Any, ...], ...]
    common: tuple[Any, ...]


def build(optimizer: keras.Optimizer, variables: Sequence[Any]) -> Slots:
    """Build an optimizer for these variables, and tell what belongs to them.

    Raises:
        ConfigError: it keeps state that cannot be told apart by variable.
    """
    positions = {id(variable): i for i, variable in enumerate(variables)}
    of: list[list[Any]] = [[] for _ in variables]
    known = set()
    make = optimizer.add_variable_from_reference

    def listening(reference_variable: Any, name: str | None = None, initializer: Any = "zeros") -> Any:
        made = make(reference_variable, name=name, initializer=initializer)
        known.add(id(made))
        if name != _ACCUMULATOR:
            of[positions[id(reference_variable)]].append(made)
        return made

    # Past Keras' tracking: it is no state.
    object.__setattr__(optimizer, "add_variable_from_reference", listening)
    try:
        optimizer.build(list(variables))
    finally:
        object.__delattr__(optimizer, "add_variable_from_reference")
    common = [v for v in optimizer.variables if id(v) not in known]
    if any(len(v.shape) for v in common):
        raise ConfigError(
            f"{type(optimizer).__name__} keeps state that belongs to no single variable, which cannot be "
            "divided among servers.",
            cure="Choose another optimizer, or train.strategy=data.",
        )
    return Slots(tuple(tuple(slots) for slots in of), tuple(common))


def stand_ins(variables: Sequence[Any], *, whole: bool = False) -> list[Any]:
    """Return variables of the same names and types, of one number each or (`whole`) of the same shapes."""
    return [
        keras.Variable(np.zeros(v.shape if whole else (1,), v.dtype), dtype=v.dtype, name=v.name)
        for v in variables
    ]


def of_built(optimizer: keras.Optimizer, variables: Sequence[Any], *, whole: bool) -> Slots:
    """Return the slots of an optimizer that was built for these variables.

    Args:
        optimizer: no `LossScaleOptimizer`, but the one inside.
        variables: the network's.
        whole: the optimizer's rule depends on the shapes of variables.
    """
    copy = type(optimizer).from_config(optimizer.get_config())
    slots = build(copy, stand_ins(variables, whole=whole))
    number = {id(v): i for i, v in enumerate(copy.variables)}

    def ours(theirs: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(optimizer.variables[number[id(v)]] for v in theirs)

    return Slots(tuple(ours(of_one) for of_one in slots.of), ours(slots.common))
