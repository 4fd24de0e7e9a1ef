"""A network as a planner sees it: operations, what each reads, and the weights that it uses. Pure.

The output of an operation has the operation's name. Samples are the first axis and channels the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trainer.planning.placement.boxes import Box, Range
from trainer.planning.placement.windows import Need, WindowAxis


@dataclass(frozen=True)
class Reading:
    """How an operation reads one of its inputs.

    Attributes:
        tensor: name of the operation whose output is read.
        shape: of that output.
        axes: for each axis of the input, which axis of the output decides what is needed, and how; None where
            all of the axis is needed, whatever is wanted.
    """

    tensor: str
    shape: tuple[int, ...]
    axes: tuple[tuple[int, WindowAxis] | None, ...]

    def needs(self, output: Box) -> tuple[Need, ...] | None:
        """Return what a box of the output needs of the input along each axis; None where it needs nothing."""
        needs = []
        for size, how in zip(self.shape, self.axes, strict=True):
            need = Need((0, size)) if how is None else how[1].need(output.ranges[how[0]], size)
            if need is None:
                return None
            needs.append(need)
        return tuple(needs)

    def box(self, output: Box) -> Box | None:
        """Return the box of the input that a box of the output needs."""
        needs = self.needs(output)
        return None if needs is None else Box(tuple(need.range for need in needs))


@dataclass(frozen=True)
class Weight:
    """A variable of an operation.

    Attributes:
        path: of the Keras variable.
        shape: of it.
        cuts: for each axis of the variable, which axis of the output decides what is used; None: all of it.
        trainable: whether it has a gradient.
        width: bytes of an element.
    """

    path: str
    shape: tuple[int, ...]
    cuts: tuple[int | None, ...]
    trainable: bool = True
    width: int = 4

    @property
    def bytes(self) -> int:
        """Bytes of all of it."""
        return math.prod(self.shape) * self.width

    def block(self, wanted: Box) -> Box:
        """The part of the variable that a box of the output uses."""
        ranges = zip(self.shape, self.cuts, strict=True)
        return Box(tuple((0, size) if axis is None else wanted.ranges[axis] for size, axis in ranges))


@dataclass(frozen=True)
class Operation:
    """One operation, and how its output depends on its inputs.

    Attributes:
        name: unique; also that of its output.
        kind: what it computes, such as `convolution`; the runtime knows how.
        layer: name of the Keras layer that it is, or is a part of.
        readings: of its inputs, in order.
        shape: of its output, samples first.
        weights: that it uses.
        flops: of the forward pass, for the whole output.
        sums: the output is a sum over its input, so that each part of the input gives a part of the sum;
            `reduced` says over which part of the output.
        width: bytes of an element of its output.
        keeps: what its gradients are computed from, beside its weights and the gradient of its output.
    """

    name: str
    kind: str
    layer: str
    readings: tuple[Reading, ...]
    shape: tuple[int, ...]
    weights: tuple[Weight, ...] = ()
    flops: float = 0.0
    sums: bool = False
    width: int = 4
    keeps: Literal["inputs", "output", "nothing"] = "inputs"

    def reduced(self, part: Box) -> Box:
        """The box of the output to which a part of the (first) input adds; of an operation that `sums`."""
        ranges: list[Range] = [(0, size) for size in self.shape]
        for range_, how in zip(part.ranges, self.readings[0].axes, strict=True):
            if how is not None:
                axis, acts = how
                ranges[axis] = acts.reached(range_)
        return Box(tuple(ranges))


@dataclass(frozen=True)
class OperationGraph:
    """Operations in an order in which each comes after those that it reads.

    Attributes:
        operations: the first ones are the inputs, which read nothing.
        outputs: names of the operations whose outputs the network returns.
    """

    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]

    def __getitem__(self, name: str) -> Operation:
        """The operation of that name.

        Raises:
            KeyError: there is none.
        """
        for operation in self.operations:
            if operation.name == name:
                return operation
        raise KeyError(name)

    @property
    def inputs(self) -> tuple[Operation, ...]:
        """The operations that read nothing."""
        return tuple(one for one in self.operations if not one.readings)

    def readers(self, tensor: str) -> tuple[Operation, ...]:
        """The operations that read a tensor."""
        return tuple(one for one in self.operations if any(r.tensor == tensor for r in one.readings))

    @property
    def parameters(self) -> int:
        """Number of trainable numbers."""
        found = {weight.path: weight for one in self.operations for weight in one.weights}
        return sum(math.prod(weight.shape) for weight in found.values() if weight.trainable)
