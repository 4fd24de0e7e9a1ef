"""`state.json` of an attended job: written by its attendant alone, atomically, read by anyone at any time."""

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
from typing import IO

from jobs import processes
from jobs.terms import LOCK
from trainer import atomic
from trainer.errors import JobError, LauncherError

STATE = "state.json"
# An attendant on another host shares no process table with us; it touches its state this often.
BEAT_S = 10.0
SILENT_S = 120.0
_LOCK_S = 5.0


@dataclass
class Entry:
    """Stored state of one task; see `jobs.launchers.base.TaskState`, which is made of it.

    Attributes:
        failures: starts that failed, as counted against `requeues`.
        lost_hosts: hosts that did not answer before a start, or when one failed.
        step, idle: of a training; see `jobs.progress_made.Standing`.
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
    tasks: list[Entry] = field(default_factory=list)

    @classmethod
    def new(cls, token: str, tasks: list[Entry]) -> Ledger:
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
            found = json.loads((folder / STATE).read_text())
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            raise JobError(f"{folder / STATE}: cannot be read: {error}.") from error
        try:
            tasks = [
                Entry(**{**entry, "hosts": tuple(entry["hosts"]), "lost_hosts": tuple(entry["lost_hosts"])})
                for entry in found["tasks"]
            ]
            return cls(**{**found, "tasks": tasks})
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
