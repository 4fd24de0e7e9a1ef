"""A thread per rank that ends the world when its rank no longer makes progress.

The loop calls `beat("reading the next batch")` before each thing it does. A rank that hangs outside a
collective speaks first; ranks that wait for it inside one (`collective=True`) wait `PATIENCE` times longer,
so that the message that comes first is the one of the rank at fault. If they have to speak, no rank hangs
that could say so: they ask who is missing (trainer/ranks/rollcall.py), and name it.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol

from trainer.ranks import failure_file

PATIENCE = 1.5
_CHECKS_PER_TIMEOUT = 20
_LONGEST_TICK_S = 5.0


class Beat(Protocol):
    """`Watchdog.beat`."""

    def __call__(self, what: str, *, collective: bool = False) -> None:
        """Report progress, and what comes next."""


def no_beat(what: str, *, collective: bool = False) -> None:
    """Do nothing, where there is no watchdog."""


class Watchdog:
    """Watch this process from `__enter__` to `__exit__`.

    Args:
        timeout_s: seconds without `beat` after which the world is ended.
        who: this rank in messages, such as "rank 1 @ node07".
        abort: ends all ranks; called once, from the watching thread.

    Attributes:
        missing: finds ranks that no longer answer, such as "rank 2 @ node08", within a few seconds.
        kept: what to say of a run that has its result, where its last parts hang; empty before. The end is no
            failure then.
    """

    def __init__(self, timeout_s: float, who: str, abort: Callable[[], None]) -> None:
        self.missing: Callable[[], Sequence[str]] = tuple
        self.kept = ""
        self._timeout_s = timeout_s
        self._who = who
        self._abort = abort
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._last = (time.monotonic(), "starting", False)

    def beat(self, what: str, *, collective: bool = False) -> None:
        """Note progress and what comes next, which waits for other ranks if `collective`."""
        self._last = (time.monotonic(), what, collective)

    def __enter__(self) -> Watchdog:
        self.beat("starting")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        tick = min(self._timeout_s / _CHECKS_PER_TIMEOUT, _LONGEST_TICK_S)
        # A call that never gives the interpreter lock back starves this thread too. faulthandler's own
        # thread needs no lock: it is wound up at every tick and goes off when the ticks end.
        last_resort_s = 2 * PATIENCE * self._timeout_s + _LONGEST_TICK_S
        can_write = _has_descriptor(sys.stderr)
        while not self._stop.wait(tick):
            if can_write:
                faulthandler.dump_traceback_later(last_resort_s, exit=True)
            since, what, collective = self._last
            idle = time.monotonic() - since
            if idle > self._timeout_s * (PATIENCE if collective else 1.0):
                self._bark(idle, what, self.missing() if collective else ())
                break
        faulthandler.cancel_dump_traceback_later()

    def _bark(self, idle: float, what: str, missing: Sequence[str]) -> None:
        if self.kept:
            sys.stderr.write(f"[{self._who}] no progress for {idle:.0f} s while {what}; {self.kept}\n")
            sys.stderr.flush()
            self._abort()
            return
        # Under the name of who is missing, and first: this is what people and batch scripts look for.
        for rank in missing:
            sys.stderr.write(
                f"[{rank}] error: does not answer {self._who}: it is stopped, or its host or link is down\n"
            )
        sys.stderr.write(
            f"[{self._who}] no progress for {idle:.0f} s while {what}; ending all ranks "
            f"(guards.timeout_s = {self._timeout_s:g}). Where it stands:\n"
        )
        sys.stderr.flush()
        told = f"does not answer {self._who}: it is stopped, or its host or link is down"
        if not missing:
            told = f"no progress for {idle:.0f} s while {what}; ending all ranks"
        failure_file.leave(told, kind="WorldError", exit_code=1, name=next(iter(missing), self._who))
        if _has_descriptor(sys.stderr):
            faulthandler.dump_traceback(all_threads=True)
        self._abort()


def _has_descriptor(stream: object) -> bool:
    """Whether faulthandler can write to `stream` (not under some test runners and notebooks)."""
    try:
        os.fstat(stream.fileno())  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError):
        return False
    return True
