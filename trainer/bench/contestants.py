"""What is timed in turn with others: processes that stay warm, and stand still while others are timed.

So a repeat lasts as long as its steps, not as long as a start, and can be short: what else a machine does,
for seconds or minutes, hits all contestants alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from trainer.bench.together import Process, Together

PATIENCE_S = 600.0


class Contestant:
    """Processes that warm up, say `ready`, and time a block of steps for each `go`.

    Those that tell their numbers, `ready [1234, 1235]`, are stopped (SIGSTOP) between blocks: Horovod as it
    was released asks the other ranks each millisecond, and mpirun's ranks are not our children.

    Args:
        title: what people call it.
        processes: to start.
        stands_still: stop them between blocks; only processes of this host can be.
    """

    def __init__(self, title: str, processes: Sequence[Process], *, stands_still: bool = True) -> None:
        self.title = title
        self._processes = processes
        self._stands_still = stands_still
        self._together = Together(processes)
        self._pids: list[int] = []

    def __enter__(self) -> Contestant:
        self._together.__enter__()
        return self

    def warm_up(self) -> None:
        """Wait until all are ready.

        Raises:
            WorldError: one of them failed, or was not ready in time.
        """
        said = self._together.hear(self._processes, PATIENCE_S, "ready")
        if self._stands_still:
            self._pids = [pid for line in said.values() for pid in json.loads(line.strip() or "[]")]
        self._tell(signal.SIGSTOP)

    def block(self) -> list[Any]:
        """What each process reports of one more block, in the order of the processes.

        Raises:
            WorldError: one of them failed, or was not done in time.
        """
        self._tell(signal.SIGCONT)
        self._together.go()
        said = self._together.hear(self._processes, PATIENCE_S, "done")
        self._tell(signal.SIGSTOP)
        return [json.loads(said[process]) for process in self._processes]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell(signal.SIGCONT)
        self._together.__exit__(kind, error, trace)

    def _tell(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):  # `hear` says why
                os.kill(pid, number)
