"""Where a synchronous server's time goes, update by update."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainer.telemetry.intervals import Interval, spent

_DIGITS = 6


class ServerTimes:
    """Times one server's updates; all but `left` are called by one thread.

    Args:
        step: updates done before.
        clock: seconds.
    """

    def __init__(self, step: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._step, self._clock = step, clock
        self._rows: list[dict[str, Any]] = []
        self._free = clock()
        self._begun: float | None = None
        self._answered: float | None = None
        self._left = 0.0
        self._updates: list[Interval] = []

    def received(self) -> None:
        """Note that a gradient has come; the first one after an answered update begins the next."""
        if self._answered is not None:
            self._close()
        if self._begun is None:
            self._begun = self._clock()

    def updated(self, seconds: float) -> None:
        """Note how long it took to apply the update to one bundle, until now."""
        now = self._clock()
        self._updates.append(Interval("update", now - seconds, now))

    def answered(self) -> None:
        """Note that all bundles of this update have been answered."""
        self._answered = self._clock()

    def left(self) -> None:
        """Note that an answer has left completely; from any thread."""
        self._left = self._clock()

    def take(self) -> list[dict[str, Any]]:
        """Return rows of the updates since the last call.

        Each has `step`, and in seconds `wait` (until the first gradient came), `receive` (until the last
        bundle was answered, without updates), `update`, and `send` (until the last answer had left).
        """
        if self._answered is not None:
            self._close()
        rows, self._rows = self._rows, []
        return rows

    def _close(self) -> None:
        begun, answered = self._begun, self._answered
        if begun is None or answered is None:
            return
        self._step += 1
        left = max(answered, self._left)
        done = spent(
            [
                Interval("wait", self._free, begun),
                Interval("receive", begun, answered),
                *self._updates,
                Interval("send", answered, left),
            ]
        ).seconds
        parts = {name: round(done.get(name, 0.0), _DIGITS) for name in ("receive", "update", "send", "wait")}
        self._rows.append({"step": self._step, **parts})
        self._free, self._begun, self._answered, self._updates = left, None, None, []
