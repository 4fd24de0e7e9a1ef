"""What a cluster is doing at one time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """A host.

    Attributes:
        name: of the host.
        state: in the words of the scheduler.
        usable: whether jobs may start there.
        cpus, cpus_used: cores, or slots of a hostfile.
        gpus, gpus_used: by the scheduler's count.
        memory_mib, memory_used_mib: that jobs may have, and have; None: not known.
        partitions: that it belongs to.
        reason: why it is not usable.
    """

    name: str
    state: str
    usable: bool
    cpus: int
    cpus_used: int
    gpus: int = 0
    gpus_used: int = 0
    memory_mib: int | None = None
    memory_used_mib: int | None = None
    partitions: tuple[str, ...] = ()
    reason: str = ""

    @property
    def cpus_free(self) -> int:
        """Cores on which a job may start."""
        return max(0, self.cpus - self.cpus_used) if self.usable else 0

    @property
    def gpus_free(self) -> int:
        """GPUs on which a job may start, where cores and memory are left, too."""
        return max(0, self.gpus - self.gpus_used) if self.usable else 0


@dataclass(frozen=True)
class Queued:
    """A job, or tasks of one, that runs or waits, whoever's it is.

    Attributes:
        id: as the scheduler names it: `4711`, `4711_3`, `4711_[4-9%2]`.
        user: whose it is.
        state: in the words of the scheduler.
        reason: why it waits.
        partition: it is in.
        nodes, cpus, gpus: that it has or asks for.
        hosts: where it runs, as the scheduler writes it: `n[1-4]`.
        submitted, started, expected: seconds since 1970; `expected`: when it starts by the scheduler's plan.
        limit: its longest time, as the scheduler writes it.
    """

    id: str
    user: str
    state: str
    reason: str = ""
    partition: str = ""
    nodes: int = 1
    cpus: int = 0
    gpus: int = 0
    hosts: str = ""
    submitted: float | None = None
    started: float | None = None
    expected: float | None = None
    limit: str = ""


@dataclass(frozen=True)
class AccountShare:
    """A user's share in an account: entitled to and used (0 to 1), and the fair-share factor."""

    account: str
    entitled: float | None
    used: float | None
    factor: float | None


@dataclass(frozen=True)
class Picture:
    """A cluster.

    Attributes:
        scheduler: "slurm", or "mpirun" where there is none.
        hosts: all of them.
        queue: what runs and what waits, the scheduler's order; without Slurm the user's own jobs.
        shares: of the user, where the scheduler keeps accounts.
        note: what the picture cannot tell.
    """

    scheduler: str
    hosts: tuple[Host, ...]
    queue: tuple[Queued, ...]
    shares: tuple[AccountShare, ...] = ()
    note: str = ""
