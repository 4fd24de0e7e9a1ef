"""How much of its steps a rank waits for the messages of others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from trainer.ranks.exchange import Exchange


class Waiting:
    """Counts steps, and what of them is spent in waiting. Steps that are traced are left out.

    Args:
        exchange: of this rank; None without others.

    Attributes:
        traced_s: seconds spent on tracing the step as it is divided now.
    """

    def __init__(self, exchange: Exchange | None) -> None:
        self._exchange = exchange
        self._seconds, self._waited = 0.0, 0.0
        self.traced_s = 0.0

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Return a context in which the step is traced."""
        began = time.monotonic()
        yield
        self.traced_s += time.monotonic() - began

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Return a context of a step, which may be traced in it."""
        began, before, traced = time.monotonic(), self._waited_s, self.traced_s
        yield
        if traced == self.traced_s:
            self._seconds += time.monotonic() - began
            self._waited += self._waited_s - before

    def share(self) -> float | None:
        """Return the part of the steps since the last call that was spent in waiting; None without steps."""
        seconds, waited = self._seconds, self._waited
        self._seconds, self._waited = 0.0, 0.0
        return waited / seconds if seconds else None

    @property
    def _waited_s(self) -> float:
        return 0.0 if self._exchange is None else self._exchange.waited_s
