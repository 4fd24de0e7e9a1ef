"""Search for the way to divide each group, judged by what an update sends or by its seconds. Pure.

From a start it changes the choice of one group, or of a run of neighbours at once, as long as that improves:
where one group alone would gain nothing by a change, since its neighbours would send more, a run may.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainer.planning.hypergraph.choices import GroupChoice
from trainer.planning.hypergraph.traffic import Term, Traffic
from trainer.planning.placement.layouts import TensorLayout

Objective = Literal["time", "volume"]
Floats = NDArray[np.float64]
# For each group, the number of its choice.
Chosen = tuple[int, ...]
# Worse by less is rounding.
_LEAST_GAIN = 1e-9
# With more groups, runs of 2, 4, 8 ... groups are tried, and no others.
_FEW_GROUPS = 32


@dataclass(frozen=True)
class Machine:
    """What ranks and links can do, as far as a search looks: all links alike.

    Attributes:
        seconds: of each group on each rank, forward and backward, if it had all of it, `(groups, ranks)`.
        latency_s: of a message.
        bytes_per_second: of a link, each way.
    """

    seconds: Floats
    latency_s: float
    bytes_per_second: float


@dataclass(frozen=True, order=True)
class Value:
    """What a search minimises: first how far a rank has more to do than it may, then bytes or seconds."""

    over: float
    cost: float


class Search:
    """Choices for the groups of a network, and what they cost together.

    Args:
        traffic: of the network.
        choices: of each group; those of several groups with one label go together.
        machine: what ranks can do.
        objective: what counts.
        imbalance: how much longer than the mean the busiest rank may compute, all groups together; None: any.
        tries: how many changes are looked at from each start, at most.

    Attributes:
        choices: see above.
        loads: of each group, seconds on each rank for each choice, `(choices, ranks)`.
        is_balanced: whether the busiest rank is limited.
    """

    def __init__(
        self,
        traffic: Traffic,
        choices: Sequence[Sequence[GroupChoice]],
        machine: Machine,
        objective: Objective,
        *,
        imbalance: float | None,
        tries: int,
    ) -> None:
        self._traffic, self.choices, self._machine = traffic, choices, machine
        self._objective, self._imbalance, self._tries = objective, imbalance, tries
        self.is_balanced = imbalance is not None
        ranks = machine.seconds.shape[1]
        layouts = {id(choice.layout): choice.layout for some in choices for choice in some}
        shares = {key: _shares(layout, ranks) for key, layout in layouts.items()}
        self.loads = [
            np.array([shares[id(choice.layout)] * machine.seconds[number] for choice in some])
            for number, some in enumerate(choices)
        ]
        whole = machine.seconds
        ideal = 1 / (1 / np.maximum(whole, 1e-300)).sum(axis=1)
        # Of each choice, seconds of its busiest rank.
        self._longest = [load.max(axis=1).tolist() for load in self.loads]
        self._fair = float(ideal[whole.max(axis=1) > 0].sum())
        self._touching: dict[int, list[Term]] = {}
        for term in traffic.terms:
            for group in term.groups:
                self._touching.setdefault(group, []).append(term)
        # Of the groups of a change: what crosses by any of them.
        self._touched: dict[tuple[int, ...], list[Term]] = {}
        # Of each term: from layouts to those of its groups, and what these cost terms that are alike.
        costs: dict[int, dict[Any, float]] = {}
        self._known = {
            term.name: (operator.itemgetter(*term.groups), costs.setdefault(traffic.alike[term.name], {}))
            for term in traffic.terms
        }
        self._by_label: dict[str, dict[int, int]] = {}
        for number, some in enumerate(choices):
            for index, choice in enumerate(some):
                self._by_label.setdefault(choice.label, {})[number] = index

    def labelled(self, label: str, otherwise: Chosen) -> Chosen:
        """Return choices of one label, and others where a group has none of it."""
        own = self._by_label.get(label, {})
        return tuple(own.get(number, index) for number, index in enumerate(otherwise))

    def value(self, chosen: Chosen) -> Value:
        """Return what choices cost."""
        divided = [some[index].layout for some, index in zip(self.choices, chosen, strict=True)]
        load = sum(self.loads[number][index] for number, index in enumerate(chosen))
        cost = sum(self.crossing(self._traffic.terms, divided, list(map(id, divided))))
        return Value(self.over(load), cost + sum(self.computing(n, i) for n, i in enumerate(chosen)))

    def descend(self, start: Chosen) -> tuple[Chosen, Value]:
        """Return the choices to which changes of one group or one run lead, and what they cost."""
        now, left, improving = _State(self, start), self._tries, True
        while improving and left > 0:
            improving = False
            for change in self._changes(now.chosen):
                left -= 1
                improving |= now.changed(change)
                if left <= 0:
                    break
        return tuple(now.chosen), self.value(tuple(now.chosen))

    def _changes(self, chosen: Sequence[int]) -> Iterator[dict[int, int]]:
        """All changes of one group, then of runs, from choices that may change meanwhile."""
        for change in self._all_changes():
            real = {number: index for number, index in change.items() if chosen[number] != index}
            if real:
                yield real

    def _all_changes(self) -> Iterator[dict[int, int]]:
        count = len(self.choices)
        for number, some in enumerate(self.choices):
            yield from ({number: index} for index in range(len(some)))
        lengths = list(range(2, count + 1))
        if count > _FEW_GROUPS:
            lengths = [2**power for power in range(1, count.bit_length())] + [count]
        for own in self._by_label.values():
            if len(own) < 2:
                continue
            for first in range(count):
                if first not in own:
                    continue
                for length in lengths:
                    run = range(first, min(first + length, count))
                    change = {number: own[number] for number in run if number in own}
                    if len(change) > 1:
                        yield change
                    if first + length >= count:
                        break

    def computing(self, number: int, index: int) -> float:
        """Return what a choice for a group costs by itself."""
        return self._longest[number][index] if self._objective == "time" else 0.0

    def touched(self, groups: tuple[int, ...]) -> list[Term]:
        """Return what crosses by any of some groups, each once."""
        if groups not in self._touched:
            found = {term.name: term for number in groups for term in self._touching.get(number, ())}
            self._touched[groups] = list(found.values())
        return self._touched[groups]

    def crossing(
        self,
        terms: Sequence[Term],
        divided: Sequence[TensorLayout],
        ids: Sequence[int],
        at_most: float = math.inf,
    ) -> list[float]:
        """Return what tensors or variables cost.

        Args:
            terms: that are looked at.
            divided: the layouts of all groups.
            ids: of these objects; layouts that are equal and not the same one are rare.
            at_most: where the first of them cost more together, the others are left out.
        """
        costs, together = [], 0.0
        for term in terms:
            own, cache = self._known[term.name]
            key = own(ids)
            cost = cache.get(key)
            if cost is None:
                cost = cache[key] = self._crossing(term, divided)
            costs.append(cost)
            together += cost
            if together > at_most:
                break
        return costs

    def _crossing(self, term: Term, divided: Sequence[TensorLayout]) -> float:
        found = self._traffic.crossing(term, divided)
        if self._objective == "volume":
            return float(found.total)
        return found.rounds * self._machine.latency_s + found.busiest / self._machine.bytes_per_second

    def over(self, load: Floats) -> float:
        """Return by how much the busiest rank exceeds the imbalance."""
        if self._imbalance is None:
            return 0.0
        return max(0.0, float(load.max()) / self._fair - 1 - self._imbalance) if self._fair else 0.0


class _State:
    """Choices while they are changed."""

    def __init__(self, search: Search, chosen: Chosen) -> None:
        self._search, self.chosen = search, list(chosen)
        self._divided = [some[i].layout for some, i in zip(search.choices, chosen, strict=True)]
        self._ids = list(map(id, self._divided))
        self._load = np.sum([search.loads[n][i] for n, i in enumerate(chosen)], axis=0)
        self._over = search.over(self._load)
        terms = search.touched(tuple(range(len(chosen))))
        self._crossing = {
            term.name: cost
            for term, cost in zip(terms, search.crossing(terms, self._divided, self._ids), strict=True)
        }

    def changed(self, change: dict[int, int]) -> bool:
        """Change some groups if that is better; return whether it was."""
        search = self._search
        touched = search.touched(tuple(change))
        before = sum([self._crossing[term.name] for term in touched])
        before += sum([search.computing(number, self.chosen[number]) for number in change])
        load, over, is_fairer = None, 0.0, False
        if search.is_balanced:
            load = self._load_with(change)
            over = search.over(load)
            is_fairer = over < self._over - _LEAST_GAIN
            if over > self._over + _LEAST_GAIN:
                return False
        old = {number: self._divided[number] for number in change}
        for number, index in change.items():
            self._put(number, search.choices[number][index].layout)
        # What no change may cost, whatever is rounded: nothing costs less than 0, so that a sum only grows.
        computing = sum([search.computing(number, index) for number, index in change.items()])
        limit = math.inf if is_fairer else before * (1 + _LEAST_GAIN) - computing
        crossing = search.crossing(touched, self._divided, self._ids, limit)
        scale = max(abs(before), 1e-300)
        is_less = len(crossing) == len(touched) and sum(crossing) + computing < before - _LEAST_GAIN * scale
        if is_fairer or is_less:
            self._load, self._over = self._load_with(change) if load is None else load, over
            for term, cost in zip(touched, crossing, strict=True):
                self._crossing[term.name] = cost
            for number, index in change.items():
                self.chosen[number] = index
            return True
        for number, layout in old.items():
            self._put(number, layout)
        return False

    def _load_with(self, change: dict[int, int]) -> Floats:
        load = self._load.copy()
        for number, index in change.items():
            load += self._search.loads[number][index] - self._search.loads[number][self.chosen[number]]
        return load

    def _put(self, number: int, layout: TensorLayout) -> None:
        self._divided[number], self._ids[number] = layout, id(layout)


def _shares(layout: TensorLayout, ranks: int) -> Floats:
    """Of each rank, the part of all elements that it has."""
    found = np.zeros(ranks)
    for piece in layout.pieces:
        found[piece.rank] += piece.box.size
    return found / math.prod(layout.shape)
