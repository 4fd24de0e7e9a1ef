"""Which range of an input a range of an output is computed from, one axis at a time. Pure.

An operation is described by one `WindowAxis` for each axis: convolution and pooling slide (`Sliding`),
transposed convolution spreads (`Spreading`), nearest-neighbour upsampling repeats (`Repeating`), grouped
convolution reads whole groups of channels (`Grouped`), concatenation shifts (`Shifted`), most others work on
each index by itself (`Pointwise`). Padding follows TensorFlow: with `same`, an odd surplus goes after the
data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

from trainer.planning.placement.boxes import Range

Padding = Literal["valid", "same"]


class Need(NamedTuple):
    """What a range of an output needs of the input along one axis.

    Attributes:
        range: of the input; what lies outside of the tensor is cut off.
        before: zeros (or, for a maximum, the lowest value) to put before it: padding at the real border.
        after: the same after it.
        skip: outputs to drop at the front when the operation is applied to that range alone, without padding.
    """

    range: Range
    before: int = 0
    after: int = 0
    skip: int = 0


class WindowAxis(ABC):
    """How an operation acts along one axis of its input."""

    @abstractmethod
    def length(self, size: int) -> int:
        """Length of the output, of an input of `size`.

        Raises:
            ValueError: the input is too short.
        """

    @abstractmethod
    def need(self, span: Range, size: int) -> Need | None:
        """Return what outputs `span[0] <= i < span[1]` need of an input of `size`; None for nothing."""

    def reached(self, given: Range) -> Range:
        """The outputs that inputs of a range add to, where an operation sums over other axes.

        Raises:
            NotImplementedError: no operation sums along such an axis.
        """
        raise NotImplementedError(f"{self} is not summed over")


@dataclass(frozen=True)
class Pointwise(WindowAxis):
    """Output i depends on input i only."""

    def reached(self, given: Range) -> Range:
        """See `WindowAxis.reached`."""
        return given

    def length(self, size: int) -> int:
        """See `WindowAxis.length`."""
        return size

    def need(self, span: Range, size: int) -> Need:
        """See `WindowAxis.need`."""
        return Need(span)


@dataclass(frozen=True)
class Shifted(WindowAxis):
    """Output `offset` + i is input i: one input of a concatenation.

    Attributes:
        offset: of the first input in the output.
        outputs: length of the output.
    """

    offset: int
    outputs: int

    def length(self, size: int) -> int:
        """See `WindowAxis.length`."""
        return self.outputs

    def need(self, span: Range, size: int) -> Need | None:
        """See `WindowAxis.need`; `skip` is negative where outputs of other inputs come first."""
        start, stop = max(span[0] - self.offset, 0), min(span[1] - self.offset, size)
        return Need((start, stop), skip=span[0] - self.offset - start) if start < stop else None


@dataclass(frozen=True)
class Grouped(WindowAxis):
    """Every output of a group depends on all inputs of the same group.

    Attributes:
        inputs: of a group.
        outputs: of a group.
    """

    inputs: int
    outputs: int

    def reached(self, given: Range) -> Range:
        """See `WindowAxis.reached`."""
        first, last = given[0] // self.inputs, (given[1] - 1) // self.inputs
        return first * self.outputs, (last + 1) * self.outputs

    def length(self, size: int) -> int:
        """See `WindowAxis.length`."""
        return size // self.inputs * self.outputs

    def need(self, span: Range, size: int) -> Need:
        """See `WindowAxis.need`."""
        first, last = span[0] // self.outputs, (span[1] - 1) // self.outputs
        return Need((first * self.inputs, (last + 1) * self.inputs), skip=span[0] - first * self.outputs)


@dataclass(frozen=True)
class _Window(WindowAxis):
    """A window on the longer side of a convolution or of its adjoint.

    Attributes:
        kernel: indices in a window.
        stride: between two windows.
        dilation: between two indices of a window.
        padding: as Keras has it; see `length` of each.
    """

    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: Padding = "valid"

    @property
    def reach(self) -> int:
        """Indices from the first to the last of a window."""
        return (self.kernel - 1) * self.dilation + 1


@dataclass(frozen=True)
class Sliding(_Window):
    """A window of inputs that moves over them: convolution and pooling."""

    def length(self, size: int) -> int:
        """See `WindowAxis.length`."""
        if self.padding == "same":
            return -(-size // self.stride)
        if size < self.reach:
            raise ValueError(f"a window of {self.reach} does not fit into {size}")
        return (size - self.reach) // self.stride + 1

    def pads(self, size: int) -> tuple[int, int]:
        """Padding before and after an input of `size`."""
        if self.padding == "valid":
            return 0, 0
        total = max((self.length(size) - 1) * self.stride + self.reach - size, 0)
        return total // 2, total - total // 2

    def need(self, span: Range, size: int) -> Need:
        """See `WindowAxis.need`."""
        before, _ = self.pads(size)
        start = span[0] * self.stride - before
        stop = (span[1] - 1) * self.stride - before + self.reach
        inside = (max(start, 0), min(stop, size))
        return Need(inside, max(inside[0] - start, 0), max(stop - inside[1], 0))


@dataclass(frozen=True)
class Spreading(_Window):
    """Each input adds to a window of outputs: transposed convolution, the adjoint of `Sliding`."""

    def length(self, size: int) -> int:
        """See `WindowAxis.length`; as Keras' `Conv3DTranspose`."""
        more = max(self.reach - self.stride, 0) if self.padding == "valid" else 0
        return size * self.stride + more

    def cut(self, size: int) -> int:
        """Outputs that `same` cuts off at the front, of all that the inputs add to."""
        if self.padding == "valid":
            return 0
        return max((size - 1) * self.stride + self.reach - self.length(size), 0) // 2

    def need(self, span: Range, size: int) -> Need:
        """See `WindowAxis.need`; where `skip` is negative, -`skip` zeros come first, from no input at all."""
        cut = self.cut(size)
        first = -(-(span[0] + cut - self.reach + 1) // self.stride)
        last = (span[1] - 1 + cut) // self.stride
        # With a stride longer than the kernel some outputs come from no input: a neighbour stands in for it.
        start = min(max(first, 0), size - 1)
        stop = max(min(last + 1, size), start + 1)
        return Need((start, stop), skip=span[0] + cut - start * self.stride)


@dataclass(frozen=True)
class Repeating(WindowAxis):
    """Nearest-neighbour upsampling: every input becomes `times` outputs."""

    times: int

    def length(self, size: int) -> int:
        """See `WindowAxis.length`."""
        return size * self.times

    def need(self, span: Range, size: int) -> Need:
        """See `WindowAxis.need`."""
        start = span[0] // self.times
        return Need((start, (span[1] - 1) // self.times + 1), skip=span[0] - start * self.times)
