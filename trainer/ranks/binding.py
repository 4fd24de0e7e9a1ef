"""The cores of its host that a rank keeps to.

A rank that waits for another polls, and where it may run anywhere it polls now and then on a core that the
other computes on. Figures: docs/decisions/0003-gradient-reduction.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_SYSTEM = Path("/sys/devices/system/cpu")


def keep_to_own_cores(tf: Any, *, threads: int, place: tuple[int, int] | None) -> list[int] | None:
    """Bind this process, and all threads that it starts from now on, to its share of the host's cores.

    Only where each rank computes with its whole share: fewer threads say that others need cores, too. Not on
    hosts with GPUs, whose ranks wait for them instead of computing (not timed there). A site that wants
    ranks to move freely sets CINGULUM_BIND=none.

    Args:
        tf: TensorFlow, not started yet.
        threads: of this rank.
        place: this rank's number on its host, and how many ranks are there (`launch.unbound_place`); None
            where others have bound it, or may have.

    Returns:
        Its cores as the system numbers them; None where it was left alone.
    """
    if place is None or os.environ.get("CINGULUM_BIND") == "none":
        return None
    rank, ranks = place
    cores = os.sched_getaffinity(0)
    if ranks < 2 or threads != len(cores) // ranks or tf.config.list_physical_devices("GPU"):
        return None
    mine = share(neighbours(cores), rank, ranks)
    os.sched_setaffinity(0, mine)
    return sorted(mine)


def share(cores: Sequence[int], rank: int, ranks: int) -> list[int]:
    """Return a rank's part of `cores`, which are divided evenly to one core; pure."""
    return list(cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks])


def neighbours(cores: Iterable[int], system: Path = _SYSTEM) -> list[int]:
    """Return cores ordered by package, core, thread: those that share more are next to each other.

    Linux often numbers the first thread of every core before the second of any, so that halves by number
    would have the same cores in common.
    """

    def place(cpu: int) -> tuple[int, int, int]:
        topology = system / f"cpu{cpu}" / "topology"
        try:
            package, core = (int((topology / n).read_text()) for n in ("physical_package_id", "core_id"))
        except (OSError, ValueError):
            return 0, cpu, cpu
        return package, core, cpu

    return sorted(cores, key=place)
