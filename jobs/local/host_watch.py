"""Check whether hosts answer, while a job runs and before its next start, and choose hosts for that start."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from jobs.local.attended_files import Terms
from jobs.schedulers.base import PROBED

# A host is silent after so many missed answers in a row: a link may flap, and a busy host may be slow.
MISSED = 3


class HostWatch:
    """Checks hosts repeatedly, without blocking. Call `close` at the end.

    It finds what mpirun does not: waiting for the daemon of a host that is gone takes mpirun a quarter of
    an hour (docs/how-to/run-on-mpi-hosts.md).

    Args:
        probe: command that exits 0 where the host that its word `PROBED` stands for answers.
        hosts: their names.
        every_s: seconds from one question to the next.
        answer_s: seconds that an answer may take.
    """

    def __init__(
        self, probe: Sequence[str], hosts: Sequence[str], *, every_s: float, answer_s: float
    ) -> None:
        self._probe, self._every_s, self._answer_s = probe, every_s, answer_s
        self._missed = dict.fromkeys(hosts, 0)
        self._heard: set[str] = set()
        self._asked: dict[str, subprocess.Popen[bytes]] = {}
        self._next = time.monotonic()
        self._deadline = 0.0

    def silent(self) -> list[str]:
        """Return hosts that answered once, and then failed to answer several times in a
        row; call it often.
        """
        now = time.monotonic()
        for host, process in list(self._asked.items()):
            if process.poll() is None:
                if now < self._deadline:
                    continue
                process.kill()
            answers = process.wait() == 0
            # Where no host ever answered, the probe itself may be wrong.
            self._heard |= {host} if answers else set()
            self._missed[host] = 0 if answers or host not in self._heard else self._missed[host] + 1
            del self._asked[host]
        if now >= self._next and not self._asked:
            self._next, self._deadline = now + self._every_s, now + self._answer_s
            self._asked = _ask_all(self._probe, list(self._missed))
        return [host for host, times in self._missed.items() if times >= MISSED]

    def close(self) -> None:
        """Stop checking."""
        for process in self._asked.values():
            process.kill()
            process.wait()
        self._asked = {}


def silent_among(probe: Sequence[str], hosts: Sequence[str], answer_s: float) -> list[str]:
    """Return those of these hosts that do not answer in time; waits for them."""
    asked = _ask_all(probe, hosts)
    deadline = time.monotonic() + answer_s
    silent = []
    for host, process in asked.items():
        try:
            answered = process.wait(timeout=max(0.0, deadline - time.monotonic())) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            answered = False
        if not answered:
            silent.append(host)
    return silent


def _ask_all(probe: Sequence[str], hosts: Sequence[str]) -> dict[str, subprocess.Popen[bytes]]:
    processes = {}
    for host in hosts:
        # A probe that cannot be started (no such program, too many processes) says nothing about a host.
        with contextlib.suppress(OSError):
            processes[host] = _ask(probe, host)
    return processes


def _ask(probe: Sequence[str], host: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [host if word == PROBED else word for word in probe],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


class TooFewAnswer(Exception):
    """Not enough hosts are left for a start.

    Attributes:
        silent: those that do not answer.
        left: how many do.
        wanted: how many are needed.
    """

    def __init__(self, silent: Sequence[str], left: int, wanted: int) -> None:
        super().__init__(f"{left} of the {wanted} hosts needed are left")
        self.silent, self.left, self.wanted = tuple(silent), left, wanted


def choose(
    agreed: Terms,
    taken: Mapping[str, int],
    lost: Sequence[str],
    silent_among: Callable[[Sequence[str]], Sequence[str]],
) -> list[str] | None:
    """Return hosts for a start, in the order of the terms; None: it must wait until others end.

    Hosts that were lost come last, and are asked before they are used again. With `shrink`, fewer hosts
    do, as many as share the global batch evenly.

    Args:
        agreed: the job's terms, with hosts.
        taken: slots that other tasks use now, by host.
        lost: hosts that did not answer before a start of this task, or when one failed.
        silent_among: those of some hosts that do not answer now; only asked about lost ones.

    Raises:
        TooFewAnswer: whatever others do, there are not enough.
    """
    fitting = [host for host, slots in agreed.hosts.items() if slots >= agreed.slots]
    room = [host for host in fitting if agreed.hosts[host] - taken.get(host, 0) >= agreed.slots]
    sound = [host for host in room if host not in lost]
    if len(sound) >= agreed.nodes:
        return sound[: agreed.nodes]
    if sum(host not in lost for host in fitting) >= agreed.nodes:
        return None
    silent = silent_among([host for host in room if host in lost])
    back = [*sound, *(host for host in room if host in lost and host not in silent)]
    if len(back) >= agreed.nodes:
        return back[: agreed.nodes]
    if len(room) < len(fitting):
        return None
    if not agreed.shrink:
        raise TooFewAnswer(silent, len(back), agreed.nodes)
    for number in range(len(back), agreed.least_nodes - 1, -1):
        if (agreed.global_batch or 0) % (number * agreed.slots) == 0:
            return back[:number]
    raise TooFewAnswer(silent, len(back), agreed.least_nodes)
