"""Made-up speeds of devices: those of the machine of a test do not change at a step that the test chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def pretend(seconds_from: Mapping[int, Sequence[float]]) -> None:
    """Let `filters` find these when it measures, and look whatever ranks have waited.

    Args:
        seconds_from: from updates done to `seconds_per_gflop` of all ranks from there on.
    """
    from trainer.strategies.placed import calibration
    from trainer.strategies.placed.filters import Filters
    from trainer.strategies.placed.waiting import Waiting

    plain, done = Filters.replan, [0]

    def replan(self: Any, learner: Any, plan: Any, step: int, left: int) -> Any:
        done[0] = step
        return plain(self, learner, plan, step, left)

    def measured(*_: Any) -> tuple[float, ...]:
        return tuple(seconds_from[max(step for step in seconds_from if step <= done[0])])

    Filters.replan, calibration.seconds_per_gflop = replan, measured
    Waiting.share = lambda self: None
