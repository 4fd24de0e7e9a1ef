"""Files of an attended job: the terms that a launcher leaves for its attendant, and `state.json`."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from jobs.local import processes
from trainer import atomic
from trainer.errors import JobError, LauncherError

TERMS = "attended.json"
AFTER = "after.json"
LOCK = "attendant.lock"
OWN_LOG = "attendant.log"
# Variable of the command's environment: how often it was started before, as SLURM_RESTART_COUNT.
RESTARTS = "CINGULUM_RESTARTS"
# The folder in which ranks of a start leave why they failed (trainer/ranks/failure_file.py).
FAILURES = "CINGULUM_FAILURES"

Arguments = tuple[str, ...]


@dataclass(frozen=True)
class Terms:
    """The commands of one attendant, and when it starts them again.

    Attributes:
        token: of the submission.
        name: of the job, for people.
        commands: one for each task, as argument lists; run without a shell.
        folder: absolute path that they run in.
        environment: additions to their environment.
        hosts: slots by host name, in the order in which they are used; empty: the commands choose for
            themselves. Before each start the hosts of that start are written to `hostfile` of the task.
        nodes: hosts of one task.
        least_nodes: hosts that do after one was lost, where `shrink` is set.
        slots: ranks of a task on each of its hosts.
        at_once: tasks that may run side by side; None: as many as there are hosts for.
        requeues: failures after which a task is started again. Exit code 75 does not count.
        shrink: whether a start may do without hosts that failed.
        global_batch: the number of ranks must divide it then; None: any number will do.
        grace_s: seconds that a task has to save, before the time limit and when it is asked to end.
        minutes: time limit of one start; None: none.
        probe: command that exits 0 where the host that its word `PROBED` stands for answers; empty: no
            checks.
        probe_s: seconds that the answer may take.
        ask_first: whether hosts are asked before each start, too, so that silent ones are passed over.
        check_s: seconds between checks of the hosts of a running start; 0: no checks.
        runs: run folder that each task trains in; empty: none trains.
        pause_s: seconds before a task is started again; doubled at each start that ended soon, up to 60 s.
    """

    token: str
    name: str
    commands: tuple[Arguments, ...]
    folder: str
    environment: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, int] = field(default_factory=dict)
    nodes: int = 1
    least_nodes: int = 1
    slots: int = 1
    at_once: int | None = None
    requeues: int = 3
    shrink: bool = False
    global_batch: int | None = None
    grace_s: float = 120
    minutes: float | None = None
    probe: Arguments = ()
    probe_s: float = 10
    ask_first: bool = False
    check_s: float = 30
    runs: Arguments = ()
    pause_s: float = 1

    def to_json(self) -> str:
        """Return all of it, readable, as `from_json` reads it."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Terms:
        """Return the terms that `to_json` wrote.

        Raises:
            JobError: not such a text.
        """
        try:
            found: dict[str, Any] = json.loads(text)
            commands = tuple(tuple(command) for command in found["commands"])
            runs = tuple(found.get("runs", ()))
            return cls(**{**found, "commands": commands, "probe": tuple(found["probe"]), "runs": runs})
        except (ValueError, TypeError, KeyError) as error:
            raise JobError(f"Not the terms of an attended job: {error}.") from error

    @classmethod
    def of(cls, folder: Path) -> Terms:
        """Return the terms of the job in this folder.

        Raises:
            JobError: there are none, or they cannot be read.
        """
        try:
            text = (folder / TERMS).read_text()
        except OSError as error:
            raise JobError(
                f"{folder}: is not the folder of an attended job ({error.strerror}).",
                cure="`cingulum jobs` lists all jobs.",
            ) from error
        return cls.from_json(text)

    @property
    def is_array(self) -> bool:
        """Whether there are several tasks."""
        return len(self.commands) > 1


def hostfile(folder: Path, task: int) -> Path:
    """Return the file for the hosts of a task's next start: a line `NAME slots=N` each."""
    return folder / f"hosts-{task}"


def log(folder: Path, task: int, *, is_array: bool) -> Path:
    """Return the file for a task's output."""
    return folder / (f"out-{task}.log" if is_array else "out.log")


def failures(folder: Path, task: int, *, is_array: bool) -> Path:
    """Return the file with a line for each failed start: time, exit code, host or rank, why; separated by
    tabs.
    """
    return folder / (f"failures-{task}" if is_array else "failures")


def request(folder: Path, what: str, task: int | None) -> Path:
    """Return the file that asks the attendant for `cancel` or `requeue` of a task (None: of all)."""
    return folder / (f"{what}.asked" if task is None else f"{what}-{task}.asked")


# Written by the attendant alone, atomically, and read by anyone at any time.
STATE = "state.json"
# An attendant on another host shares no process table with us; it touches its state this often.
BEAT_S = 10.0
SILENT_S = 120.0
_LOCK_S = 5.0


@dataclass
class TaskEntry:
    """Stored state of one task; see `jobs.schedulers.base.TaskState`, which is made of it.

    Attributes:
        failures: starts that failed, as counted against `requeues`.
        lost_hosts: hosts that did not answer before a start, or when one failed.
        step, idle: of a training; see `jobs.supervisor.progress_made.Standing`.
        pid, process: of the command that runs, and its identity; None: none runs.
    """

    task: int
    state: str = "PENDING"
    exit_code: int | None = None
    reason: str = ""
    hosts: tuple[str, ...] = ()
    restarts: int = 0
    failures: int = 0
    lost_hosts: tuple[str, ...] = ()
    step: int = -1
    idle: int = 0
    started: float | None = None
    ended: float | None = None
    pid: int | None = None
    process: str | None = None


@dataclass
class Ledger:
    """State of one attended job: its attendant (`pid`, `process`: identity; `host`) and its tasks."""

    token: str
    pid: int
    process: str
    host: str
    tasks: list[TaskEntry] = field(default_factory=list)

    @classmethod
    def new(cls, token: str, tasks: list[TaskEntry]) -> Ledger:
        """Return the state of a job supervised by this process."""
        return cls(token, os.getpid(), processes.identity(os.getpid()) or "", socket.gethostname(), tasks)

    def write(self, folder: Path) -> None:
        """Replace the state in this folder."""
        atomic.write_text(folder / STATE, json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Ledger | None:
        """Return the state in this folder; None: there is none yet.

        Raises:
            JobError: the file is no such state.
        """
        try:
            stored = json.loads((folder / STATE).read_text())
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            raise JobError(f"{folder / STATE}: cannot be read: {error}.") from error
        try:
            tasks = [
                TaskEntry(
                    **{**entry, "hosts": tuple(entry["hosts"]), "lost_hosts": tuple(entry["lost_hosts"])}
                )
                for entry in stored["tasks"]
            ]
            return cls(**{**stored, "tasks": tasks})
        except (TypeError, KeyError) as error:
            raise JobError(f"{folder / STATE}: is not the state of an attended job: {error}.") from error


def beat(folder: Path) -> None:
    """Record that the attendant is alive."""
    os.utime(folder / STATE)


def lock(folder: Path) -> IO[bytes]:
    """Take the lock that an attendant holds as long as it lives, however it ends.

    Raises:
        LauncherError: another holds it.
    """
    deadline = time.monotonic() + _LOCK_S
    while True:
        # One who only looks holds it for an instant.
        held = _flock(folder, fcntl.LOCK_EX)
        if held is not None:
            return held
        if time.monotonic() > deadline:
            raise LauncherError(f"{folder}: this job has an attendant already.")
        time.sleep(0.02)


def is_attended(folder: Path) -> bool:
    """Return whether an attendant lives, as far as this host can tell."""
    with look(folder) as attended:
        return attended


@contextlib.contextmanager
def look(folder: Path) -> Iterator[bool]:
    """Check whether an attendant lives, as far as this host can tell; where none does,
    none can start within.
    """
    if not folder.is_dir():
        yield False
        return
    held = _flock(folder, fcntl.LOCK_SH)
    if held is None:
        yield True
        return
    with held:
        known = Ledger.read(folder)
        here = known is None or known.host == socket.gethostname()
        # Not every shared file system passes locks on between hosts.
        yield not here and time.time() - (folder / STATE).stat().st_mtime < SILENT_S


def _flock(folder: Path, kind: int) -> IO[bytes] | None:
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    file = os.fdopen(descriptor, "r+b", buffering=0)
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError as error:
        file.close()
        raise LauncherError(
            f"{folder}: this file system cannot lock files ({error.strerror}).",
            cure="Set CINGULUM_HOME to a folder on another one; on Lustre, ask for the mount option `flock`.",
        ) from error
    return file
