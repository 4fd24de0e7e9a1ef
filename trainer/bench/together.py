"""Processes that are started together, told to go on, listened to, timed out by name, and all ended.

They talk over their standard streams: a process says `ready`, waits for a line `go`, and says `done ...`.
When its input is closed, it ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from jobs import processes
from trainer.errors import WorldError

_PATIENCE_S = 10.0


@dataclasses.dataclass(frozen=True)
class Process:
    """One process that is to be started.

    Attributes:
        group: what messages call all that are started for the same purpose.
        launch: number of the launch that it belongs to.
        name: what messages call it.
        reports: whether it says what was found.
        argv: its command line.
        environment: added to ours.
    """

    group: str
    launch: int
    name: str
    reports: bool
    argv: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(hash=False)


class Together:
    """Processes that run; leaving the context ends all of them."""

    def __init__(self, wanted: Sequence[Process]) -> None:
        self._wanted = wanted
        self._lines: queue.Queue[tuple[Process, str]] = queue.Queue()
        self._started: dict[Process, subprocess.Popen[str]] = {}
        self._complaints: dict[Process, Any] = {}
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Together:
        try:
            for one in self._wanted:
                self._start(one)
        except BaseException:
            self._end(kill=True)
            raise
        return self

    def _start(self, one: Process) -> None:
        self._complaints[one] = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by `_end`
        process = subprocess.Popen(
            one.argv,
            env={**os.environ, **one.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints[one],
            text=True,
            start_new_session=True,  # Ctrl-C is ours to answer
            preexec_fn=processes.die_with_parent(signal.SIGTERM),
        )
        self._started[one] = process

        def read() -> None:
            for line in process.stdout or ():
                self._lines.put((one, line))
            self._lines.put((one, ""))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        self._readers.append(reader)

    def go(self) -> None:
        """Tell all of them."""
        for process in self._started.values():
            with contextlib.suppress(BrokenPipeError):  # `hear` says why
                if process.stdin:
                    process.stdin.write("go\n")
                    process.stdin.flush()

    def hear(self, whom: Sequence[Process], seconds: float, word: str) -> dict[Process, str]:
        """What follows the word on a line of each of them.

        Raises:
            WorldError: one of all processes ended, or so many seconds passed.
        """
        said: dict[Process, str] = {}
        deadline = time.monotonic() + seconds
        while len(said) < len(whom):
            try:
                one, line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                late = ", ".join(one.name for one in whom if one not in said)
                raise WorldError(
                    f"{whom[0].group}: waited {seconds:.0f} s in vain for {late} to be {word}."
                ) from None
            if not line:
                raise WorldError(f"{one.group}: {one.name} failed:\n{self._last_words(one)}")
            if line.startswith(word):
                said[one] = line.removeprefix(word)
        return said

    def _last_words(self, one: Process) -> str:
        code = self._started[one].wait()
        self._complaints[one].seek(0)
        lines = self._complaints[one].read().strip().splitlines()
        return "\n".join(lines[-15:]) or f"it ended with exit code {code}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(kill=kind is not None)

    def _end(self, *, kill: bool) -> None:
        """End all: by closing what they listen to, or by a signal, and by force those that do not."""
        for process in self._started.values():
            with contextlib.suppress(BrokenPipeError):
                if process.stdin:
                    process.stdin.close()
            if kill:
                process.terminate()  # mpirun ends its ranks, also those that are stopped
        deadline = time.monotonic() + _PATIENCE_S
        for process in self._started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join(_PATIENCE_S)
        for process in self._started.values():
            if process.stdout:
                process.stdout.close()
        for file in self._complaints.values():
            file.close()
