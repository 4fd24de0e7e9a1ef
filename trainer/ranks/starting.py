"""The start of a world: which processes there are, and which of them this is.

`init` is called once. It imports TensorFlow before anything that loads libmpi (TensorFlow exports its own
hwloc symbols: the other order ends every rank with a segmentation fault), sets what a launch needs through
the environment, and starts Horovod only where there is more than one rank. Without a launcher the world has
one rank and neither MPI nor Horovod is loaded.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from threadpoolctl import threadpool_limits

from trainer.errors import CingulumError, WorldError
from trainer.quiet import import_tensorflow
from trainer.ranks import failure_file, launch
from trainer.ranks.members import Members
from trainer.ranks.world import World, current, enter, fault_of_another, is_known, report


def init(
    threads: int | None = None,
    *,
    environment: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
    members: Members | Callable[[], Members] | None = None,
) -> World:
    """Find out who takes part; call it before anything is computed. Calling it again changes nothing.

    Args:
        threads: compute threads of this rank. Default: the host's cores divided by its ranks, and for a
            world of one rank whatever TensorFlow chooses.
        environment: what MPI and Horovod read at their start (`launch.ring_environment`); it wins over
            variables of the site, which win over our defaults. A function is called after `members`.
        members: which processes are parameter servers, and what is prepared between ranks; default: all are
            ranks, which have collectives alone. A function is called once TensorFlow is imported, where a
            file of the user's decides, which imports it; it has no servers.

    Raises:
        ConfigError: too few processes for that many servers.
        WorldError: the launch does not form one world, or TensorFlow has started with other threads.
    """
    if is_known():
        return current()
    roster = members if isinstance(members, Members) else Members()
    several = launch.expected_size() > 1
    if threads is None and (several or roster.servers):
        threads = launch.threads_per_rank(local_size=launch.local_size())
    if threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    tf = import_tensorflow()  # before Horovod: see the top of this file

    if threads is not None:
        serves = roster.servers > 0 and roster.placement == "colocated"
        launch.limit_threads(tf, threads, serves=serves)
        keep_to_own_cores(tf, threads=threads, place=launch.unbound_place())
        # NumPy's BLAS has been loaded, with a thread for each core that mpirun left to all ranks of the host.
        threadpool_limits(threads, user_api="blas")
    if callable(members):
        roster = members()
    if several or roster.servers:
        # Read when MPI and Horovod start; TensorFlow, which a user's file needs, has no use for it.
        launch.apply_settings(environment() if callable(environment) else environment)
    world = _world_of(roster, several=several)
    enter(world)
    if several:
        sys.excepthook = _end_all_ranks
    return world


def _world_of(members: Members, *, several: bool) -> World:
    if members.servers or (members.messages and several):
        from trainer.ranks import mpi_world

        return mpi_world.join(members)
    if several:
        from trainer.ranks.horovod_world import HorovodWorld

        return HorovodWorld(groups=members.groups)
    with contextlib.suppress(WorldError):  # a script that has computed keeps what it took
        launch.pin_gpu(0)
    return World()


def _end_all_ranks(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """`sys.excepthook`: an error that nothing caught on one rank ends every rank, its message first."""
    world = current()
    if isinstance(error, CingulumError):
        text, exit_code = f"error: {error}", error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        text, exit_code = "interrupted", 130
    elif line := fault_of_another(error):
        text, exit_code = line, 1
    else:
        text, exit_code = "".join(traceback.format_exception(kind, error, trace)).rstrip(), 1
    kept = f"{error}" if isinstance(error, CingulumError) else f"{kind.__name__}: {error}"
    failure_file.leave(kept, kind=kind.__name__, exit_code=exit_code, name=world.name)
    report(text)
    world.abort(exit_code)


# The cores of its host that a rank keeps to.
#
# A rank that waits for another polls, and where it may run anywhere it polls now and then on a core that the
# other computes on. Figures: docs/decisions/0003-gradient-reduction.md.


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
