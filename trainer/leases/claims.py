"""The process that writes a run folder: claims in its `.writers/`, and whether their owner is alive.

    .writers/00000002.json      the claim of the run's second start: made once, never changed
    .writers/00000002.reads     made when all earlier starts were fenced off, before anything was read
    .writing-TOKEN/             staging folder of a start; gone when the start has ended or was fenced off
    .writing-TOKEN/heartbeat    a number that grows while the start lives

docs/decisions/0042-one-writer.md says why it is safe. No clock is compared with another machine's.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer import batch_environment
from trainer.errors import RunError

WRITERS = ".writers"
HEARTBEAT = "heartbeat"
# An owner beats this often; one that was silent for so long, by our own clock, counts as dead.
BEAT_S = 2.0
SILENT_S = 60.0
# However impatient a run is otherwise, an owner may miss so many beats.
LEAST_BEATS = 5

_CLAIM = re.compile(r"([0-9]{8,18})\.json")
# What an attendant (jobs/local/attended_files.py) and Slurm tell a start of the job that it belongs to.


@dataclass(frozen=True)
class Owner:
    """One start of a run, as its claim tells.

    Attributes:
        start: its number, from 1: higher than that of every start before it.
        token: of its staging folder.
        inode: of its staging folder, so that the copy of a run folder is not taken for the run.
        job: that it belongs to, such as `slurm:cluster:47`; empty outside of a job.
        restart: how often that job had been started before.
        host: its name.
        boot: of the host's kernel.
        namespace: of its processes' numbers.
        pid: of rank 0.
        began: of that process, in ticks since the boot.
        time: for people.
    """

    start: int
    token: str
    inode: int = 0
    job: str = ""
    restart: int = 0
    host: str = ""
    boot: str = ""
    namespace: str = ""
    pid: int = 0
    began: int = 0
    time: str = ""

    def __str__(self) -> str:
        job = f"job {self.job.rpartition(':')[2]}, " if self.job else ""
        return f"{job}start {self.start}, on {self.host} (pid {self.pid})"

    def precedes(self, other: Owner) -> bool:
        """Return whether it is an earlier start of the same job."""
        return bool(self.job) and self.job == other.job and self.restart < other.restart

    def is_gone(self) -> bool | None:
        """Return whether its process has ended; None where that cannot be seen from here."""
        if (self.boot, self.namespace) != (_boot(), _namespace()) or not self.boot:
            return None
        return _began(self.pid) != self.began


def myself(environment: Mapping[str, str]) -> Owner:
    """Return this process as an owner, of a start that has no number and no staging folder yet."""
    job, restart = batch_environment.start(environment)
    return Owner(
        start=0,
        token="",
        job=job,
        restart=int(restart) if restart.isdecimal() else 0,
        host=socket.gethostname(),
        boot=_boot(),
        namespace=_namespace(),
        pid=os.getpid(),
        began=_began(os.getpid()) or 0,
        time=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
    )


def path_of(folder: str, start: int) -> str:
    """Return the path of the claim of a start."""
    return f"{folder}/{WRITERS}/{start:08d}.json"


def staging_of(folder: str, token: str) -> str:
    """Return the staging folder of a start."""
    return f"{folder}/.writing-{token}"


def last(folder: str) -> Owner | None:
    """Return the owner of the highest claim; None without any.

    Raises:
        RunError: a claim is damaged.
    """
    try:
        names = os.listdir(f"{folder}/{WRITERS}")
    except FileNotFoundError:
        return None
    start = max((int(found[1]) for name in names if (found := _CLAIM.fullmatch(name))), default=0)
    owner = read(folder, start) if start else None
    # NFS may list a folder as it was a minute ago; what is looked up by its name is there.
    while (following := read(folder, start + 1)) is not None:
        owner, start = following, start + 1
    return owner


def read(folder: str, start: int) -> Owner | None:
    """Return the owner of a start; None where there is no such claim.

    Raises:
        RunError: it is damaged.
    """
    path = path_of(folder, start)
    text = read_bytes(path)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        known = {field.name: fields[field.name] for field in dataclasses.fields(Owner)}
        if any(type(known[field.name]).__name__ != field.type for field in dataclasses.fields(Owner)):
            raise TypeError
        return Owner(**known)
    except (ValueError, TypeError, KeyError):
        raise RunError(
            f"{path}: is damaged, so the process that writes this run is unknown.",
            cure=f"Make sure that no process trains it, then remove {folder}/{WRITERS} and "
            f"{folder}/.writing-*",
            path=path,
        ) from None


def read_bytes(path: str) -> bytes | None:
    """Return a small file's content; None where there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return os.read(descriptor, 2**16)
    finally:
        os.close(descriptor)


def has_staging(folder: str, owner: Owner) -> bool:
    """Return whether its staging folder exists: the start has neither ended nor been fenced off."""
    try:
        return os.stat(staging_of(folder, owner.token)).st_ino == owner.inode
    except FileNotFoundError:
        return False


def beat_of(folder: str, owner: Owner) -> bytes | None:
    """Return the content of its heartbeat; None before the first one."""
    return read_bytes(f"{staging_of(folder, owner.token)}/{HEARTBEAT}")


def patience(limit_s: float) -> float:
    """Return the seconds after which a silent owner counts as dead, for a run that waits so long at most."""
    return max(LEAST_BEATS * BEAT_S, min(SILENT_S, limit_s))


def holder(folder: Path, wait_s: float = LEAST_BEATS * BEAT_S) -> Owner | None:
    """Return the process that trains the run in this folder now; None where none is seen.

    Args:
        folder: of the run.
        wait_s: how long an owner on another host may take until its heartbeat changes.

    Raises:
        RunError: a claim is damaged.
    """
    place = os.fspath(folder)
    try:
        owner = last(place)
        if owner is None or not has_staging(place, owner):
            return None
        gone = owner.is_gone()
        if gone is not None:
            return None if gone else owner
        first, until = beat_of(place, owner), time.monotonic() + wait_s
        while time.monotonic() < until and has_staging(place, owner):
            if beat_of(place, owner) != first:
                return owner
            time.sleep(0.1)
    except OSError:  # a folder that we may not read tells what it is elsewhere
        pass
    return None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _began(pid: int) -> int | None:
    """When a process began, in ticks since the boot; None where there is none that runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    except OSError:
        return None
    state, *others = fields.split()
    return None if state in "ZX" else int(others[18])
