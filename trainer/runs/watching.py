"""Whether the strategy that was chosen keeps what it promised: steps that were taken, against predictions."""

from __future__ import annotations

import statistics
import time
from typing import Any

from trainer.leases.lease import Lease
from trainer.planning.choice import Choice
from trainer.ranks.world import World

# The network is traced in the first update, and buffers are made.
_NOT_COUNTED = 2


class Reconsidered(Exception):
    """Raised on every rank at the same step: the state is saved, and another strategy is to go on.

    Attributes:
        lease: on the run folder, which the next start takes over; None on all ranks but 0.
    """

    def __init__(self, lease: Lease | None) -> None:
        super().__init__()
        self.lease = lease


class Watch:
    """Times updates, and reconsiders the choice once.

    Made when the strategy is chosen, so that it knows how long a change takes.

    Args:
        choice: of the strategy that trains.
        after: updates after which it is reconsidered; None: never.

    Attributes:
        choice: with what is known of it now.
    """

    def __init__(self, choice: Choice, after: int | None) -> None:
        self.choice = choice
        self._after = after
        self._made = time.monotonic()
        self._started_s = 0.0
        self._seconds: list[float] = []

    def content(self) -> dict[str, Any]:
        """Return what plan.json holds of it."""
        return {"auto": self.choice.model_dump(mode="json")}

    def add(self, seconds: float) -> None:
        """Count an update, without its waiting for input; none once the choice was reconsidered."""
        if self._after is None:
            return
        if not self._seconds:
            self._started_s = time.monotonic() - self._made
        self._seconds.append(seconds)

    def reconsidered(self, world: World, step: int, left: int) -> Choice | None:
        """Return the choice with the measured step, the same on all ranks; None: not now. A collective.

        Args:
            world: all ranks; they have counted as many updates.
            step: updates done.
            left: updates to come.
        """
        counted = self._seconds[_NOT_COUNTED:]
        if self._after is None or len(counted) < self._after:
            return None
        self._after = None
        told = world.allgather_object((statistics.median(counted), self._started_s))
        slowest = max(step_s for step_s, _ in told)
        return self.choice.reconsidered(slowest, step=step, left=left, restart_s=told[0][1])
