"""The interface of every launcher. `plan` is a pure function; only the other methods have effects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from jobs.schedulers.cluster_view import Picture
from jobs.sites import Site
from jobs.spec import Arguments, JobSpec
from trainer.errors import LauncherError

# States by the names that Slurm gives them (squeue, sacct); SUBMITTING and LOST are ours.
WAITING = ("SUBMITTING", "PENDING", "REQUEUED", "SUSPENDED")
ACTIVE = (*WAITING, "CONFIGURING", "RUNNING", "COMPLETING")
ENDED = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
    "LOST",
)

# A name that ssh and mpirun cannot take for an option, a user, a port or a pattern.
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
# The word of a probe in whose place a host is put.
PROBED = "{host}"

# Folder, in that of a job, of the files that look after it: the same for all jobs of a launcher.
SUPERVISOR = "supervisor"


@dataclass(frozen=True)
class Launch:
    """What a launch would do; `--dry-run` prints exactly this.

    Attributes:
        files: text of each file that is written into the job's folder first, by name.
        command: what is then run there, as an argument list (no shell).
        environment: additions to its environment.
    """

    files: Mapping[str, str]
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskState:
    """State of one task of a job (of the job itself, where it is not an array).

    Attributes:
        task: number within the array; 0 where there is none.
        state: one of ACTIVE or ENDED.
        exit_code: of the command; None while it runs. 128 + n: killed by signal n.
        reason: why it waits or how it failed, in words: "Priority", "rank 2 @ n3 was lost", ...
        hosts: where it runs or ran.
        restarts: how often it was started again.
        started, ended: seconds since 1970; None: not yet.
    """

    task: int
    state: str
    exit_code: int | None = None
    reason: str = ""
    hosts: tuple[str, ...] = ()
    restarts: int = 0
    started: float | None = None
    ended: float | None = None


@dataclass(frozen=True)
class Allocation:
    """Hosts that a scheduler has given to this process.

    Attributes:
        by: name of the scheduler, for people.
        hosts: by name.
        slots: of each; empty: not said.
        probe: a command that exits 0 where the host that its word `PROBED` stands for answers.
        hidden: variables with which mpirun does not look at the allocation.
    """

    by: str
    hosts: tuple[str, ...]
    slots: tuple[int, ...]
    probe: Arguments
    hidden: Mapping[str, str]


class NoAnswer(LauncherError):
    """A launcher's system did not answer, so that the result of the request is unknown."""


class Launcher(Protocol):
    """One way to start jobs. `external` is its own name of a job: Slurm's job id, an attendant's folder."""

    name: str

    def plan(self, spec: JobSpec, site: Site, folder: Path, token: str) -> Launch:
        """Return what `start` would do for this job in this folder (pure); `token` names the submission."""
        ...

    def preflight(self, spec: JobSpec, site: Site) -> str | None:
        """Raise LauncherError or JobError where this job could not run here; return the queue's own words,
        such as when it would start, where there is a queue.
        """
        ...

    def start(self, launch: Launch, folder: Path, after: Sequence[str]) -> str:
        """Write the files into the (existing, private) folder, start, and return `external`.

        Raises:
            LauncherError: it was not started; as NoAnswer: it may have been.
        """
        ...

    def find(self, token: str) -> str | None:
        """Return the job started with this token, also one whose `start` never returned;
        None: there is none.
        """
        ...

    def states(self, externals: Sequence[str]) -> dict[str, list[TaskState]]:
        """Return the state of every task of these jobs; leave out jobs that the system no longer knows."""
        ...

    def cancel(self, external: str, task: int | None = None) -> None:
        """End a job, or one task of it; leave it unchanged if it has ended."""
        ...

    def requeue(self, external: str, task: int | None = None) -> None:
        """Save and start it again."""
        ...

    def logs(self, folder: Path, external: str, task: int) -> Path:
        """Return the log of this task: both streams, all starts in order."""
        ...


@runtime_checkable
class Queue(Protocol):
    """What holds jobs, with priorities."""

    def hold(self, external: str, task: int | None = None) -> None:
        """Keep what waits in the queue; what runs goes on."""
        ...

    def release(self, external: str, task: int | None = None) -> None:
        """Let what `hold` kept start again."""
        ...

    def is_held(self, external: str, task: int | None = None) -> bool:
        """Return whether some of what waits is kept."""
        ...

    def nice(self, external: str, task: int | None, by: int) -> None:
        """Lower the priority of what waits by so much; 0: as it was."""
        ...


class Scheduler(Launcher, Queue, Protocol):
    """A launcher that queues jobs by itself, and names them by numbers.

    Attributes:
        variables: of the environment by which its commands find their cluster.
        place_variable: of the environment, which names another cluster; "": there is none.
        site: the model of a site's profile, `Site` itself or with keys of its own.
    """

    variables: tuple[str, ...]
    place_variable: str
    site: type[Site]

    @property
    def place(self) -> str:
        """The cluster's name, within which numbers of jobs are unique; "": it has none."""
        ...

    def is_here(self) -> bool:
        """Return whether jobs can be submitted to it on this host."""
        ...

    def look(self) -> Picture | None:
        """Return what the cluster is doing; None: this is no host of one.

        Raises:
            LauncherError: it does not answer.
        """
        ...

    def allocation(self, environment: Mapping[str, str]) -> Allocation | None:
        """Return the hosts that it has given to a process with this environment; None: none (pure).

        Raises:
            JobError: its variables cannot be read.
        """
        ...

    def after(self, command: Sequence[str], externals: Sequence[str]) -> list[str]:
        """Return a launch's command for a job that starts when all of `externals` have completed (pure)."""
        ...
