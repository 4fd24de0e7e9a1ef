"""The ways to divide a network by one rule everywhere: with what a plan is compared. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from trainer.errors import ConfigError
from trainer.planning.placement import staging, ways
from trainer.planning.placement.layouts import replicated
from trainer.planning.placement.operations import Network
from trainer.planning.placement.ways import Layouts, placed_shape
from trainer.planning.stages import cutting


def uniform(network: Network, ranks: int, speeds: Sequence[float]) -> dict[str, Layouts]:
    """Return the layouts of each rule that can divide a network over ranks.

    `data`: samples; `spatial`: depth, and small maps along channels; `filters`: channels, with and without a
    master; `layers`: whole layers, one rank after the other.
    """
    shares = dict(enumerate(speeds))
    tried = {
        "data": lambda: ways.replicas(network, ranks, 1, _alone),
        "spatial": lambda: ways.spatial(
            network, (ranks, 1, 1)[: _space(network)], range(ranks), samples=network.operations[-1].shape[0]
        ),
        "filters": lambda: ways.filters(network, shares, master=False),
        "filters, master": lambda: ways.filters(network, shares, master=True),
        "layers": lambda: _layers(network, ranks),
    }
    found = {}
    for label, made in tried.items():
        # With too few samples or planes a rule cannot divide this network.
        with contextlib.suppress(ConfigError):
            found[label] = made()
    return found


def _space(network: Network) -> int:
    return max(1, len(network.inputs[0].shape) - 2)


def _alone(network: Network) -> Layouts:
    return {one.name: replicated(placed_shape(one), [0]) for one in network.operations if one.readings}


def _layers(network: Network, ranks: int) -> Layouts:
    parts = staging.groups(network)
    work = [sum(network[name].flops for name in names) for names in parts]
    stages = cutting.partitions(work, min(ranks, len(parts)))
    merged = [tuple(name for names in parts[start:stop] for name in names) for start, stop in stages]
    return staging.on_ranks(network, merged, range(len(merged)))
