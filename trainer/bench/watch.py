"""End a benchmark's ranks when one of them gets nowhere, and say which one, at what, and where it stands.

`trainer.ranks.watchdog` does so in a training. Here ranks are stopped (SIGSTOP) while others are timed, and
that time must not count: this watch counts seconds of its own thread, which stands still with the rest.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType

from trainer.ranks import world as worlds

# For one thing, such as a step or the import of TensorFlow, on a machine that others use, too.
LIMIT_S = 240.0
_TICK_S = 1.0
_FRAMES = 4


class ProgressWatch:
    """Watch this process from `__enter__` to `__exit__`.

    Args:
        limit_s: seconds that this process may take from one `beat` to the next.
        tick_s: how often it is looked at.
    """

    def __init__(self, limit_s: float = LIMIT_S, tick_s: float = _TICK_S) -> None:
        self._limit_s, self._tick_s = limit_s, tick_s
        self._last: tuple[str | None, float] = ("starting", 0.0)
        self._ended = threading.Event()
        self._watched = threading.get_ident()

    def beat(self, what: str) -> None:
        """Say that there is progress, and what comes next."""
        self._last = (what, 0.0)

    def rest(self) -> None:
        """Say that this process waits to be told what to do, for as long as that takes."""
        self._last = (None, 0.0)

    def __enter__(self) -> ProgressWatch:
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._tick_s):
            last = self._last
            what, seconds = last[0], last[1] + self._tick_s
            if self._last is last:  # a beat that comes in between counts
                self._last = (what, seconds)
            if what is not None and seconds > self._limit_s:
                self._end(what, seconds)

    def _end(self, what: str, seconds: float) -> None:
        stack = traceback.extract_stack(sys._current_frames()[self._watched])[-_FRAMES:]
        where = " < ".join(
            f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in stack[::-1]
        )
        sys.stderr.write(f"error: {_name()}: no progress for {seconds:.0f} s while {what}, in {where}\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(all_threads=True)
        if worlds.is_known():
            worlds.current().abort(1)
        os._exit(1)


def _name() -> str:
    """Return who this is, which must be known before MPI has started, too."""
    if worlds.is_known():
        return worlds.current().name
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("SLURM_PROCID") or "0"
    return f"rank {rank} @ {socket.gethostname()}"
