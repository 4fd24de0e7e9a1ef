"""Who computes what, by no rule: the best of what searches find and of every uniform way. Pure.

Uniform ways are samples, space or channels cut everywhere, and whole layers one after the other. The best of
all by what counts is the plan: so it is never worse than a uniform way that keeps the same balance.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.errors import ConfigError
from trainer.planning.hypergraph import judging, nested, reference
from trainer.planning.hypergraph.candidates import Candidates, Divided
from trainer.planning.hypergraph.groups import OperationGroup
from trainer.planning.hypergraph.judging import NEGLIGIBLE, JudgedPlacement
from trainer.planning.hypergraph.machines import machine
from trainer.planning.hypergraph.search import Objective
from trainer.planning.hypergraph.traffic import Traffic
from trainer.planning.hypergraph.wanted import PartitionGoal
from trainer.planning.placement import staging, ways
from trainer.planning.placement.listing import Pipeline
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.ways import Layouts, placed_shape
from trainer.planning.profile import Profile
from trainer.planning.stages import cutting

# Takes how many of how many are done.
Show = Callable[[int, int], None]
Stages = Callable[[Layouts], Pipeline | None]


@dataclass(frozen=True)
class FoundPlan:
    """What was found.

    Attributes:
        best: by what counts.
        uniform: the ways that follow one rule, for comparison.
        hypergraphs: that were divided.
        left_out: partitions that could not be had, each with the reason.
    """

    best: JudgedPlacement
    uniform: tuple[JudgedPlacement, ...]
    hypergraphs: tuple[Divided, ...]
    left_out: tuple[str, ...] = ()


def plan(
    network: OperationGraph,
    ranks: int,
    goal: PartitionGoal,
    *,
    profile: Profile | None = None,
    micro_batches: int = 1,
    pipeline: Stages = lambda _: None,
    show: Show = lambda done, total: None,
) -> FoundPlan:
    """Divide a network over ranks.

    Args:
        network: whose shapes hold the samples of a micro-batch.
        ranks: that train. Of more than `judging.MOST_LISTED`, seconds are those of `estimating`.
        goal: what is looked for.
        profile: of the network, for `ranks` ranks or more; None: see `reference.profile`.
        micro_batches: of an update.
        pipeline: from layouts to the order in which stages work on them.
        show: is told how many of how many steps are done, about.

    Returns:
        The best of all that was tried; where none keeps the imbalance, the one that exceeds it least.

    Raises:
        ConfigError: ranks are many, and no layer has as many tiles.
    """
    is_listed = ranks <= judging.MOST_LISTED
    if not is_listed:
        _check_tiles(network, ranks)
    network_profile = profile or reference.profile(network, ranks)
    done = itertools.count(1)

    def advance() -> None:
        show(min(next(done), total), total)

    if is_listed:

        def judge(label: str, layouts: Layouts) -> JudgedPlacement:
            return judging.judged(label, network, layouts, network_profile, ranks, pipeline)

    else:
        judge = Estimates(network, network_profile, ranks, micro_batches).judged
    candidates = Candidates(network, ranks, goal, network_profile, micro_batches, advance)
    divided_by_rules = uniform(network, ranks, candidates.speeds)
    total = candidates.steps + len(divided_by_rules)
    rules = {}
    for label, one in divided_by_rules.items():
        rules[label] = judge(label, one)
        advance()
    placements = [
        judge(label, one)
        for label, divided in candidates.short_list()
        for one in _variants(network, divided, goal.objective)
    ]
    show(total, total)
    best = min([*placements, *rules.values()], key=lambda one: _worth(one, goal))
    return FoundPlan(best, tuple(rules.values()), tuple(candidates.hypergraphs), tuple(candidates.left_out))


def _check_tiles(network: OperationGraph, ranks: int) -> None:
    shapes = {placed_shape(one): one.name for one in network.operations if one.readings}
    most = nested.most_parts(shapes, ranks)
    if most < ranks:
        raise ConfigError(
            f"No layer can be divided into {ranks} tiles of about one size, one for each rank of a replica; "
            f"the most that one can be divided into is {most}.",
            cure=f"Take replicas of {most} ranks or fewer (train.strategy.replicas), or larger volumes.",
            key="train.strategy.replicas",
        )


def _variants(network: OperationGraph, divided: Layouts, objective: Objective) -> list[Layouts]:
    """A placement, and where seconds count, one whose borders are computed twice: one exchange less."""
    return [divided] if objective == "volume" else [divided, ways.with_borders(network, divided)]


def _worth(placement: JudgedPlacement, goal: PartitionGoal) -> tuple[float, float, float]:
    """Return what is minimised, in this order."""
    if goal.objective == "time":
        return 0.0, placement.step_s, placement.volume
    has = (
        placement.imbalance
        if goal.balance == "total"
        else max(placement.imbalance, placement.layer_imbalance)
    )
    return max(0.0, round(has - goal.imbalance, 9)), placement.volume, placement.step_s


# What a placement over many ranks costs, from its layouts alone: messages of so many are not listed. Pure.
#
# Bytes are those that the task lists would have, exactly (`traffic`). Seconds are added up as if nothing
# overlapped: of each operation those of its slowest rank, of each tensor and variable those in which its
# busiest rank sends or receives, and of each round a message's. That is what a search minimises.


class Estimates:
    """Estimates of the placements of a network.

    Args:
        network: whose shapes hold the samples of a micro-batch.
        profile: of the network, for `ranks` ranks or more.
        ranks: that train.
        micro_batches: of an update.
    """

    def __init__(self, network: OperationGraph, profile: Profile, ranks: int, micro_batches: int) -> None:
        # Each operation by itself: rules may divide those of a group in different ways.
        self._operations = tuple(
            OperationGroup((one.name,), placed_shape(one), one.flops)
            for one in network.operations
            if one.readings
        )
        self._ranks, self._times = ranks, micro_batches
        self._traffic = Traffic(network, self._operations, micro_batches)
        self._machine = machine(network, self._operations, profile, ranks)

    def judged(self, label: str, layouts: Layouts) -> JudgedPlacement:
        """Return what layouts of all operations cost."""
        divided = [layouts[one.names[0]] for one in self._operations]
        seconds = self._machine.seconds
        done = np.zeros_like(seconds)
        for number, held in enumerate(divided):
            size = float(np.prod(held.shape))
            for piece in held.pieces:
                done[number, piece.rank] += piece.box.size / size * seconds[number, piece.rank]
        crossing = [self._traffic.crossing(term, divided) for term in self._traffic.terms]
        links = sum(
            one.rounds * self._machine.latency_s + one.busiest / self._machine.bytes_per_second
            for one in crossing
        )
        # If all ranks were done at once, in proportion to their speeds.
        ideal = 1 / (1 / np.maximum(seconds, 1e-300)).sum(axis=1)
        counted = ideal > NEGLIGIBLE * ideal.sum()
        return JudgedPlacement(
            label,
            layouts,
            self._traffic.total(divided),
            self._times * float(done.max(axis=1).sum()) + links,
            float(done.sum(axis=0).max() / ideal.sum()) - 1 if ideal.sum() > 0 else 0.0,
            float((done.max(axis=1)[counted] / ideal[counted]).max(initial=1.0)) - 1,
        )


# The ways to divide a network by one rule everywhere: with what a plan is compared. Pure.


def uniform(network: OperationGraph, ranks: int, speeds: Sequence[float]) -> dict[str, Layouts]:
    """Return the layouts of each rule that can divide a network over ranks.

    `data`: samples; `spatial`: depth, and small maps along channels; `filters`: channels, with and without a
    master; `layers`: whole layers, one rank after the other.
    """
    shares = dict(enumerate(speeds))
    tried = {
        "data": lambda: ways.replicas(network, ranks, 1, ways.alone),
        "spatial": lambda: ways.spatial(
            network, (ranks, 1, 1)[: _space(network)], range(ranks), samples=network.operations[-1].shape[0]
        ),
        "filters": lambda: ways.filters(network, shares, master=False),
        "filters, master": lambda: ways.filters(network, shares, master=True),
        "layers": lambda: _layers(network, ranks),
    }
    by_rule = {}
    for label, made in tried.items():
        # With too few samples or planes a rule cannot divide this network.
        with contextlib.suppress(ConfigError):
            by_rule[label] = made()
    return by_rule


def _space(network: OperationGraph) -> int:
    return max(1, len(network.inputs[0].shape) - 2)


def _layers(network: OperationGraph, ranks: int) -> Layouts:
    parts = staging.groups(network)
    work = [sum(network[name].flops for name in names) for names in parts]
    stages = cutting.partitions(work, min(ranks, len(parts)))
    merged = [tuple(name for names in parts[start:stop] for name in names) for start, stop in stages]
    return staging.on_ranks(network, merged, range(len(merged)))
