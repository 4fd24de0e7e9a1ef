"""Which range of an input a range of an output is computed from, one axis at a time. Pure.

An operation that slides along an axis is described by one `Axis`: convolution and pooling (`Sliding`), their
adjoints (`Spreading`: transposed convolution), nearest-neighbour upsampling (`Repeating`), what works on
each index by itself (`Pointwise`) and what needs the whole axis (`Whole`). Padding follows TensorFlow: with
`same`, an odd surplus goes after the data.
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


class Axis(ABC):
    """How an operation acts along one axis of its input."""

    @abstractmethod
    def length(self, size: int) -> int:
        """Length of the output, of an input of `size`.

        Raises:
            ValueError: the input is too short.
        """

    @abstractmethod
    def need(self, wanted: Range, size: int) -> Need:
        """What outputs `wanted[0] <= i < wanted[1]` need of an input of `size`."""


@dataclass(frozen=True)
class Pointwise(Axis):
    """Output i depends on input i only."""

    def length(self, size: int) -> int:
        """See `Axis.length`."""
        return size

    def need(self, wanted: Range, size: int) -> Need:
        """See `Axis.need`."""
        return Need(wanted)


@dataclass(frozen=True)
class Whole(Axis):
    """Every output depends on all inputs.

    Attributes:
        outputs: length of the output; None: that of the input.
    """

    outputs: int | None = None

    def length(self, size: int) -> int:
        """See `Axis.length`."""
        return size if self.outputs is None else self.outputs

    def need(self, wanted: Range, size: int) -> Need:
        """See `Axis.need`; outputs are computed for the whole axis, and those before `wanted` dropped."""
        return Need((0, size), skip=wanted[0])


@dataclass(frozen=True)
class Sliding(Axis):
    """A window of `kernel` inputs, `dilation` apart, that moves by `stride`: convolution and pooling.

    Attributes:
        kernel: inputs in a window.
        stride: between two windows.
        dilation: between two inputs of a window.
        padding: `valid`: windows lie inside the input; `same`: ceil(size / stride) outputs.
    """

    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: Padding = "valid"

    @property
    def reach(self) -> int:
        """Inputs from the first to the last of a window."""
        return (self.kernel - 1) * self.dilation + 1

    def length(self, size: int) -> int:
        """See `Axis.length`."""
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

    def need(self, wanted: Range, size: int) -> Need:
        """See `Axis.need`."""
        before, _ = self.pads(size)
        start = wanted[0] * self.stride - before
        stop = (wanted[1] - 1) * self.stride - before + self.reach
        inside = (max(start, 0), min(stop, size))
        return Need(inside, max(inside[0] - start, 0), max(stop - inside[1], 0))


@dataclass(frozen=True)
class Spreading(Axis):
    """Each input adds to `kernel` outputs: transposed convolution, the adjoint of `Sliding`.

    Attributes:
        kernel: outputs that one input adds to.
        stride: between the outputs of two inputs.
        dilation: between two outputs of one input.
        padding: `same`: size * stride outputs; `valid`: as many more as a long kernel reaches beyond.
    """

    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: Padding = "valid"

    @property
    def reach(self) -> int:
        """Outputs from the first to the last that one input adds to."""
        return (self.kernel - 1) * self.dilation + 1

    def length(self, size: int) -> int:
        """See `Axis.length`; as Keras' `Conv3DTranspose`."""
        more = max(self.reach - self.stride, 0) if self.padding == "valid" else 0
        return size * self.stride + more

    def cut(self, size: int) -> int:
        """Outputs that `same` cuts off at the front, of all that the inputs add to."""
        if self.padding == "valid":
            return 0
        return max((size - 1) * self.stride + self.reach - self.length(size), 0) // 2

    def need(self, wanted: Range, size: int) -> Need:
        """See `Axis.need`; `skip` may be negative: so many zeros come first, from no input at all."""
        cut = self.cut(size)
        first = -(-(wanted[0] + cut - self.reach + 1) // self.stride)
        last = (wanted[1] - 1 + cut) // self.stride
        # With a stride longer than the kernel some outputs come from no input: a neighbour stands in for it.
        start = min(max(first, 0), size - 1)
        stop = max(min(last + 1, size), start + 1)
        return Need((start, stop), skip=wanted[0] + cut - start * self.stride)


@dataclass(frozen=True)
class Repeating(Axis):
    """Nearest-neighbour upsampling: every input becomes `times` outputs."""

    times: int

    def length(self, size: int) -> int:
        """See `Axis.length`."""
        return size * self.times

    def need(self, wanted: Range, size: int) -> Need:
        """See `Axis.need`."""
        start = wanted[0] // self.times
        return Need((start, (wanted[1] - 1) // self.times + 1), skip=wanted[0] - start * self.times)
