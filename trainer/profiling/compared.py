"""The strategies that `cingulum plan` and `simulate` compare."""

from __future__ import annotations

from trainer.config import StrategySection
from trainer.config.strategy import SECTIONS
from trainer.planning.placement.operations import Network
from trainer.planning.profile import Profile


def sections(network: Network, ranks: int, samples: int, profile: Profile | None) -> list[StrategySection]:
    """Return the sections of each strategy that can be planned.

    Args:
        network: that is divided.
        ranks: that would train.
        samples: of a micro-batch.
        profile: of the network; None: devices are alike, and bytes count.
    """
    speeds = None if profile is None else _speeds(network, profile, ranks)
    return [one for kind in SECTIONS for one in kind.compared(ranks, samples, speeds)]


def _speeds(network: Network, profile: Profile, ranks: int) -> list[float]:
    """The speed of each rank's convolutions, relative to the fastest, to three digits."""
    names = [one.name for one in network.operations if one.kind in ("convolution", "transposed")]
    took = [
        sum(profile.forward_s(name, rank) + profile.backward_s(name, rank) for name in names)
        for rank in range(ranks)
    ]
    if not names or min(took) <= 0:
        return [1.0] * ranks
    return [round(min(took) / one, 3) for one in took]
