"""Which rank or host the output of a failed launch names, and why: a pure function over text."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Blame:
    """Whom a failure is put down to.

    Attributes:
        why: in words, one line.
        who: such as "rank 2" or "server 0"; "": not known, or nobody's fault among them.
        host: its host, or the host that was lost; "": not known.
        lost: whether the host itself, or the way to it, is gone.
    """

    why: str
    who: str = ""
    host: str = ""
    lost: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.why}" if self.where else self.why

    @property
    def where(self) -> str:
        """`rank 2 @ n3`, `server 0 @ n4`, `n3`, or nothing."""
        return " @ ".join(part for part in (self.who, self.host) if part)


# Our own words come before mpirun's: a rank speaks before that notices (trainer/world.py, watchdog.py).
_OURS = re.compile(
    r"^\[(?P<who>(?:rank|server) \d+) @ (?P<host>[^\]\s]+)\] "
    r"(?P<why>(?:error: |no progress for |[\w.]*(?:Error|Exception)\b).*)",
    re.M,
)
# Which of the launcher's ranks are servers (trainer/mpi_world.py).
_SERVER = re.compile(r"^rank (?P<rank>\d+) as launched is (?P<who>server \d+) @ ", re.M)
_ALONE = re.compile(r"^error: (?P<why>.+)", re.M)
# Open MPI 4.1: orte/tools/orterun/help-orterun.txt (orte-rmaps), errmgr and plm_rsh help texts.
_SIGNAL = re.compile(
    r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on signal\s+(?P<signal>\d+)"
)
_STATUS = re.compile(
    r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]\s+Exit code:\s+(?P<code>\d+)",
)
_LOST = re.compile(
    r"lost communication with a remote daemon.*?Remote daemon:\s+\S+ on node (?P<host>\S+)", re.S
)
_NO_SSH = re.compile(r"ssh: (?:connect to host|Could not resolve hostname) (?P<host>[^\s:]+)(?P<why>.*)")
_NO_DAEMON = re.compile(r"ORTE was unable to reliably start one or more daemons")
_NO_SLOTS = re.compile(r"There are not enough slots available")
_NO_PROGRAM = re.compile(
    r"(?:unable to find the specified executable|could not access or execute an executable).*?"
    r"Node:\s+(?P<host>\S+)\s+Executable:\s+(?P<what>[^\n]+)",
    re.S,
)
_TCP = re.compile(r"mca_btl_tcp.*?(?P<why>Connection (?:timed out|reset by peer|refused)|No route to host)")


def read(text: str, exit_code: int, *, hosts: Sequence[str] = (), silent: Sequence[str] = ()) -> Blame:
    """Whom this launch's failure is put down to.

    Args:
        text: its output, both streams.
        exit_code: its exit code; 128 + n: killed by signal n.
        hosts: hosts that it ran on, as they were named to mpirun.
        silent: those of them that do not answer now.
    """
    if silent:
        named = ", ".join(silent)
        return Blame("does not answer: powered off, or the link to it is cut", host=named, lost=True)
    if found := _LOST.search(text):
        return Blame("mpirun lost the way to it", host=_as_named(found["host"], hosts), lost=True)
    ssh = (found for found in _NO_SSH.finditer(text) if not hosts or _as_named(found["host"], hosts) in hosts)
    if found := next(ssh, None):  # a program may use ssh, too, to other hosts
        why = f"ssh: {found['why'].strip(' :')}" if found["why"].strip(" :") else "ssh cannot reach it"
        return Blame(why, host=_as_named(found["host"], hosts), lost=True)
    if found := _OURS.search(text):
        host, why = _as_named(found["host"], hosts), found["why"].removeprefix("error: ")
        return Blame(why, found["who"], host, lost=why.startswith("does not answer"))
    if found := _SIGNAL.search(text):
        return Blame(
            f"was killed by {_signal(int(found['signal']))}",
            _who(found["rank"], text),
            _as_named(found["host"], hosts),
        )
    if found := _NO_PROGRAM.search(text):
        return Blame(f"there is no program {found['what'].strip()}", host=_as_named(found["host"], hosts))
    if _NO_SLOTS.search(text):
        return Blame("mpirun: there are fewer slots than ranks")
    if found := _ALONE.search(text):
        return Blame(found["why"])
    if _NO_DAEMON.search(text):
        return Blame("mpirun could not start its daemon (orted) on a host")
    if found := _STATUS.search(text):
        return Blame(f"ended with exit code {found['code']}", _who(found["rank"], text))
    if found := _TCP.search(text):
        return Blame(f"a connection between ranks broke: {found['why']}")
    if exit_code > 128:
        return Blame(f"was killed by {_signal(exit_code - 128)}")
    return Blame(f"ended with exit code {exit_code}")


def _who(rank: str, text: str) -> str:
    """What we call a process that mpirun knows by its rank."""
    return next((found["who"] for found in _SERVER.finditer(text) if found["rank"] == rank), f"rank {rank}")


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _as_named(host: str, hosts: Sequence[str]) -> str:
    """A host by the name it was launched by: mpirun may shorten it, or lengthen it."""
    if host in hosts:
        return host
    short = host.partition(".")[0]
    return next((name for name in hosts if name.partition(".")[0] == short), host)
