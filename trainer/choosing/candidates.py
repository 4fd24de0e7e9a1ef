"""What `train.strategy=auto` tries: strategies with their numbers of replicas and micro-batches. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.config import AutoConfig, StrategySection
from trainer.config.strategy import BY_NAME


def sections(
    asked: AutoConfig, ranks: int, samples: int, *, normalised: bool, speeds: Sequence[float]
) -> list[StrategySection]:
    """Return the sections to try, those of few replicas last: see `StrategySection.tried`.

    Args:
        asked: which strategies.
        ranks: that train.
        samples: of a micro-batch, over all ranks.
        normalised: whether the network has batch norm.
        speeds: of each rank, relative to the fastest.
    """
    kinds = [one for name, one in BY_NAME.items() if name in asked.among]
    return [
        section
        for replicas in range(ranks, 0, -1)
        if not (ranks % replicas or samples % replicas)
        for kind in kinds
        for section in kind.tried(
            replicas, ranks // replicas, samples // replicas, normalised=normalised, speeds=speeds
        )
    ]


def label(section: StrategySection) -> str:
    """Return what tells one candidate from another, for people."""
    words = [section.name]
    for key, what in (("replicas", "replicas"), ("micro_batches", "micro-batches")):
        if getattr(section, key, 1) > 1:
            words.append(f"{getattr(section, key)} {what}")
    if getattr(section, "shares", None):
        words.append("shares by speed")
    return ", ".join(words)
