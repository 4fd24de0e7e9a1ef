"""How much of its steps a rank waits for the messages of others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import numpy as np


class Waiting:
    """Counts steps, and what of them is spent in waiting. Steps that are traced are left out.

    Attributes:
        traced_s: seconds spent on tracing the step as it is divided now.
    """

    def __init__(self) -> None:
        self.traced_s = 0.0
        self._began: float | None = None
        self._seconds, self._waited = 0.0, 0.0

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Return a context in which the step is traced."""
        began = time.monotonic()
        yield
        self.traced_s += time.monotonic() - began

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Return a context of a step, which may be traced in it."""
        began, on_the_wall, traced = time.monotonic(), time.time(), self.traced_s
        yield
        self._began = on_the_wall if traced == self.traced_s else None
        if self._began is not None:
            self._seconds += time.monotonic() - began

    def arrived(self, rows: np.ndarray) -> None:
        """Count what the last step waited; call it after each.

        Args:
            rows: of `Exchange.arrivals`. What came before the step began, such as in an evaluation, is left
                out.
        """
        if self._began is None:
            return
        rows = rows[rows[:, 0] >= self._began]
        requested, call = np.unique(rows[:, 0], return_inverse=True)
        # A call ends with its last message.
        there = requested.copy()
        np.maximum.at(there, call, rows[:, 1])
        self._waited += float(np.sum(there - requested))

    def share(self) -> float | None:
        """Return the part of the steps since the last call that was spent in waiting; None without steps."""
        seconds, waited = self._seconds, self._waited
        self._seconds, self._waited = 0.0, 0.0
        return waited / seconds if seconds else None
