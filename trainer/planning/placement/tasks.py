"""Task lists: what each rank does in one update, in order, made and checked before anything runs. Pure.

Sending never waits; receiving waits until the message is there. Every rank goes through the operations in
the same order, forwards and then backwards, so that a message that is waited for has been sent by a rank
that waits for none that comes later. `checking.check` proves it of each list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trainer.planning.placement.exchanges import Exchange
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
        width: bytes of each.
    """

    content: Content
    name: str
    number: int
    source: int
    target: int
    elements: int
    width: int = 4

    @property
    def bytes(self) -> int:
        """Bytes of all numbers."""
        return self.elements * self.width

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
    """Compute the gradients of a unit's inputs and weights from those of its output.

    Attributes:
        unit: whose gradients.
        of: the gradients of its weights may be computed after those of its inputs, while these travel.
    """

    unit: Unit
    of: Literal["all", "inputs", "weights"] = "all"


@dataclass(frozen=True)
class Send:
    """Hand messages of one sender to one receiver to the network, as one; does not wait."""

    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Receive:
    """Wait for messages that were sent as one."""

    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Update:
    """Update what this rank owns of all variables, after all parts of its gradient have arrived."""


Task = Compute | Differentiate | Send | Receive | Update
TaskLists = dict[int, tuple[Task, ...]]
_HEAVY = ("convolution", "transposed", "dense")
# Gradients of so many bytes leave together.
BUCKET_BYTES = 4 * 2**20


def task_lists(placement: Placement) -> TaskLists:
    """The tasks of every rank in one update."""
    return {rank: tuple(_of(placement, rank)) for rank in placement.ranks}


def forward_lists(placement: Placement) -> TaskLists:
    """The tasks of every rank that only computes outputs."""
    return {rank: tuple(_forward(placement, _own(placement, rank), rank)) for rank in placement.ranks}


def buckets(placement: Placement) -> list[tuple[str, ...]]:
    """Trainable variables whose gradients leave together, in the order in which they are complete.

    Those of one bucket have numbers of the same width.
    """
    weights = {w.path: w for one in placement.network.operations for w in one.weights if w.trainable}
    found: list[tuple[str, ...]] = []
    for width in sorted({weight.width for weight in weights.values()}):
        bucket: list[str] = []
        for path in reversed([path for path, weight in weights.items() if weight.width == width]):
            bucket.append(path)
            if sum(weights[one].bytes for one in bucket) >= BUCKET_BYTES:
                found.append(tuple(bucket))
                bucket = []
        if bucket:
            found.append(tuple(bucket))
    return found


_Own = list[tuple[Operation, list[Unit]]]


def _own(placement: Placement, rank: int) -> _Own:
    return [
        (one, [u for u in placement.of(one.name) if u.rank == rank]) for one in placement.network.operations
    ]


def _of(placement: Placement, rank: int) -> Iterator[Task]:
    own = _own(placement, rank)
    together = buckets(placement)
    yield from _forward(placement, own, rank)
    yield from _backward(placement, own, rank, together)
    for paths in together:
        yield from _receive([(path, placement.reductions[path]) for path in paths], "part", rank)
    yield Update()
    for paths in together:
        yield from _send([(path, placement.returns[path]) for path in paths], "value", rank)
    for paths in together:
        yield from _receive([(path, placement.returns[path]) for path in paths], "value", rank)


def _forward(placement: Placement, own: _Own, rank: int) -> Iterator[Task]:
    first = _first_users(placement, own, rank)
    for operation, units in own:
        for tensor in first.get(operation.name, ()):
            yield from _receive([(tensor, placement.flows[tensor])], "output", rank)
        for unit in units:
            yield Compute(unit)
        if operation.name in placement.flows:
            yield from _send([(operation.name, placement.flows[operation.name])], "output", rank)


def _backward(placement: Placement, own: _Own, rank: int, together: list[tuple[str, ...]]) -> Iterator[Task]:
    first = _first_users(placement, own, rank)
    with_gradient = {one.name for one in placement.network.operations if one.readings}
    last_user = _last_users(own, together)
    # Done when this rank would wait for others: gradients of weights, and what is sent of them.
    meanwhile: list[Task] = []
    for operation, units in reversed(own):
        if operation.name not in with_gradient:
            continue
        if operation.name in placement.flows:
            flow = placement.flows[operation.name]
            if arriving := tuple(_receive([(operation.name, flow)], "gradient", rank, back=True)):
                yield from (*meanwhile, *arriving)
                meanwhile = []
        can_wait = len(placement.ranks) > 1 and _can_wait(operation, with_gradient)
        for unit in units:
            yield Differentiate(unit, "inputs" if can_wait else "all")
            meanwhile += [Differentiate(unit, "weights")] if can_wait else []
        for tensor in first.get(operation.name, ()):
            if tensor in with_gradient:
                yield from _send([(tensor, placement.flows[tensor])], "gradient", rank, back=True)
        for paths in last_user.get(operation.name, ()):
            meanwhile += _send([(path, placement.reductions[path]) for path in paths], "part", rank)
    yield from meanwhile


def _can_wait(operation: Operation, with_gradient: set[str]) -> bool:
    """Whether gradients of its weights take long, and those of its inputs do not depend on them."""
    reads = any(reading.tensor in with_gradient for reading in operation.readings)
    return reads and operation.kind in _HEAVY and any(weight.trainable for weight in operation.weights)


def _first_users(placement: Placement, own: _Own, rank: int) -> dict[str, list[str]]:
    """For each operation, the tensors of other ranks that it is the first one to use on this rank.

    Before it, they must be there; after it, backwards, all of their gradients are.
    """
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for operation, units in own:
        for number, reading in enumerate(operation.readings):
            wanted = [box for unit in units if (box := unit.reads[number]) is not None]
            if reading.tensor in seen or not wanted:
                continue
            flow = placement.flows[reading.tensor]
            if any(
                move.target.rank == rank and any(move.box & box is not None for box in wanted)
                for move in flow.messages
            ):
                seen.add(reading.tensor)
                found.setdefault(operation.name, []).append(reading.tensor)
    return found


def _last_users(own: _Own, together: list[tuple[str, ...]]) -> dict[str, list[tuple[str, ...]]]:
    """For each operation, the buckets whose gradients are complete on this rank once it is differentiated."""
    users: dict[str, int] = {}
    for number, (operation, units) in enumerate(own):
        for weight in operation.weights if units else ():
            if weight.trainable:
                users.setdefault(weight.path, number)
    found: dict[str, list[tuple[str, ...]]] = {}
    for paths in together:
        numbers = [users[path] for path in paths if path in users]
        if numbers:
            found.setdefault(own[min(numbers)][0].name, []).append(paths)
    return found


def messages(content: Content, name: str, flow: Exchange, *, back: bool = False) -> tuple[Message, ...]:
    """The messages of an exchange, or of its adjoint."""
    return tuple(
        message(content, name, flow, number, back=back)
        for number, move in enumerate(flow.moves)
        if move.crosses
    )


def message(content: Content, name: str, flow: Exchange, number: int, *, back: bool = False) -> Message:
    """The message of one move of an exchange, or of its adjoint."""
    move = flow.moves[number]
    ends = (move.source.rank, move.target.rank)
    source, target = reversed(ends) if back else ends
    return Message(content, name, number, source, target, move.box.size, flow.width)


_Flows = list[tuple[str, Exchange]]


def _send(flows: _Flows, content: Content, rank: int, *, back: bool = False) -> Iterator[Task]:
    by_target: dict[int, list[Message]] = {}
    for name, flow in flows:
        for one in messages(content, name, flow, back=back):
            if one.source == rank:
                by_target.setdefault(one.target, []).append(one)
    yield from (Send(tuple(by_target[target])) for target in sorted(by_target))


def _receive(flows: _Flows, content: Content, rank: int, *, back: bool = False) -> Iterator[Task]:
    by_source: dict[int, list[Message]] = {}
    for name, flow in flows:
        for one in messages(content, name, flow, back=back):
            if one.target == rank:
                by_source.setdefault(one.source, []).append(one)
    yield from (Receive(tuple(by_source[source])) for source in sorted(by_source))
