"""How old the weights are that an asynchronous update was computed on, and how far workers may drift apart.

Pure. The server's version grows by one with each update. The staleness of an update is the server's version
when it is applied minus the version that the worker computed on. The bound is that of stale synchronous
parallel (SSP; Ho et al., NIPS 2013): a worker that is more than `bound` updates ahead of the slowest waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


class Histogram:
    """How many updates had which staleness.

    Args:
        counts: of earlier sessions: staleness -> updates; keys may be texts, as JSON makes them.
    """

    def __init__(self, counts: Mapping[Any, int] | None = None) -> None:
        self._counts = Counter({int(key): int(count) for key, count in (counts or {}).items()})

    def add(self, staleness: int) -> None:
        """Count one update.

        Raises:
            ValueError: it would have been computed on weights that did not exist yet.
        """
        if staleness < 0:
            raise ValueError(f"an update cannot be {staleness} versions old")
        self._counts[staleness] += 1

    def merge(self, other: Histogram) -> None:
        """Count what the other one has counted."""
        self._counts.update(other._counts)

    @property
    def updates(self) -> int:
        """Number of updates counted."""
        return sum(self._counts.values())

    def to_json(self) -> dict[str, Any]:
        """`mean` and `max` staleness, and `updates`: staleness as text -> number of updates, ascending."""
        total = self.updates
        weighted = sum(staleness * count for staleness, count in self._counts.items())
        return {
            "mean": round(weighted / total, 4) if total else 0.0,
            "max": max(self._counts, default=0),
            "updates": {str(key): self._counts[key] for key in sorted(self._counts)},
        }


class Clocks:
    """How many updates each worker has made since all were last in step, and who must wait for whom.

    Args:
        workers: numbers of the workers.
        bound: updates that one may be ahead of the slowest living worker; None: any number.
    """

    def __init__(self, workers: Iterable[int], bound: int | None) -> None:
        self._bound = bound
        self._updates = dict.fromkeys(workers, 0)
        self._parked: set[int] = set()

    @property
    def living(self) -> tuple[int, ...]:
        """Workers that are not gone."""
        return tuple(self._updates)

    def tick(self, worker: int) -> None:
        """Count one more update of this worker, unless it is gone."""
        if worker in self._updates:
            self._updates[worker] += 1

    def park(self, worker: int, *, parked: bool) -> None:
        """Set whether a worker waits for the others itself (at an epoch's end): none waits for it then."""
        (self._parked.add if parked else self._parked.discard)(worker)

    def gone(self, worker: int) -> None:
        """Forget a worker that died."""
        self._updates.pop(worker, None)
        self._parked.discard(worker)

    def may_go(self, worker: int) -> bool:
        """Return whether a worker may begin another update."""
        if self._bound is None:
            return True
        others = [n for who, n in self._updates.items() if who != worker and who not in self._parked]
        return self._updates[worker] - min(others, default=self._updates[worker]) <= self._bound

    def restart(self) -> None:
        """Begin anew when all workers are in step: all updates are applied."""
        self._updates = dict.fromkeys(self._updates, 0)
        self._parked.clear()
