"""Kills a process of ours before a line that it runs, as `kill -9` does."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Work = Callable[[], object]


@dataclass(frozen=True)
class Lines:
    """Which lines count.

    Attributes:
        files: all of these.
        codes: and those of these functions.
        leading: functions; a line counts once for each of their lines that leads to it, and not for each
            round of a loop.
    """

    files: frozenset[str]
    codes: frozenset[CodeType]
    leading: frozenset[CodeType]

    def met(self, work: Work) -> list[str]:
        """Run the work; return its lines in order."""
        found: list[str] = []
        self._trace(work, found.append)
        return found

    def killed_at(self, point: int, work: Work) -> tuple[str, bool, int]:
        """Fork a process that kills itself before its line of this number, from 1.

        Returns:
            the line; whether the process ended before it came to that line; the process's group, in which
            programs that it started may still run.
        """
        inlet, outlet = os.pipe()
        process = os.fork()
        if process == 0:
            os.setsid()
            os.close(inlet)
            self._run_until(point, work, outlet)
            os._exit(0)
        os.close(outlet)
        with os.fdopen(inlet) as pipe:
            where = pipe.readline()
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert code in (0, -signal.SIGKILL), code
        return where, code == 0, process

    def _run_until(self, point: int, work: Work, outlet: int) -> None:
        met = 0

        def kill(where: str) -> None:
            nonlocal met
            met += 1
            if met == point:
                os.write(outlet, where.encode())
                os.kill(os.getpid(), signal.SIGKILL)

        self._trace(work, kill)

    def _trace(self, work: Work, at: Callable[[str], object]) -> None:
        met: set[tuple[str, str]] = set()

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            name, code = frame.f_code.co_filename, frame.f_code
            if name not in self.files and code not in self.codes:
                return None
            if event == "line":
                line = self._leads_to(frame), f"{Path(name).name}:{frame.f_lineno} ({code.co_name})"
                if line not in met:
                    met.add(line)
                    at(line[1])
            return trace

        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(None)

    def _leads_to(self, frame: FrameType | None) -> str:
        while frame is not None and frame.f_code not in self.leading:
            frame = frame.f_back
        return "" if frame is None else f"{frame.f_code.co_name}:{frame.f_lineno}"


def until_ended(group: int, what: str) -> None:
    """Wait for the programs of a process group, which outlive who started them."""
    deadline = time.monotonic() + 30
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < deadline, f"a program still runs after a kill at {what}"
        time.sleep(0.001)
