"""Find the rank or host that caused a failed launch, and why: pure functions of what ranks have left and of
the output of launchers. The supervisor on a host runs this, too: nothing newer than Python 3.6 here.
"""

import re
import signal
from typing import Any, Mapping, NamedTuple, Optional, Pattern, Sequence


class Blame(NamedTuple):
    """The rank or host that a failure is attributed to, and why.

    Attributes:
        why: in words, one line.
        who: such as "rank 2" or "server 0"; "": not known, or no single one's fault.
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


class LauncherWording(NamedTuple):
    """What another launcher than mpirun says of a failure; each has groups of these names.

    Attributes:
        lost: it has lost a `host`.
        ended: `rank` has ended on `host`, and `why`.
    """

    lost: "Pattern[str]"
    ended: "Pattern[str]"


# Our own words come before mpirun's: a rank speaks before that notices (trainer/ranks/world.py, watchdog.py).
_OURS = re.compile(
    r"^\[(?P<who>(?:rank|server) \d+) @ (?P<host>[^\]\s]+)\] "
    r"(?P<why>(?:error: |no progress for |[\w.]*(?:Error|Exception)\b).*)",
    re.M,
)
# Which of the launcher's ranks are servers (trainer/ranks/links.py).
_SERVER = re.compile(r"^rank (?P<rank>\d+) as launched is (?P<who>server \d+) @ ", re.M)
_ALONE = re.compile(r"^error: (?P<why>.+)", re.M)
# Open MPI 4.1: orte/tools/orterun/help-orterun.txt (orte-rmaps), errmgr and plm_rsh help texts; Open MPI 5:
# help-prun.txt, help-errmgr-base.txt and help-plm-base.txt of PRRTE, which names processes otherwise.
_SIGNAL = re.compile(
    r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on\s+signal\s+(?P<signal>\d+)"
)
_STATUS = re.compile(
    r"Process name: \[(?:\[\d+,\d+\],|[^\s\]]+@\d+,)(?P<rank>\d+)\]\s+Exit code:\s+(?P<code>\d+)",
)
_LOST = re.compile(
    r"lost communication with a remote daemon.*?Remote daemon:\s+\S+ on node (?P<host>\S+)", re.S
)
# Open MPI 5.0.11's mpirun ends with 0 after it has lost a host, and ended all ranks for that.
_LOST_WITH_ZERO = re.compile(r"^PRTE has lost communication with a remote daemon", re.M)
_NO_SSH = re.compile(r"ssh: (?:connect to host|Could not resolve hostname) (?P<host>[^\s:]+)(?P<why>.*)")
_NO_DAEMON = re.compile(r"\b\w+ was unable to reliably start one or more daemons")
_NO_SLOTS = re.compile(r"There are not enough slots available")
_NO_PROGRAM = re.compile(
    r"(?:unable to find the specified executable|could not access or execute an executable).*?"
    r"Node:\s+(?P<host>\S+)\s+Executable:\s+(?P<what>[^\n]+)",
    re.S,
)
_TCP = re.compile(r"mca_btl_tcp.*?(?P<why>Connection (?:timed out|reset by peer|refused)|No route to host)")


def read(
    text: str,
    exit_code: int,
    *,
    hosts: Sequence[str] = (),
    silent: Sequence[str] = (),
    left: Sequence[Mapping[str, Any]] = (),
    wording: Optional[LauncherWording] = None,
) -> Blame:
    """Return the cause of this launch's failure.

    Args:
        text: its output, both streams.
        exit_code: its exit code; 128 + n: killed by signal n.
        hosts: hosts that it ran on, as they were named to mpirun.
        silent: those of them that do not answer now.
        left: what ranks have left, the first one first (trainer/ranks/failure_file.py).
        wording: of the launcher, where it is not mpirun.
    """
    if silent:
        named = ", ".join(silent)
        return Blame("does not answer: powered off, or the link to it is cut", host=named, lost=True)
    match = _LOST.search(text)
    if match:
        return Blame("the connection to it is lost", host=_as_named(match["host"], hosts), lost=True)
    match = wording.lost.search(text) if wording else None
    if match:
        return Blame("the connection to it is lost", host=_as_named(match["host"], hosts), lost=True)
    ssh = (match for match in _NO_SSH.finditer(text) if not hosts or _as_named(match["host"], hosts) in hosts)
    match = next(ssh, None)
    if match:  # a program may use ssh, too, to other hosts
        why = f"ssh: {match['why'].strip(' :')}" if match["why"].strip(" :") else "ssh cannot reach it"
        return Blame(why, host=_as_named(match["host"], hosts), lost=True)
    if left:
        return _of_rank(left[0], hosts)
    match = _OURS.search(text)
    if match:
        host, why = _as_named(match["host"], hosts), re.sub("^error: ", "", match["why"])
        return Blame(why, match["who"], host, lost=why.startswith("does not answer"))
    match = _SIGNAL.search(text)
    if match:
        return Blame(
            f"was killed by {_signal(int(match['signal']))}",
            _who(match["rank"], text),
            _as_named(match["host"], hosts),
        )
    match = _NO_PROGRAM.search(text)
    if match:
        return Blame(f"there is no program {match['what'].strip()}", host=_as_named(match["host"], hosts))
    if _NO_SLOTS.search(text):
        return Blame("mpirun: there are fewer slots than ranks")
    match = _ALONE.search(text)
    if match:
        return Blame(match["why"])
    match = wording.ended.search(text) if wording else None
    if match:
        return Blame(match["why"], _who(match["rank"], text), _as_named(match["host"], hosts))
    if _NO_DAEMON.search(text):
        return Blame("mpirun could not start its daemon (orted, prted) on a host")
    match = _STATUS.search(text)
    if match:
        return Blame(f"ended with exit code {match['code']}", _who(match["rank"], text))
    match = _TCP.search(text)
    if match:
        return Blame(f"a connection between ranks broke: {match['why']}")
    if exit_code > 128:
        return Blame(f"was killed by {_signal(exit_code - 128)}")
    return Blame(f"ended with exit code {exit_code}")


def exit_code(text: str, code: int) -> int:
    """Return the effective exit code of a launch: 1 where mpirun ended with 0 though it had lost a host."""
    return 1 if code == 0 and _LOST_WITH_ZERO.search(text) else code


def matches(pattern: str, text: str) -> bool:
    """Return whether a line of the text matches."""
    return re.search(pattern, text, re.M) is not None


def _of_rank(record: Mapping[str, Any], hosts: Sequence[str]) -> Blame:
    lines = str(record["message"]).splitlines() or [""]
    who = str(record.get("who", ""))
    # An error that all ranks agreed on has no single rank at fault; rank 0 wrote it.
    host = _as_named(str(record.get("host", "")), hosts) if who else ""
    return Blame(lines[0], who, host, lost=lines[0].startswith("does not answer"))


def _who(rank: str, text: str) -> str:
    """Return our name of a process that mpirun knows by its rank."""
    return next((found["who"] for found in _SERVER.finditer(text) if found["rank"] == rank), f"rank {rank}")


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _as_named(host: str, hosts: Sequence[str]) -> str:
    """Return the name by which a host was launched: mpirun may shorten or lengthen it."""
    if host in hosts:
        return host
    short = host.partition(".")[0]
    return next((name for name in hosts if name.partition(".")[0] == short), host)
