"""How fast training goes: samples and seconds of its steps, apart from evaluation and saving."""

from __future__ import annotations

import time


class Clock:
    """Adds up steps. The first step of a session, or after `expect_tracing`, is left out.

    Args:
        timed: samples and seconds of earlier sessions.
    """

    def __init__(self, timed: tuple[float, ...] = (0.0, 0.0)) -> None:
        self._samples, self._seconds = timed
        self._earlier = self._seconds
        self._waited = 0.0
        self._traced = False
        self.start_epoch()

    @staticmethod
    def now() -> float:
        """Return seconds on a clock that only goes forward."""
        return time.monotonic()

    def expect_tracing(self) -> None:
        """Leave the next step out: it is spent on tracing the network."""
        self._traced = False

    def start_epoch(self) -> None:
        """Start counting for a new epoch."""
        self._began = self.now()
        self._before = (self._samples, self._seconds, self._waited)

    def add_step(self, samples: int, seconds: float, waited: float = 0.0) -> None:
        """Count a step of so many samples over all ranks, and how many of its seconds it waited for input."""
        if self._traced:
            self._samples += samples
            self._seconds += seconds
            self._waited += waited
        self._traced = True

    @property
    def epoch_step_seconds(self) -> float:
        """Seconds of this epoch's steps."""
        return self._seconds - self._before[1]

    def settle_epoch(self, seconds: float) -> None:
        """Count this epoch's steps as those of the slowest rank, which may be another one.

        A rank of a divided network that has little to do waits for nobody, and may be ahead of the others.

        Args:
            seconds: that the steps of the slowest rank took.
        """
        self._seconds = self._before[1] + seconds

    @property
    def timed(self) -> tuple[float, float]:
        """Samples and seconds of all steps so far."""
        return self._samples, self._seconds

    @property
    def speed(self) -> float:
        """Samples per second over the whole run; 0 before there is something to tell."""
        return self._samples / self._seconds if self._seconds > 0 else 0.0

    @property
    def epoch_speed(self) -> float:
        """Samples per second in this epoch; that of the whole run until there is something to tell."""
        samples, seconds = self._samples - self._before[0], self._seconds - self._before[1]
        return samples / seconds if seconds > 0 else self.speed

    @property
    def input_wait_share(self) -> float:
        """Part of this session's step time that went on waiting for input, 0 to 1."""
        seconds = self._seconds - self._earlier
        return self._waited / seconds if seconds > 0 else 0.0

    @property
    def epoch_input_wait(self) -> float:
        """Seconds that this epoch's steps have waited for their input."""
        return self._waited - self._before[2]

    @property
    def epoch_seconds(self) -> float:
        """Seconds since the epoch began, or since this session did."""
        return self.now() - self._began
