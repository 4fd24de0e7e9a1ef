"""What the ranks' devices can do now, found out by all ranks between two updates."""

from __future__ import annotations

from trainer.planning.placement.balance import LEAST_SAVING, RankSpeeds
from trainer.strategies.placed import calibration
from trainer.strategies.placed.calibration import Sample
from trainer.strategies.placed.learner import PlacedModel


def look(learner: PlacedModel, known: RankSpeeds, sample: Sample) -> tuple[RankSpeeds, float] | None:
    """Measure the devices again, where the updates since the last look may have lost time; a collective.

    However filters are divided, an update takes at least as long as the rank that waits most is busy now: if
    it took less, every rank would compute less than now. So no division saves more than the largest part of
    an update that a rank waits for messages. Where that is little nothing is measured, and a look costs one
    small message. Links keep their figures, since the learner's messages use them.

    Args:
        learner: on all ranks.
        known: what was measured last.
        sample: a convolution of the network.

    Returns:
        What the ranks can do now, and the seconds that it takes to trace another division, the same on every
        rank; None where no division would save enough.
    """
    world = learner.world
    told = world.allgather_object([learner.waiting.share(), learner.waiting.traced_s])
    shares = [share for share, _ in told if share is not None]
    if len(shares) == world.size and max(shares) <= LEAST_SAVING:
        return None
    seconds = calibration.seconds_per_gflop(world, sample)
    return known.model_copy(update={"seconds_per_gflop": seconds}), max(traced for _, traced in told)
