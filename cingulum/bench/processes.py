"""The processes that a benchmark starts: told and heard by lines, timed out by name, and all ended.

A process writes `ready` to its standard output, waits for a line `go`, and writes `done ...`. It ends when
its standard input is closed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Any, TypeVar

from jobs.local import processes
from trainer.errors import WorldError

_END_S = 10.0
_BLOCK_S = 600.0
_Self = TypeVar("_Self", bound="Running")


@dataclasses.dataclass(frozen=True, eq=False)
class Process:
    """One process to start.

    Attributes:
        group: what messages call all processes that are started for the same purpose.
        name: what messages call this one.
        argv: its command line.
        environment: added to ours.
    """

    group: str
    name: str
    argv: Sequence[str]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Running:
    """Start processes; leaving the context ends all of them.

    Args:
        wanted: what to start.
        end_s: seconds in which they may end by themselves once their input is closed.
    """

    def __init__(self, wanted: Sequence[Process], *, end_s: float = _END_S) -> None:
        self._wanted, self._end_s = wanted, end_s
        self._lines: queue.Queue[tuple[Process, str]] = queue.Queue()
        self._started: dict[Process, subprocess.Popen[str]] = {}
        self._stderr: dict[Process, IO[str]] = {}
        self._readers: list[threading.Thread] = []

    def __enter__(self: _Self) -> _Self:
        try:
            for one in self._wanted:
                self._start(one)
        except BaseException:
            self._end(kill=True)
            raise
        return self

    def _start(self, spec: Process) -> None:
        self._stderr[spec] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  closed by `_end`
        process = self._started[spec] = subprocess.Popen(
            processes.dying_with_us(spec.argv),
            env={**os.environ, **spec.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr[spec],
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is ours to answer
        )

        def read() -> None:
            try:
                for line in process.stdout or ():
                    self._lines.put((spec, line))
            finally:
                self._lines.put((spec, ""))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        self._readers.append(reader)

    def say(self, line: str) -> None:
        """Write a line to each process."""
        for process in self._started.values():
            with contextlib.suppress(BrokenPipeError):  # `hear` says why
                if process.stdin:
                    process.stdin.write(f"{line}\n")
                    process.stdin.flush()

    def hear(self, of: Sequence[Process], seconds: float | None, word: str) -> dict[Process, str]:
        """Return what follows the word on a line of each of these processes.

        Args:
            of: some of the processes.
            seconds: longest time to wait; None: no limit.
            word: how the line begins; other lines are passed over.

        Raises:
            WorldError: one of all processes ended without saying it, or the time passed.
        """
        answers: dict[Process, str] = {}
        deadline = None if seconds is None else time.monotonic() + seconds
        while len(answers) < len(of):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                process, line = self._lines.get(timeout=left)
            except queue.Empty:
                late = [process for process in of if process not in answers]
                names = ", ".join(process.name for process in late)
                raise WorldError(
                    f"{of[0].group}: no {word!r} from {names} within {seconds:.0f} s.\n"
                    + "\n".join(f"{process.name}: {self._last_words(process)}" for process in late)
                ) from None
            if not line:
                # It may end before others have said theirs.
                if process in answers and self._exit_code(process) == 0:
                    continue
                raise WorldError(self._failure(process))
            if line.startswith(word):
                answers[process] = line.removeprefix(word)
        return answers

    def wait(self, seconds: float) -> None:
        """Wait until all processes have ended by themselves.

        Raises:
            WorldError: one of them failed, or the time passed.
        """
        deadline = time.monotonic() + seconds
        for spec, process in self._started.items():
            try:
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise WorldError(f"{spec.group}: {spec.name} did not end within {seconds:.0f} s.") from None
            if code:
                raise WorldError(self._failure(spec))

    def _exit_code(self, one: Process) -> int | None:
        """Return the exit code of a process that has closed its output; None: it does not end."""
        try:
            return self._started[one].wait(_END_S)
        except subprocess.TimeoutExpired:
            return None

    def _failure(self, one: Process) -> str:
        code = self._exit_code(one)
        how = "closed its output and does not end" if code is None else f"failed (exit code {code})"
        return f"{one.group}: {one.name} {how}:\n{self._last_words(one)}"

    def _last_words(self, one: Process) -> str:
        self._stderr[one].seek(0)
        lines = self._stderr[one].read().strip().splitlines()
        # A command of ours says in one line what is wrong; a traceback has its cause at the end.
        said = next((line.strip() for line in lines if line.strip().startswith("error: ")), None)
        return said or "\n".join(lines[-15:]) or "it wrote no message"

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
                _signal(process, signal.SIGTERM)  # mpirun ends its ranks, also those that are stopped
        try:
            if not self._wait_until(time.monotonic() + (_END_S if kill else self._end_s)) and not kill:
                for process in self._started.values():
                    _signal(process, signal.SIGTERM)
                self._wait_until(time.monotonic() + _END_S)
        finally:  # a second Ctrl-C too
            for process in self._started.values():
                _signal(process, signal.SIGKILL)  # and whatever it has started and left
                with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel keeps it, for a disk say
                    process.wait(_END_S)
        for reader in self._readers:
            reader.join(_END_S)
        for process, reader in zip(self._started.values(), self._readers, strict=False):
            # A program that left the session may hold the other end: closing would wait for it.
            if process.stdout and not reader.is_alive():
                process.stdout.close()
        for file in self._stderr.values():
            file.close()

    def _wait_until(self, deadline: float) -> bool:
        """Return whether all processes have ended by then."""
        for process in self._started.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return True


class Contestant(Running):
    """Processes that warm up, write `ready`, and time a block of steps for each `go`.

    They stay warm while others are timed, so that a repeat lasts as long as its steps and not as long as a
    start: what else a machine does, for seconds or minutes, hits all contestants alike. Those that write
    their process ids, `ready [1234, 1235]`, are stopped (SIGSTOP) between blocks: Horovod as it was
    released asks the other ranks each millisecond, and mpirun's ranks are not our children.

    Args:
        title: what people call it.
        wanted: to start.
        stands_still: stop them between blocks; only processes of this host can be.
    """

    def __init__(self, title: str, wanted: Sequence[Process], *, stands_still: bool = True) -> None:
        super().__init__(wanted)
        self.title = title
        self._stands_still = stands_still
        self._pids: list[int] = []

    def warm_up(self) -> None:
        """Wait until all are ready.

        Raises:
            WorldError: one of them failed, or was not ready in time.
        """
        said = self.hear(self._wanted, _BLOCK_S, "ready")
        if self._stands_still:
            self._pids = [pid for line in said.values() for pid in json.loads(line.strip() or "[]")]
        self._signal_all(signal.SIGSTOP)

    def block(self) -> list[Any]:
        """Return what each process reports of one more block, in the order of the processes.

        Raises:
            WorldError: one of them failed, or was not done in time.
        """
        self._signal_all(signal.SIGCONT)
        self.say("go")
        said = self.hear(self._wanted, _BLOCK_S, "done")
        self._signal_all(signal.SIGSTOP)
        return [json.loads(said[process]) for process in self._wanted]

    def _end(self, *, kill: bool) -> None:
        self._signal_all(signal.SIGCONT)
        super()._end(kill=kill)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):  # `hear` says why
                os.kill(pid, number)


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
