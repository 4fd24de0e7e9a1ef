"""Settings, names, addresses and files of a testbed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import JobError, LauncherError

# Belongs to root alone, so that no other user can write there, and is on a disk that may run programs.
BASE = Path("/var/lib/cingulum/testbeds")
CONTROLLER = "ctl"
USER = "tester"  # a user who exists in the testbed's hosts only
MOST_HOSTS = 200
LINK = "eth0"  # of each host; it has no other
PRIVATE = (Path("/tmp"), Path("/dev/shm"), Path("/run"))  # noqa: S108 (each host has its own)
# No route leaves a testbed's switch: every testbed may use these addresses.
NETWORK = "10.99.0"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
_RATE = re.compile(r"[0-9]+(\.[0-9]+)?(bit|kbit|mbit|gbit)")
_DELAY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s)")


@dataclass(frozen=True)
class Settings:
    """Requested settings.

    Attributes:
        name: of the testbed, so that several can run side by side.
        hosts: number of hosts n1, n2, ...; the controller `ctl` comes on top.
        cpus: that Slurm believes each host to have.
        memory_mb: that Slurm believes each host to have.
        gpus: pretended ones that Slurm believes each host to have.
        cpus_per_host: cores whose time each host gets at most; None: no limit.
        bandwidth: of each host's link, each way, as tc writes it ("1gbit"); None: not limited.
        delay: added to each packet that leaves a host, such as "0.2ms"; None: none.
        slurm: whether slurmctld and slurmd run.
        accounting: whether slurmdbd and MariaDB run as well, for sacct.
        kept: folders that all hosts see even where they lie in /tmp, /dev/shm or /run, which are private.
    """

    name: str = "testbed"
    hosts: int = 4
    cpus: int = 2
    memory_mb: int = 4000
    gpus: int = 0
    cpus_per_host: float | None = None
    bandwidth: str | None = None
    delay: str | None = None
    slurm: bool = True
    accounting: bool = False
    kept: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 1 <= self.hosts <= MOST_HOSTS:
            raise JobError(f"{self.hosts} hosts cannot be made.", cure=f"Ask for 1 to {MOST_HOSTS}.")
        if self.cpus < 1 or self.memory_mb < 1 or self.gpus < 0:
            raise JobError("A host has 1 CPU and 1 MB of memory or more, and 0 GPUs or more.")
        if self.cpus_per_host is not None and not (
            math.isfinite(self.cpus_per_host) and self.cpus_per_host >= 0.01
        ):
            raise JobError(f"cpus per host: {self.cpus_per_host} is too few.", cure="Give 0.01 or more.")
        if self.bandwidth is not None:
            check_rate(self.bandwidth)
        if self.delay is not None:
            microseconds(self.delay)
        if self.accounting and not self.slurm:
            raise JobError("Accounting needs Slurm.")

    @property
    def host_names(self) -> tuple[str, ...]:
        """Return n1, n2, ...: the hosts on which jobs run."""
        return tuple(f"n{number}" for number in range(1, self.hosts + 1))

    @property
    def all_names(self) -> tuple[str, ...]:
        """Return the controller and all hosts."""
        return (CONTROLLER, *self.host_names)


def check_name(name: str) -> str:
    """Return the name of a testbed, if it is valid.

    Raises:
        JobError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise JobError(
            f"{name!r} cannot name a testbed.", cure="Use up to 31 small letters, digits and dashes."
        )
    return name


def check_rate(rate: str) -> str:
    """Return a rate as tc writes it, if it is valid.

    Raises:
        JobError: not such a rate.
    """
    if not _RATE.fullmatch(rate) or float(re.sub("[a-z]+", "", rate)) == 0:
        raise JobError(f"{rate!r} is not a rate.", cure="Write it like 1gbit, 200mbit or 64kbit.")
    return rate


def bytes_per_second(rate: str) -> float:
    """Return a rate such as "200mbit" in bytes per second.

    Raises:
        JobError: not such a rate.
    """
    number = check_rate(rate).rstrip("bgikmt")
    return float(number) * {"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}[rate[len(number) :]] / 8


def microseconds(delay: str) -> float:
    """Return a delay such as "0.2ms" in microseconds.

    Raises:
        JobError: not a delay, or longer than a second.
    """
    found = _DELAY.fullmatch(delay)
    value = float(found[1]) * {"us": 1, "ms": 1e3, "s": 1e6}[found[2]] if found else -1.0
    if not 0 <= value <= 1e6:
        raise JobError(f"{delay!r} is not a delay.", cure="Write it like 0.2ms, 150us or 0s, up to 1s.")
    return value


def address(host: str) -> str:
    """Return the IP address of a host: ctl is .1, n1 is .11."""
    return f"{NETWORK}.{1 if host == CONTROLLER else 10 + int(host[1:])}"


def hosts_file(settings: Settings) -> str:
    """Return the text of /etc/hosts."""
    lines = [f"{address(host)} {host}" for host in settings.all_names]
    return "\n".join(["127.0.0.1 localhost", *lines, ""])


def place(name: str) -> Path:
    """Return the folder of the testbed of this name (a link where another folder was given)."""
    return BASE / check_name(name)


def names() -> list[str]:
    """Return the names of the testbeds on this machine, also of half-made ones."""
    try:
        return sorted(path.name for path in BASE.iterdir())
    except FileNotFoundError:
        return []


def save(settings: Settings, folder: Path) -> None:
    """Write the settings into a testbed's folder."""
    temporary = folder / "testbed.json.new"
    temporary.write_text(json.dumps(dataclasses.asdict(settings), indent=1))
    temporary.replace(folder / "testbed.json")


def load(name: str) -> tuple[Settings, Path]:
    """Return settings and folder of a testbed.

    Raises:
        JobError: no testbed has this name.
        LauncherError: it was only half made, or is being made.
    """
    folder = place(name)
    if not os.path.lexists(folder):
        raise JobError(
            f"There is no testbed {name!r} on this machine.", cure=f"cingulum testbed up --name {name}"
        )
    try:
        written = json.loads((folder / "testbed.json").read_text())
        settings = Settings(**{**written, "kept": tuple(written["kept"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LauncherError(
            f"The testbed {name!r} is half made: `up` is at work, or was killed.",
            cure=f"If it was: cingulum testbed down --name {name}",
        ) from error
    return settings, folder.resolve()
