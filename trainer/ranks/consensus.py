"""What ranks agree on between steps: whether one must stop, a NaN, and how long the slowest took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.errors import NotFiniteError
from trainer.ranks.world import World

# They agree this often. Asking at every step would cost a collective of a few milliseconds each time.
_EVERY_S = 0.5
# What a rank asks for; the highest number counts.
_GO_ON, _STOP, _FENCED = 0.0, 1.0, 2.0


@dataclass(frozen=True)
class Consensus:
    """What came of it, the same on every rank.

    Attributes:
        stopping: a rank was told to stop, or is fenced.
        fenced: rank 0 has lost the run folder to another start.
        bad_step: the first step whose loss is not finite on some rank, or None.
        slowest_s: seconds of the slowest rank's last step.
    """

    stopping: bool
    fenced: bool
    bad_step: int | None
    slowest_s: float

    @property
    def steps_until_next(self) -> int:
        """After how many steps to ask again."""
        return max(1, math.floor(_EVERY_S / self.slowest_s))


def ask(
    world: World,
    losses: Sequence[object],
    accumulation: int,
    step: int,
    seconds: float,
    *,
    stop: bool,
    fenced: bool,
) -> Consensus:
    """Combine what all ranks report about the steps since the last call; a collective.

    Args:
        world: all ranks.
        losses: of the micro-batches since the last time, up to `step`.
        accumulation: micro-batches of a step.
        step: that was done last.
        seconds: that it took.
        stop: whether this rank was told to stop.
        fenced: whether it has lost the run folder.
    """
    finite = np.isfinite(np.array([float(loss) for loss in losses]))  # type: ignore[arg-type]  # tensors
    bad = np.flatnonzero(~finite)
    first_bad = step - finite.size // accumulation + 1 + bad[0] // accumulation if bad.size else 0
    wish = _FENCED if fenced else _STOP if stop else _GO_ON
    mine = np.array([wish, -float(first_bad) if first_bad else -math.inf, seconds])
    wishes, bad_step, slowest_s = np.asarray(world.allreduce(mine, "max", name="talk"))
    return Consensus(
        stopping=bool(wishes),
        fenced=bool(wishes >= _FENCED),
        bad_step=int(-bad_step) if np.isfinite(bad_step) else None,
        slowest_s=max(float(slowest_s), 1e-6),
    )


def not_finite(step: int, good: Path | None) -> NotFiniteError:
    """Return the error for a step whose loss is not finite; `good` is the checkpoint before it."""
    return NotFiniteError(
        f"step {step}: the loss is no longer a finite number."
        + (f" The last good checkpoint is {good}." if good else ""),
        cure="Start again with a lower train.optimizer.learning_rate, a longer warm-up, "
        "or train.optimizer.global_clip_norm=1; with mixed_float16, try train.precision=mixed_bfloat16.",
    )
