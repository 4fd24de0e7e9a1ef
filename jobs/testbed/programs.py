"""Outside programs of a testbed: which must exist, and how they are called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from jobs.programs import ask
from trainer.errors import LauncherError

# Daemons lie where the PATH of a plain user does not look.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Debian's package of each program.
_ALWAYS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "bash": "bash",
    "hostname": "hostname",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
}
_SLURM = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
}
_ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "mariadb-install-db": "mariadb-server"}
_DELAY = {"gcc": "gcc libc6-dev", "iptables": "iptables"}


def find(program: str) -> str | None:
    """Return the path of a program, searched where it will be searched when run; None: not found."""
    return shutil.which(program, path=PATH)


def check_root() -> None:
    """Raise LauncherError where we are not root."""
    if os.geteuid() != 0:
        raise LauncherError(
            "A testbed needs root, to make namespaces and network links, and to enter them.",
            cure="Run it with sudo.",
        )


def _has_pmix() -> bool:
    """Return whether Slurm's plugin finds PMIx: it opens only the name that Debian ships for compiling."""
    line = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libpmix.so')"]
    return subprocess.run(line, capture_output=True, timeout=30, check=False).returncode == 0


def check(*, slurm: bool, accounting: bool, delay: bool) -> None:
    """Check that a testbed can be made here.

    Raises:
        LauncherError: this is no Linux, we are not root, programs are missing, or namespaces are forbidden.
    """
    if not sys.platform.startswith("linux"):
        raise LauncherError(
            f"A testbed needs Linux's namespaces; this is {sys.platform}.", cure="Use a Linux machine or VM."
        )
    check_root()
    needed = dict(_ALWAYS)
    for wanted, more in ((slurm, _SLURM), (accounting, _ACCOUNTING), (delay, _DELAY)):
        needed.update(more if wanted else {})
    missing = {program: package for program, package in needed.items() if find(program) is None}
    if slurm and not _has_pmix():
        missing["libpmix.so"] = "libpmix-dev"
    if missing:
        packages = " ".join(dict.fromkeys(missing.values()))
        raise LauncherError(
            f"Programs that a testbed needs are missing: {', '.join(missing)}.",
            cure=f"apt-get install --no-install-recommends {packages}",
        )
    tried = subprocess.run(
        ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--mount-proc", "true"],
        env={"PATH": PATH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if tried.returncode:
        raise LauncherError(
            f"This machine does not allow namespaces: {tried.stderr.strip()}.",
            cure="Use a machine or VM of your own; a container needs --privileged.",
        )


def run(
    argv: Sequence[str],
    doing: str,
    *,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> str:
    """Run a program that must succeed and return its standard output.

    Args:
        argv: program and arguments.
        doing: what this is for, as the error says it: "making the switch".
        stdin: its standard input.
        environment: all of its environment; default: a PATH only.
        timeout: in seconds.

    Raises:
        LauncherError: it cannot be run, failed, or took too long.
    """
    return ask(
        argv, seconds=timeout, doing=doing, stdin=stdin, environment={"PATH": PATH, **(environment or {})}
    )


def wait_for(condition: Callable[[], bool], what: str, seconds: float, *, every: float = 0.02) -> None:
    """Poll a condition until it holds.

    Raises:
        LauncherError: it did not hold within `seconds` seconds; the message names `what`.
    """
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise LauncherError(f"Waited {seconds:g} s without success for {what}.")
        time.sleep(every)
