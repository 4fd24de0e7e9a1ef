"""Bytes that an update sends, tensor by tensor and variable by variable, from layouts alone. Pure.

What a tensor sends depends on how its own group and those that read it are divided, and on nothing else, so
that a search need not divide a whole network to see what one change does. The sums are those of
`units.place` and its exchanges, exactly:

- a tensor goes once to each rank that reads what others have computed, and its gradient comes back;
- of a variable, each part that h ranks compute with sends 2(h - 1) times its bytes;
- parts of sums (statistics of batch norm, means) go from each rank that has one to each that needs it.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainer.planning.hypergraph import bounds
from trainer.planning.hypergraph.bounds import Bounds, Ints
from trainer.planning.hypergraph.groups import OperationGroup
from trainer.planning.placement import boxes
from trainer.planning.placement.boxes import Box
from trainer.planning.placement.layouts import TensorLayout
from trainer.planning.placement.operations import Operation, OperationGraph, Weight

# Why bytes cross: windows that reach over a border, tensors that are needed elsewhere, gradients and new
# values of weights, and parts of sums.
Cause = Literal["halos", "activations", "weights", "statistics"]
CAUSES: tuple[Cause, ...] = ("halos", "activations", "weights", "statistics")


@dataclass(frozen=True)
class Crossing:
    """What one tensor or variable sends in an update.

    Attributes:
        bytes: of all ranks, by cause.
        busiest: bytes that the busiest rank sends or receives, both passes.
        rounds: times that ranks wait for it.
    """

    bytes: Mapping[Cause, int]
    busiest: int
    rounds: int

    @functools.cached_property
    def total(self) -> int:
        """Bytes of all causes."""
        return sum(self.bytes.values())

    def repeated(self, times: int) -> Crossing:
        """Return what crosses where this is sent `times` times."""
        if times == 1:
            return self
        each = {cause: times * size for cause, size in self.bytes.items()}
        return Crossing(each, times * self.busiest, times * self.rounds)


NOTHING = Crossing({}, 0, 0)


@dataclass(frozen=True)
class Term:
    """A tensor or variable that may cross, and on whose layouts that depends.

    Attributes:
        name: of the tensor or variable.
        groups: numbers of the groups, its own first.
    """

    name: str
    groups: tuple[int, ...]


class Traffic:
    """What crosses of a network whose groups are divided in some way.

    Args:
        network: whose shapes hold the samples of a micro-batch.
        groups: of all its operations but inputs.
        times: micro-batches of an update, in each of which tensors cross.

    Attributes:
        terms: tensors and variables that may cross.
        alike: a number for each term, by its name; those of one number send the same by the same layouts.
    """

    def __init__(self, network: OperationGraph, groups: Sequence[OperationGroup], times: int = 1) -> None:
        self.network, self.groups, self._times = network, groups, times
        self._operations = {one.name: one for one in network.operations}
        self._group = {name: number for number, one in enumerate(groups) for name in one.names}
        self._readers: dict[str, list[tuple[Operation, int]]] = {}
        for one in network.operations:
            for number, reading in enumerate(one.readings):
                self._readers.setdefault(reading.tensor, []).append((one, number))
        self._weights = {
            weight.path: (one, weight)
            for one in network.operations
            for weight in one.weights
            if weight.trainable
        }
        self.terms = (*self._tensors(), *self._variables())
        numbers: dict[object, int] = {}
        self.alike = {one.name: numbers.setdefault(self._signature(one), len(numbers)) for one in self.terms}
        self._known: dict[tuple[int, tuple[int, ...]], Crossing] = {}
        self._bounds: dict[int, Bounds | None] = {}
        self._needs: dict[tuple[str, int, int], Bounds] = {}
        self._alive: dict[int, TensorLayout] = {}

    def crossing(self, term: Term, divided: Sequence[TensorLayout]) -> Crossing:
        """Return what a term sends, of the layouts of all groups."""
        own = [divided[number] for number in term.groups]
        key = self.alike[term.name], tuple(map(id, own))
        crossing = self._known.get(key)
        if crossing is None:
            self._alive.update((id(one), one) for one in own)
            at = dict(zip(term.groups, own, strict=True))
            if term.name in self._weights:
                crossing = self._variable(term, at)
            else:
                crossing = self._tensor(term, at).repeated(self._times)
            self._known[key] = crossing
        return crossing

    def total(self, divided: Sequence[TensorLayout]) -> dict[Cause, int]:
        """Return the bytes that an update sends, by cause."""
        by_cause = dict.fromkeys(CAUSES, 0)
        for term in self.terms:
            for cause, size in self.crossing(term, divided).bytes.items():
                by_cause[cause] += size
        return by_cause

    def held(self, divided: Sequence[TensorLayout]) -> bounds.Ints:
        """Return the bytes of trainable variables that each rank computes with, `(ranks,)`."""
        sizes = np.zeros(1 + max(held.ranks[-1] for held in divided), np.int64)
        for operation, weight in self._weights.values():
            held = divided[self._group[operation.name]]
            one_each = None if operation.sums else self._one_each(held)
            if one_each is not None:
                sizes[: len(one_each.lower)] += weight.width * _block_sizes(weight, one_each)
                continue
            for rank in held.ranks:
                sizes[rank] += weight.width * _size(_blocks(operation, weight, held.of(rank)))
        return sizes

    def _tensors(self) -> Iterable[Term]:
        for tensor, readers in self._readers.items():
            if self._operations[tensor].readings:
                own = self._group[tensor]
                others = {self._group[one.name] for one, _ in readers} - {own}
                if others or self._operations[tensor].sums:
                    yield Term(tensor, (own, *sorted(others)))

    def _variables(self) -> Iterable[Term]:
        for path, (one, _) in self._weights.items():
            yield Term(path, (self._group[one.name],))

    def _signature(self, term: Term) -> object:
        """Return what decides, besides layouts, what a term sends; terms of equal signature send the same."""
        if term.name in self._weights:
            operation, weight = self._weights[term.name]
            return weight.shape, weight.cuts, weight.width, _reads_of(operation) if operation.sums else None
        operation = self._operations[term.name]
        readers = (
            (number, term.groups.index(self._group[reader.name]), reader.sums, _reads_of(reader))
            for reader, number in self._readers[term.name]
        )
        return (
            operation.shape,
            operation.width,
            _reads_of(operation) if operation.sums else None,
            tuple(readers),
        )

    def _tensor(self, term: Term, at: Mapping[int, TensorLayout]) -> Crossing:
        operation = self._operations[term.name]
        made = at[term.groups[0]]
        readers = [
            (reader, number, at[self._group[reader.name]]) for reader, number in self._readers[term.name]
        ]
        if (found := self._of_bounds(operation, made, readers)) is not None:
            return found
        reads: dict[int, list[Box]] = {}
        for reader, number, held in readers:
            for piece in held.pieces:
                box = _read(reader, number, piece.box)
                if box is not None:
                    reads.setdefault(piece.rank, []).append(box)
        if operation.sums:
            return _of_sums(operation, received(operation, made, reads))
        sent: dict[int, int] = {}
        by_cause: dict[Cause, int] = {}
        for rank, needs in reads.items():
            own = made.of(rank)
            missing = _missing(needs, own)
            if missing:
                cause: Cause = "halos" if is_halo(needs, own) else "activations"
                size = 2 * operation.width * missing
                by_cause[cause] = by_cause.get(cause, 0) + size
                sent[rank] = size
        return Crossing(by_cause, max(sent.values()), 2) if sent else NOTHING

    def _of_bounds(
        self, operation: Operation, made: TensorLayout, readers: Sequence[tuple[Operation, int, TensorLayout]]
    ) -> Crossing | None:
        """Return what `_tensor` does, of all ranks at once, where each has one box at most; else None."""
        own = self._one_each(made)
        if own is None:
            return None
        needs = []
        for reader, number, held in readers:
            parts = self._one_each(held)
            if parts is None or (reader.sums and number):
                return None
            needs.append(parts if reader.sums else self._needed(reader, number, held, parts))
        ranks = max(len(one.lower) for one in (own, *needs))
        own, needs = own.padded(ranks), bounds.largest([one.padded(ranks) for one in needs])
        if operation.sums and len(needs) == 1:
            return _of_sums(operation, of_bounds(bounds.reduced(operation, own), needs[0]).tolist())
        if operation.sums or len(needs) > bounds.MOST_BOXES:
            return None
        sizes = 2 * operation.width * bounds.missing(needs, own)
        if not sizes.any():
            return NOTHING
        halos = int(sizes[bounds.are_halos(needs, own)].sum())
        by_cause: dict[Cause, int] = {"halos": halos, "activations": int(sizes.sum()) - halos}
        return Crossing({cause: size for cause, size in by_cause.items() if size}, int(sizes.max()), 2)

    def _needed(self, reader: Operation, number: int, held: TensorLayout, parts: Bounds) -> Bounds:
        key = reader.name, number, id(held)
        if key not in self._needs:
            self._needs[key] = bounds.needed(reader.readings[number], parts)
        return self._needs[key]

    def _one_each(self, held: TensorLayout) -> Bounds | None:
        """A layout as arrays, kept; None where a rank has several boxes."""
        if id(held) not in self._bounds:
            self._alive[id(held)] = held
            self._bounds[id(held)] = bounds.of(held)
        return self._bounds[id(held)]

    def _variable(self, term: Term, at: Mapping[int, TensorLayout]) -> Crossing:
        operation, weight = self._weights[term.name]
        held = at[term.groups[0]]
        one_each = None if operation.sums else self._one_each(held)
        if one_each is not None:
            sizes = _block_sizes(weight, one_each).tolist()
        else:
            sizes = [_size(_blocks(operation, weight, held.of(rank))) for rank in held.ranks]
        # A layout covers its tensor, and so all of the variable.
        total = 2 * weight.width * (sum(sizes) - math.prod(weight.shape))
        return Crossing({"weights": total}, 2 * weight.width * max(sizes), 0) if total else NOTHING


def _of_sums(operation: Operation, received: Sequence[int]) -> Crossing:
    """What elements of others' parts, of each rank, are in both passes."""
    total, width = sum(received), 2 * operation.width
    return Crossing({"statistics": width * total}, width * max(received), 2) if total else NOTHING


def _reads_of(operation: Operation) -> object:
    """How an operation reads, whatever it reads."""
    return operation.shape, tuple((one.shape, one.axes) for one in operation.readings)


@functools.lru_cache(maxsize=2**18)
def _read(operation: Operation, number: int, part: Box) -> Box | None:
    """What a part of what an operation's layout divides needs of one of its inputs."""
    if not operation.sums:
        return operation.readings[number].box(part)
    return part if number == 0 else operation.readings[number].box(operation.reduced(part))


def _blocks(operation: Operation, weight: Weight, parts: Iterable[Box]) -> list[Box]:
    return [weight.block(operation.reduced(one) if operation.sums else one) for one in parts]


def _block_sizes(weight: Weight, parts: Bounds) -> bounds.Ints:
    """Elements of a variable that each rank computes its box with."""
    sizes = np.where(parts.sizes > 0, 1, 0)
    lengths = parts.upper - parts.lower
    for size, cut in zip(weight.shape, weight.cuts, strict=True):
        sizes = sizes * (size if cut is None else lengths[:, cut])
    return sizes


def _size(some: Iterable[Box]) -> int:
    return sum(box.size for box in boxes.disjoint(some))


def _missing(needs: Iterable[Box], own: Sequence[Box]) -> int:
    """Return how many of the elements that a rank needs are not among its own."""
    return sum(part.size for box in boxes.disjoint(needs) for part in boxes.subtract(box, own))


def is_halo(needs: Sequence[Box], own: Sequence[Box]) -> bool:
    """Return whether a rank has the inside of what it reads, and lacks the border in space."""
    if not own:
        return False
    need, have = boxes.hull(needs), boxes.hull(own)
    samples_and_channels = (0, len(need.ranges) - 1)
    return need & have is not None and all(
        have.ranges[axis][0] <= need.ranges[axis][0] and need.ranges[axis][1] <= have.ranges[axis][1]
        for axis in samples_and_channels
    )


# Parts of sums that cross: statistics of batch norm, means. Pure.
#
# Each rank adds up its part of the input, and each part goes to each other rank that needs an element of it.


def received(operation: Operation, made: TensorLayout, reads: Mapping[int, Iterable[Box]]) -> list[int]:
    """Return how many elements of others' parts each reading rank receives.

    Args:
        operation: that sums.
        made: who adds up which part of its input.
        reads: what each rank needs of its output.
    """
    parts = {
        rank: tuple(sorted(boxes.disjoint(operation.reduced(box) for box in made.of(rank))))
        for rank in made.ranks
    }
    alike = Counter(parts.values())
    counts = []
    for target, needs in reads.items():
        need = boxes.disjoint(needs)
        from_all = sum(times * _common(part, need) for part, times in alike.items())
        counts.append(from_all - _common(parts.get(target, ()), need))
    return counts


def _common(part: Iterable[Box], need: Sequence[Box]) -> int:
    """How many elements two sets of disjoint boxes share."""
    return sum(common.size for box in part for one in need if (common := box & one) is not None)


def of_bounds(parts: Bounds, need: Bounds) -> Ints:
    """Return the same where each rank has a part of one box at most, and needs one, `(ranks,)`.

    Ranks with the same box are counted once: there are few different ones.
    """
    different, alike = np.unique(_ends(parts), axis=0, return_counts=True)
    wanted, which = np.unique(_ends(need), axis=0, return_inverse=True)
    common = np.minimum(different[:, 1], wanted[:, None, 1]) - np.maximum(different[:, 0], wanted[:, None, 0])
    from_all = (common.clip(min=0).prod(axis=2) * alike).sum(axis=1)
    return np.asarray(from_all[which.reshape(-1)] - (parts & need).sizes)


def _ends(some: Bounds) -> Ints:
    """Lower and upper ends, `(ranks, 2, axes)`."""
    return np.stack([some.lower, some.upper], axis=1)
