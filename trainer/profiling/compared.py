"""The strategies that `cingulum plan` compares, and what tells one row of its tables from another."""

from __future__ import annotations

from trainer.config import (
    FiltersConfig,
    HybridConfig,
    HypergraphConfig,
    RingConfig,
    SpatialConfig,
    StrategySection,
)
from trainer.planning.placement.operations import Network
from trainer.planning.profile import Profile


def sections(network: Network, ranks: int, samples: int, profile: Profile | None) -> list[StrategySection]:
    """Return the section of each strategy.

    Args:
        network: that is divided.
        ranks: that would train.
        samples: of a micro-batch.
        profile: of the network; None: devices are alike, and bytes count.
    """
    shares = None if profile is None else _speeds(network, profile, ranks)
    return [
        RingConfig(),
        SpatialConfig(name="spatial"),
        FiltersConfig(name="filters", shares=shares),
        FiltersConfig(name="filters", mode="master", shares=shares),
        HybridConfig(name="hybrid", micro_batches=_micro_batches(ranks, samples)),
        HypergraphConfig(name="hypergraph", objective="volume" if profile is None else "time"),
    ]


def _micro_batches(ranks: int, samples: int) -> int:
    """As many as divide the samples, and four for each rank at most: more hide less than they cost."""
    return max(n for n in range(1, min(samples, 4 * ranks) + 1) if samples % n == 0)


def label(section: StrategySection) -> str:
    """Return what tells one row of a table from another."""
    return section.name + (", master" if getattr(section, "mode", "") == "master" else "")


def _speeds(network: Network, profile: Profile, ranks: int) -> list[float]:
    """Shares in proportion to the speed of each rank's convolutions, to three digits."""
    names = [one.name for one in network.operations if one.kind in ("convolution", "transposed")]
    took = [
        sum(profile.forward_s(name, rank) + profile.backward_s(name, rank) for name in names)
        for rank in range(ranks)
    ]
    if not names or min(took) <= 0:
        return [1.0] * ranks
    return [round(min(took) / one, 3) for one in took]
