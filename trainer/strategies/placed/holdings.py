"""What one rank holds of a network: blocks of variables, and what it updates of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.planning.placement.boxes import Box, whole
from trainer.planning.placement.units import Placement
from trainer.strategies.placed.player import Blocks, Owned


class Holdings:
    """Blocks of a network's variables on one rank.

    Attributes:
        held: by path and box: all that this rank computes with.
        owned: by path and box: what it updates. The same variable where it holds exactly what it owns.
    """

    def __init__(self, placement: Placement, rank: int, model: keras.Model) -> None:
        self.held: Blocks = {}
        self.owned: Owned = {}
        types = {variable.path: variable.dtype for variable in model.weights}
        for path, held in placement.holders.items():
            for box in held.of(rank):
                self.held.setdefault(path, {})[box] = _variable(path, box, types[path])
        for path, flow in placement.reductions.items():
            for box in flow.need.of(rank):
                same = self.held[path].get(box)
                self.owned[path, box] = _variable(path, box, types[path]) if same is None else same

    def blocks(self) -> Blocks:
        """Return the values of all blocks, as tensors.

        Variables are read here and nowhere else in a step. What the backward pass computes again would read
        them a second time, and TensorFlow 2.21's optimizer of dependencies loses that it must be before the
        update: a gradient was then computed with a weight that was new already.
        """
        return {
            path: {box: tf.convert_to_tensor(v.value) for box, v in held.items()}
            for path, held in self.held.items()
        }

    def store(self, blocks: Blocks, *, updated: bool) -> None:
        """Take over new values of all blocks.

        Args:
            blocks: the values.
            updated: what is owned has them already.
        """
        for path, held in blocks.items():
            for box, values in held.items():
                variable = self.held[path][box]
                if not updated or self.owned.get((path, box)) is not variable:
                    variable.assign(values)

    def put(self, path: str, values: np.ndarray) -> None:
        """Take this rank's part of a whole variable."""
        everything = whole(values.shape)
        for box, variable in self.held.get(path, {}).items():
            variable.assign(values[box.slices_in(everything)])
        for (name, box), variable in self.owned.items():
            if name == path:
                variable.assign(values[box.slices_in(everything)])

    @property
    def bytes(self) -> int:
        """Bytes of all blocks, held and owned."""
        held = {id(v): v for blocks in self.held.values() for v in blocks.values()}
        held |= {id(v): v for v in self.owned.values()}
        return sum(np.asarray(v.value).nbytes for v in held.values())


def _variable(path: str, box: Box, dtype: str) -> Any:
    """A variable of a box's shape whose path is that of the whole one: rules of an optimizer go by it."""
    *scopes, name = path.split("/")
    with _scopes(scopes):
        return keras.Variable(np.zeros(box.shape, dtype), dtype=dtype, name=name)


@contextlib.contextmanager
def _scopes(names: list[str]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(keras.name_scope(name))
        yield
