"""Choose hosts for the next start of a task: pure except for asking which hosts answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jobs.terms import Terms


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
