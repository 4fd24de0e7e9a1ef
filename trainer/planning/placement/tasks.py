"""Task lists: what each rank does in one update, in order, made and checked before anything runs. Pure.

Sending never waits; receiving waits until the message is there. Every rank goes through the operations in
the same order, forwards and then backwards, so that a message that is waited for has been sent by a rank
that waits for none that comes later. `checking.check` proves it of each list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trainer.planning.placement.exchanges import Exchange, Move
from trainer.planning.placement.operations import Operation
from trainer.planning.placement.units import Placement, Unit

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
    """

    content: Content
    name: str
    number: int
    source: int
    target: int
    elements: int

    def __str__(self) -> str:
        return (
            f"{self.content} of {self.name} (number {self.number}) from rank {self.source} to {self.target}"
        )


@dataclass(frozen=True)
class Compute:
    """Compute a unit's output."""

    unit: Unit


@dataclass(frozen=True)
class Differentiate:
    """Compute the gradients of a unit's inputs and weights from those of its output."""

    unit: Unit


@dataclass(frozen=True)
class Send:
    """Hand a message to the network; does not wait."""

    message: Message


@dataclass(frozen=True)
class Receive:
    """Wait for a message."""

    message: Message


@dataclass(frozen=True)
class Update:
    """Update what this rank owns of all variables, after all parts of its gradient have arrived."""


Task = Compute | Differentiate | Send | Receive | Update
TaskLists = dict[int, tuple[Task, ...]]


def task_lists(placement: Placement) -> TaskLists:
    """The tasks of every rank in one update."""
    return {rank: tuple(_of(placement, rank)) for rank in placement.ranks}


def _of(placement: Placement, rank: int) -> Iterator[Task]:
    own = [
        (one, [u for u in placement.of(one.name) if u.rank == rank]) for one in placement.network.operations
    ]
    received: set[str] = set()
    first_reader: dict[str, str] = {}
    for operation, units in own:
        for reading in operation.readings if units else ():
            if reading.tensor not in received:
                received.add(reading.tensor)
                first_reader[reading.tensor] = operation.name
                yield from _receive("output", reading.tensor, placement.flows[reading.tensor], rank)
        for unit in units:
            yield Compute(unit)
        if operation.name in placement.flows:
            yield from _send("output", operation.name, placement.flows[operation.name], rank)
    with_gradient = {one.name for one in placement.network.operations if one.readings}
    last_user = _last_users(own)
    for operation, units in reversed(own):
        if operation.name not in with_gradient:
            continue
        if operation.name in placement.flows:
            yield from _receive("gradient", operation.name, placement.flows[operation.name], rank, back=True)
        for unit in units:
            yield Differentiate(unit)
        for tensor in dict.fromkeys(reading.tensor for reading in operation.readings):
            if units and first_reader[tensor] == operation.name and tensor in with_gradient:
                yield from _send("gradient", tensor, placement.flows[tensor], rank, back=True)
        for path in last_user.get(operation.name, ()):
            yield from _send("part", path, placement.reductions[path], rank)
    for path, flow in placement.reductions.items():
        yield from _receive("part", path, flow, rank)
    yield Update()
    for path, flow in placement.returns.items():
        yield from _send("value", path, flow, rank)
    for path, flow in placement.returns.items():
        yield from _receive("value", path, flow, rank)


def _last_users(own: list[tuple[Operation, list[Unit]]]) -> dict[str, list[str]]:
    """For each operation, the variables whose gradient is complete on this rank once it is differentiated."""
    users: dict[str, str] = {}
    for operation, units in own:
        for weight in operation.weights if units else ():
            if weight.trainable:
                users.setdefault(weight.path, operation.name)
    found: dict[str, list[str]] = {}
    for path, name in users.items():
        found.setdefault(name, []).append(path)
    return found


def messages(content: Content, name: str, flow: Exchange, *, back: bool = False) -> tuple[Message, ...]:
    """The messages of an exchange, or of its adjoint."""
    return tuple(
        _message(content, name, number, move, back) for number, move in enumerate(flow.moves) if move.crosses
    )


def _message(content: Content, name: str, number: int, move: Move, back: bool) -> Message:
    ends = (move.source.rank, move.target.rank)
    source, target = reversed(ends) if back else ends
    return Message(content, name, number, source, target, move.box.size)


def _send(content: Content, name: str, flow: Exchange, rank: int, *, back: bool = False) -> Iterator[Task]:
    yield from (Send(one) for one in messages(content, name, flow, back=back) if one.source == rank)


def _receive(content: Content, name: str, flow: Exchange, rank: int, *, back: bool = False) -> Iterator[Task]:
    yield from (Receive(one) for one in messages(content, name, flow, back=back) if one.target == rank)
