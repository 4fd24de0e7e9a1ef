"""Placements that may be the best: partitions of the hypergraph and cuts of every layer, searched on. Pure.

Starts are cuts of one kind everywhere, what Mt-KaHyPar makes of tiles of several sizes, and, where there are
few tiles, the proven optimum. From each of them the search changes groups and runs of groups.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.planning.hypergraph import choices, exact, nested
from trainer.planning.hypergraph.choices import GroupChoice
from trainer.planning.hypergraph.groups import OperationGroup, groups, layouts
from trainer.planning.hypergraph.judging import MOST_LISTED, NEGLIGIBLE
from trainer.planning.hypergraph.machines import distances, machine
from trainer.planning.hypergraph.nets import Hypergraph, hypergraph
from trainer.planning.hypergraph.partitioner import Partitioner, PartitionError
from trainer.planning.hypergraph.search import Objective, Search, Value
from trainer.planning.hypergraph.traffic import Traffic
from trainer.planning.hypergraph.wanted import Balance, PartitionGoal
from trainer.planning.placement.layouts import TensorLayout
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.ways import Layouts
from trainer.planning.profile import Profile

# Seeds of the partitioner, which is cheap.
_SEEDS = 2
# What searches look at, from all starts together: changes, times tensors and variables of the network.
_LOOKS = 4_000_000
# Placements of which the whole update is played, besides uniform ways: with many ranks it takes long.
_SHORT_LIST, _SHORTER_LIST, _MANY_RANKS = 6, 2, 16
# With more ranks the search puts no layer on one of them whole; the partitioner may.
_FEW_RANKS = 16
# Of the exact program, for each hypergraph.
_EXACT_S = 3.0


@dataclass(frozen=True)
class Divided:
    """What became of a hypergraph.

    Attributes:
        tiles: what they are.
        vertices: how many.
        nets: how many.
        connectivity: bytes that cross, of the best partition within the imbalance that was found.
        bound: that no partition within the imbalance is below; None where the program would be too large.
    """

    tiles: str
    vertices: int
    nets: int
    connectivity: int
    bound: float | None


class Candidates:
    """The groups of a network, and placements of them.

    Args:
        network: whose shapes hold the samples of a micro-batch.
        ranks: that train.
        goal: what is looked for.
        profile: of the network, for `ranks` ranks or more.
        times: micro-batches of an update.
        done: is called after each of about `steps`.

    Attributes:
        speeds: of each rank, relative.
        hypergraphs: see `Plan`.
        left_out: see `Plan`.
    """

    def __init__(
        self,
        network: OperationGraph,
        ranks: int,
        goal: PartitionGoal,
        profile: Profile,
        times: int,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self._done = done
        self._network, self._ranks, self._goal = network, ranks, goal
        self._groups = groups(network)
        self._traffic, self._times = Traffic(network, self._groups, times), times
        self._machine = machine(network, self._groups, profile, ranks)
        took = self._machine.seconds.sum(axis=0)
        self.speeds = [float(one) for one in took.min() / took] if took.min() > 0 else [1.0] * ranks
        if max(self.speeds) < 1.02 * min(self.speeds):
            self.speeds = [1.0] * ranks
        self._cuts = self._of_shapes(self._cut)
        self.hypergraphs: list[Divided] = []
        self.left_out: list[str] = []
        may_map = goal.objective == "time" and ranks <= MOST_LISTED
        self._distances = distances(profile, ranks) if may_map else None
        self._mapped: list[tuple[str, list[TensorLayout]]] = []

    @property
    def steps(self) -> int:
        """How many tilings are divided, starts searched on and placements found, about."""
        tiled = len(self._tilings)
        starts = tiled + len({choice.label for some in self._cuts for choice in some}) + len(self._wholes[0])
        return tiled + len(self._searches()) * (starts + self._length)

    @property
    def _length(self) -> int:
        return _SHORT_LIST if self._ranks < _MANY_RANKS else _SHORTER_LIST

    def short_list(self) -> Iterator[tuple[str, Layouts]]:
        """Return the most promising placements, each once."""
        seen: set[tuple[int, ...]] = set()
        for objective, balance in self._searches():
            for label, divided in self._found(objective, balance):
                key = tuple(map(id, divided))
                if key not in seen:
                    seen.add(key)
                    yield label, layouts(self._groups, divided)
        # The search takes links as all alike, and would pass over these, which came with the partitions.
        for label, divided in self._mapped:
            yield label, layouts(self._groups, divided)

    def _searches(self) -> tuple[tuple[Objective, Balance], ...]:
        """What searches minimise, and what they keep balanced.

        Seconds are added up as if nothing overlapped. What hides behind computing is therefore not searched:
        plans for the least volume may take less, and are looked at, too.
        """
        if self._goal.objective == "volume":
            return (("volume", self._goal.balance),)
        return ("time", "total"), ("volume", "layers"), ("volume", "total")

    def _found(self, objective: Objective, balance: Balance) -> Iterator[tuple[str, list[TensorLayout]]]:
        """Return what one search finds, the best first, with the start that it found it from."""
        is_every_layer = objective == "volume" and balance == "layers"
        offered = [self._choices(number, is_every_layer) for number in range(len(self._groups))]
        if self._ranks > 1 and not is_every_layer:
            for label, divided in self._partitions:
                for own, layout in zip(offered, divided, strict=True):
                    own.append(GroupChoice(label, layout))
        labels = list(dict.fromkeys(choice.label for some in offered for choice in some))
        search = Search(
            self._traffic,
            offered,
            self._machine,
            objective,
            imbalance=self._goal.imbalance if objective == "volume" else None,
            tries=_LOOKS // max(1, len(labels) * len(self._traffic.terms)),
        )
        placements: dict[tuple[int, ...], tuple[Value, str]] = {}
        first = tuple(0 for _ in offered)
        for label in labels:
            start = search.labelled(label, first)
            placements.setdefault(start, (search.value(start), label))
            chosen, value = search.descend(start)
            placements.setdefault(chosen, (value, f"searched from {label}"))
            self._done()
        for chosen in sorted(placements, key=lambda chosen: placements[chosen])[: self._length]:
            divided = [some[index].layout for some, index in zip(offered, chosen, strict=True)]
            yield placements[chosen][1], divided
            self._done()

    def sketch(self) -> tuple[float, int]:
        """Return the seconds of the best cut of one kind everywhere, as a search sees it before it begins.

        Beside them, bytes of the variables that the rank with most of them computes with.
        """
        offered = [self._choices(number, False) for number in range(len(self._groups))]
        search = Search(self._traffic, offered, self._machine, "time", imbalance=None, tries=0)
        labels = dict.fromkeys(choice.label for some in offered for choice in some)
        starts = [search.labelled(label, tuple(0 for _ in offered)) for label in labels]
        best = min(starts, key=search.value)
        divided = [some[index].layout for some, index in zip(offered, best, strict=True)]
        return search.value(best).cost, int(self._traffic.held(divided).max())

    def _choices(self, number: int, is_every_layer: bool) -> list[GroupChoice]:
        """Ways to divide a group, of which the first one is there for every group.

        Args:
            number: of the group.
            is_every_layer: whether it must be balanced, unless it takes next to no time.
        """
        cut = self._cuts[number]
        share = self._machine.seconds[number].sum() / max(float(self._machine.seconds.sum()), 1e-300)
        if is_every_layer and share > NEGLIGIBLE:
            each = {one.label: choices.imbalance(one, self.speeds) for one in cut}
            least = min(each.values(), default=math.inf)
            most = max(self._goal.imbalance, least) + 1e-9
            return [one for one in cut if each[one.label] <= most] or list(self._wholes[number])
        return [*self._wholes[number], *cut]

    @functools.cached_property
    def _wholes(self) -> list[list[GroupChoice]]:
        """Of each group, the choices to have it whole on one rank."""
        ranks = range(self._ranks if self._ranks <= _FEW_RANKS else 1)
        return self._of_shapes(lambda shape: [choices.whole(shape, rank) for rank in ranks])

    def _of_shapes(self, offered: Callable[[tuple[int, ...]], list[GroupChoice]]) -> list[list[GroupChoice]]:
        """Choices of each group; those of one shape share layouts, so that what they send is counted once."""
        shapes = dict.fromkeys(group.shape for group in self._groups)
        found = {shape: offered(shape) for shape in shapes}
        return [list(found[group.shape]) for group in self._groups]

    def _cut(self, shape: tuple[int, ...]) -> list[GroupChoice]:
        """Ways to cut a shape; where ranks are many also for some of them, to which little may be enough."""
        found = choices.cuts(shape, self.speeds)
        if self._ranks > MOST_LISTED and len(set(self.speeds)) == 1:
            found += nested.over_fewer(shape, self._ranks)
        return found

    @functools.cached_property
    def _tilings(self) -> list[tuple[str, Counts]]:
        if self._ranks == 1 or self._outer == 1:
            return []
        return list(tilings(self._groups, self._outer, self._goal.granularity))

    @functools.cached_property
    def _outer(self) -> int:
        """Parts that the partitioner makes: one for each rank, or, of many, for each group of them."""
        if self._ranks <= MOST_LISTED:
            return self._ranks
        return nested.outer(self._ranks) if len(set(self.speeds)) == 1 else 1

    @functools.cached_property
    def _partitions(self) -> list[tuple[str, list[TensorLayout]]]:
        """Return what the partitioner and the exact program make of tiles."""
        partitions = []
        with Partitioner() as partitioner:
            for label, counts in self._tilings:
                divided = self._tiled(partitioner, label, counts)
                self._done()
                if divided is None:
                    continue
                if self._outer == self._ranks:
                    partitions.append((f"partition of {label}", divided))
                else:
                    partitions += [
                        (f"partition of {label} over {self._outer} groups, {way} inside", inside)
                        for way, inside in nested.inside(divided, self._ranks, self._outer)
                    ]
        return partitions

    def _tiled(self, partitioner: Partitioner, label: str, counts: Counts) -> list[TensorLayout] | None:
        """Layouts of the best partition of tiles; None where there is none. Keeps a mapping of them."""
        graph = hypergraph(self._network, self._groups, counts, self._times)
        graph = dataclasses.replace(graph, weights=self._weights(graph))
        shares, seeds = (self.speeds, _SEEDS) if self._outer == self._ranks else ([1.0] * self._outer, 1)
        limit, first = self._goal.imbalance, self._goal.seed

        def parts(what: str, seed: int, far: list[list[float]] | None = None) -> list[tuple[int, ...]]:
            try:
                return [partitioner.partition(graph, shares, imbalance=limit, seed=seed, distances=far)]
            except PartitionError as error:
                self.left_out.append(f"{what}: {error}")
                return []

        tried = [one for more in range(seeds) for one in parts(f"partition of {label}", first + more)]
        bound = None
        if exact.is_small(graph, self._outer):
            solved = exact.solve(graph, shares, imbalance=limit, time_limit_s=_EXACT_S)
            tried += [solved.parts] if solved.parts is not None else []
            bound = solved.bound
        if self._distances is not None:
            name = f"mapping of {label} onto links"
            for mapped in parts(name, first, self._distances):
                self._mapped.append((name, graph.layouts(self._groups, mapped)))
        if not tried:
            return None
        best = min(tried, key=lambda parts: graph.connectivity(parts, counted=False))
        crossing = graph.connectivity(best, counted=False)
        self.hypergraphs.append(Divided(label, len(graph.weights), len(graph.nets), crossing, bound))
        return graph.layouts(self._groups, best)

    def _weights(self, graph: Hypergraph) -> np.ndarray:
        """Return the mean seconds of each tile, in place of FLOPs."""
        seconds = []
        for group, tiling, each in zip(self._groups, graph.tilings, self._machine.seconds, strict=True):
            size = math.prod(group.shape)
            seconds += [float(each.mean()) * box.size / size for box in tiling.boxes()]
        return np.array(seconds)


# How finely groups are cut into tiles before a partitioner gives the tiles to ranks. Pure.


Counts = list[tuple[int, ...]]
# Of a tiling that is tried: more tiles take long and have gained nothing.
_MOST_TILES = 10_000
_MOST_OF_A_GROUP = 256
# Which axes are cut.
_AXES = ("", "depth", "channels", "samples", "depth, channels", "samples, depth, channels")
_FEWEST_AXES = 3  # samples, one of space, channels


def tilings(
    groups: Sequence[OperationGroup], ranks: int, granularity: int | None
) -> Iterator[tuple[str, Counts]]:
    """Return ways to cut groups into tiles, each with what it is called.

    Args:
        groups: of a network.
        ranks: that the tiles are for.
        granularity: tiles along an axis that is cut; None: as many as there are ranks, and twice as many.
    """
    seen: list[Counts] = []
    for step in [granularity] if granularity else [ranks, 2 * ranks]:
        for axes in _AXES:
            counts = [_counts(group.shape, axes, step) for group in groups]
            sizes = [math.prod(one) for one in counts]
            fits = ranks <= sum(sizes) <= _MOST_TILES and max(sizes) <= _MOST_OF_A_GROUP
            if fits and counts not in seen:
                seen.append(counts)
                yield (f"{axes} in {step}" if axes else "whole layers"), counts


def _counts(shape: Sequence[int], axes: str, parts: int) -> tuple[int, ...]:
    counts = [1] * len(shape)
    if "samples" in axes:
        counts[0] = min(parts, shape[0])
    if len(shape) >= _FEWEST_AXES:
        if "depth" in axes:
            counts[1] = min(parts, shape[1])
        if "channels" in axes:
            counts[-1] = min(parts, shape[-1])
    return tuple(counts)
