"""Tasks: what a rank does in one update, one after the other. `listing` makes the lists. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.planning.placement.exchanges import Redistribution
from trainer.planning.placement.units import Unit

# What a message holds: outputs of an operation, gradients of them, a part of the gradient of a variable,
# or new values of a variable.
Content = Literal["output", "gradient", "part", "value"]


@dataclass(frozen=True)
class Message:
    """A box that crosses from one rank to another.

    Attributes:
        content: what it holds.
        name: of the tensor or variable.
        number: of the move in its exchange.
        source: rank that sends it.
        target: rank that receives it.
        elements: how many numbers it holds.
        width: bytes of each.
        micro: number of the micro-batch; 0 for what there is once in an update.
    """

    content: Content
    name: str
    number: int
    source: int
    target: int
    elements: int
    width: int = 4
    micro: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of all numbers."""
        return self.elements * self.width

    def __str__(self) -> str:
        micro = f" of micro-batch {self.micro}" if self.micro else ""
        return (
            f"{self.content} of {self.name} (number {self.number}){micro} "
            f"from rank {self.source} to {self.target}"
        )


@dataclass(frozen=True)
class Compute:
    """Compute a unit's output for a micro-batch."""

    unit: Unit
    micro: int = 0


@dataclass(frozen=True)
class Recompute:
    """Compute a unit's output for a micro-batch again, from what has arrived; nothing of it is sent.

    Gradients are computed from these outputs, so that those of the first pass need not be kept.
    """

    unit: Unit
    micro: int = 0


@dataclass(frozen=True)
class Differentiate:
    """Compute the gradients of a unit's inputs and weights from those of its output.

    Attributes:
        unit: whose gradients.
        of: the gradients of its weights may be computed after those of its inputs, while these travel.
        micro: number of the micro-batch.
    """

    unit: Unit
    of: Literal["all", "inputs", "weights"] = "all"
    micro: int = 0


@dataclass(frozen=True)
class Send:
    """Hand messages of one sender to one receiver to the network, as one; does not wait."""

    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Receive:
    """Wait for messages that were sent as one."""

    messages: tuple[Message, ...]


@dataclass(frozen=True)
class UpdateOwned:
    """Update what this rank owns of all variables, after all parts of its gradient have arrived."""


Task = Compute | Recompute | Differentiate | Send | Receive | UpdateOwned
TaskLists = dict[int, tuple[Task, ...]]


def messages(
    content: Content, name: str, flow: Redistribution, *, back: bool = False, micro: int = 0
) -> tuple[Message, ...]:
    """The messages of an exchange, or of its adjoint."""
    return tuple(
        message(content, name, flow, number, back=back, micro=micro)
        for number, move in enumerate(flow.moves)
        if move.crosses
    )


def message(
    content: Content, name: str, flow: Redistribution, number: int, *, back: bool = False, micro: int = 0
) -> Message:
    """The message of one move of an exchange, or of its adjoint."""
    move = flow.moves[number]
    ends = (move.source.rank, move.target.rank)
    source, target = reversed(ends) if back else ends
    return Message(content, name, number, source, target, move.box.size, flow.width, micro)
