"""What `train.strategy=auto` tries: strategies with their numbers of replicas and micro-batches. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainer.config import (
    AutoConfig,
    FiltersConfig,
    HybridConfig,
    HypergraphConfig,
    RingConfig,
    SpatialConfig,
    StrategySection,
)

# Ranks of a replica over which a hypergraph is planned in seconds, not minutes.
MOST_OF_HYPERGRAPH = 8
# Micro-batches for each rank of a replica: more hide less than they cost.
MICRO_BATCHES = 4
# Speeds that differ by less are taken for equal: two measurements of one device do.
_ALIKE = 0.1


def sections(
    asked: AutoConfig, ranks: int, samples: int, *, normalised: bool, speeds: Sequence[float]
) -> list[StrategySection]:
    """Return the sections to try, those of few replicas last.

    None of them changes what an update is: batch norm takes its statistics of the samples of which it takes
    them in one process, so that a network with batch norm has one micro-batch.

    Args:
        asked: which strategies.
        ranks: that train.
        samples: of a micro-batch, over all ranks.
        normalised: whether the network has batch norm.
        speeds: of each rank, relative to the fastest.
    """
    found: list[StrategySection] = []
    if "data" in asked.among and not samples % ranks:
        found.append(RingConfig())
    for replicas in range(ranks // 2, 0, -1):
        if ranks % replicas or samples % replicas:
            continue
        of_one = _of_replicas(asked, replicas, ranks // replicas, samples // replicas, normalised, speeds)
        found.extend(one for one in of_one if one.name in asked.among)
    return found


def _of_replicas(
    asked: AutoConfig, replicas: int, ranks: int, samples: int, normalised: bool, speeds: Sequence[float]
) -> Iterator[StrategySection]:
    """What divides the network over the ranks of a replica, which takes so many samples."""
    yield SpatialConfig(name="spatial", replicas=replicas)
    # Shares are those of every replica: ranks of the same place in it must be alike.
    places = [list(speeds[place::ranks]) for place in range(ranks)]
    if all(max(place) - min(place) <= _ALIKE * max(place) for place in places):
        shares = [round(min(place), 2) for place in places]
        equal = max(shares) - min(shares) <= _ALIKE * max(shares)
        yield FiltersConfig(name="filters", replicas=replicas, shares=None if equal else shares)
    most = 1 if normalised else MICRO_BATCHES * ranks
    counts = {1, max(n for n in range(1, min(samples, most) + 1) if samples % n == 0)}
    for micro_batches in sorted(counts):
        yield HybridConfig(name="hybrid", replicas=replicas, micro_batches=micro_batches)
    if ranks <= MOST_OF_HYPERGRAPH:
        yield HypergraphConfig(name="hypergraph", replicas=replicas)


def label(section: StrategySection) -> str:
    """Return what tells one candidate from another, for people."""
    words = [section.name]
    for key, what in (("replicas", "replicas"), ("micro_batches", "micro-batches")):
        if getattr(section, key, 1) > 1:
            words.append(f"{getattr(section, key)} {what}")
    if getattr(section, "shares", None):
        words.append("shares by speed")
    return ", ".join(words)
