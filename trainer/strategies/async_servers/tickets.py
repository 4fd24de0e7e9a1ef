"""Who computes which step: numbers of the global order, handed out as workers ask for them. Pure.

A ticket is the number of a step; whoever holds it computes the gradient of that step's global batch. Tickets
are handed out ahead, so that workers read ahead; a worker may begin one only below `limit`, which is the next
epoch's end or checkpoint. So every sample is taken once per epoch, and at a limit exactly the steps before it
are done. Tickets of a worker that died go to whoever asks next.
"""

from __future__ import annotations

import heapq
from collections import deque


class Tickets:
    """Tickets from `start` to `stop`, the end of the run.

    Attributes:
        limit: steps from here on may not be begun yet.
        done: updates that were applied; equal to `limit` when nothing below it is left.
    """

    def __init__(self, start: int, stop: int) -> None:
        self.limit = self.done = self._next = start
        self._stop = stop
        self._highest = start - 1
        self._held: dict[int, deque[int]] = {}
        self._begun: dict[int, int] = {}
        self._returned: list[int] = []

    def hand_out(self, worker: int, ahead: int) -> list[int]:
        """Return new tickets, so that this worker holds `ahead` not begun ones, while there are any."""
        held = self._held.setdefault(worker, deque())
        new = list(range(self._next, min(self._next + max(0, ahead - len(held)), self._stop)))
        self._next += len(new)
        held.extend(new)
        return new

    def begin(self, worker: int) -> tuple[int, bool] | None:
        """Return the step that a worker computes now, and whether it held its ticket; None: it waits.

        One that a dead worker left comes first. A worker's own come in the order in which it got them.
        """
        if worker in self._begun:
            raise ValueError(f"worker {worker} computes step {self._begun[worker]} already")
        held = self._held.setdefault(worker, deque())
        if self._returned and self._returned[0] < self.limit:
            step, own = heapq.heappop(self._returned), False
        elif held and held[0] < self.limit:
            step, own = held.popleft(), True
        else:
            return None
        self._begun[worker] = step
        self._highest = max(self._highest, step)
        return step, own

    def can_begin(self, worker: int) -> bool:
        """Return whether `begin` would return a step."""
        held = self._held.get(worker)
        waiting = [queue[0] for queue in (self._returned, held) if queue]
        return bool(waiting) and min(waiting) < self.limit

    def finish(self, worker: int) -> int:
        """Count the worker's update as applied; returns its step."""
        self.done += 1
        return self._begun.pop(worker)

    def gone(self, worker: int) -> list[int]:
        """Take back what a dead worker held or had begun; returns those steps, ascending."""
        back = sorted(
            [*self._held.pop(worker, ()), *([self._begun.pop(worker)] if worker in self._begun else [])]
        )
        for step in back:
            heapq.heappush(self._returned, step)
        return back

    @property
    def nearest_limit(self) -> int:
        """The lowest limit that nothing begun or done lies beyond: where a run can soonest be saved."""
        return self._highest + 1
