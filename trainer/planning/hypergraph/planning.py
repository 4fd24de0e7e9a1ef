"""Who computes what, by no rule: the best of what searches find and of every uniform way. Pure.

Uniform ways are samples, space or channels cut everywhere, and whole layers one after the other. The best of
all by what counts is the plan: so it is never worse than a uniform way that keeps the same balance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from trainer.errors import ConfigError
from trainer.planning.hypergraph import judging, nested, reference
from trainer.planning.hypergraph.candidates import Candidates, Divided
from trainer.planning.hypergraph.estimating import Estimates
from trainer.planning.hypergraph.judging import Judged
from trainer.planning.hypergraph.search import Objective
from trainer.planning.hypergraph.uniform import uniform
from trainer.planning.hypergraph.wanted import Wanted
from trainer.planning.placement import ways
from trainer.planning.placement.listing import Pipeline
from trainer.planning.placement.operations import Network
from trainer.planning.placement.ways import Layouts, placed_shape
from trainer.planning.profile import Profile

# Takes how many of how many are done.
Show = Callable[[int, int], None]
Stages = Callable[[Layouts], Pipeline | None]


@dataclass(frozen=True)
class Plan:
    """What was found.

    Attributes:
        best: by what counts.
        uniform: the ways that follow one rule, for comparison.
        hypergraphs: that were divided.
        left_out: partitions that could not be had, each with the reason.
    """

    best: Judged
    uniform: tuple[Judged, ...]
    hypergraphs: tuple[Divided, ...]
    left_out: tuple[str, ...] = ()


def plan(
    network: Network,
    ranks: int,
    wanted: Wanted,
    *,
    profile: Profile | None = None,
    micro_batches: int = 1,
    pipeline: Stages = lambda _: None,
    show: Show = lambda done, total: None,
) -> Plan:
    """Divide a network over ranks.

    Args:
        network: whose shapes hold the samples of a micro-batch.
        ranks: that train. Of more than `judging.MOST_LISTED`, seconds are those of `estimating`.
        wanted: what is looked for.
        profile: of the network, for so many ranks or more; None: see `reference.profile`.
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
    known = profile or reference.profile(network, ranks)
    done = itertools.count(1)

    def advance() -> None:
        show(min(next(done), total), total)

    if is_listed:

        def judge(label: str, layouts: Layouts) -> Judged:
            return judging.judged(label, network, layouts, known, ranks, pipeline)

    else:
        judge = Estimates(network, known, ranks, micro_batches).judged
    candidates = Candidates(network, ranks, wanted, known, micro_batches, advance)
    divided_by_rules = uniform(network, ranks, candidates.speeds)
    total = candidates.steps + len(divided_by_rules)
    rules = {}
    for label, one in divided_by_rules.items():
        rules[label] = judge(label, one)
        advance()
    found = [
        judge(label, one)
        for label, divided in candidates.short_list()
        for one in _variants(network, divided, wanted.objective)
    ]
    show(total, total)
    best = min([*found, *rules.values()], key=lambda one: _worth(one, wanted))
    return Plan(best, tuple(rules.values()), tuple(candidates.hypergraphs), tuple(candidates.left_out))


def _check_tiles(network: Network, ranks: int) -> None:
    shapes = {placed_shape(one): one.name for one in network.operations if one.readings}
    most = nested.most_parts(shapes, ranks)
    if most < ranks:
        raise ConfigError(
            f"No layer can be divided into {ranks} tiles of about one size, one for each rank of a replica; "
            f"the most that one can be divided into is {most}.",
            cure=f"Take replicas of {most} ranks or fewer (train.strategy.replicas), or larger volumes.",
            key="train.strategy.replicas",
        )


def _variants(network: Network, divided: Layouts, objective: Objective) -> list[Layouts]:
    """A placement, and where seconds count, one whose borders are computed twice: one exchange less."""
    return [divided] if objective == "volume" else [divided, ways.with_borders(network, divided)]


def _worth(one: Judged, wanted: Wanted) -> tuple[float, float, float]:
    """What is minimised, in this order."""
    if wanted.objective == "time":
        return 0.0, one.step_s, one.volume
    has = one.imbalance if wanted.balance == "total" else max(one.imbalance, one.layer_imbalance)
    return max(0.0, round(has - wanted.imbalance, 9)), one.volume, one.step_s
