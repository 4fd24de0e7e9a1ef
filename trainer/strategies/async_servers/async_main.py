"""Server 0 of an asynchronous run: the main process, which trains, tells people, and ends the run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from trainer import atomic
from trainer.config import RunConfig
from trainer.errors import CingulumError, WorldError, as_text
from trainer.ranks import meeting
from trainer.ranks.agreement import Agreed
from trainer.ranks.links import Links
from trainer.ranks.liveness import MEET_S, LivenessPort
from trainer.ranks.members import TO_SERVERS, TO_WORKERS
from trainer.ranks.world import World
from trainer.strategies.async_servers.async_coordinator import Coordinator
from trainer.strategies.async_servers.async_state import HEADER

# Where this names a file, the main process writes its exit code into it: after a process died, mpirun may
# neither end nor know the code (jobs/local/surviving.py does).
END_FILE = "CINGULUM_END_FILE"
# Open MPI's, of 4 and 5: whether mpirun lets the other processes live when one dies.
_RECOVERY = ("OMPI_MCA_orte_enable_recovery", "PRTE_MCA_state_base_recoverable")
# How long others may take to hear that training has ended: one may compute, or still prepare.
_LEAVE_S = 60.0
_ABORT_S = 5.0
_LOOK_S = 0.05
# So many missing processes are named.
_NAMED = 8

# Runs training on the main process, and raises what went wrong.
Train = Callable[[World, Coordinator], None]


class MainWorld(World):
    """Server 0 as the main process: alone in a world of one rank."""

    def __init__(self, links: Links) -> None:
        super().__init__()
        self._name = links.name_of_server(0)

    @property
    def name(self) -> str:
        """Such as 'server 0 @ node03'."""
        return self._name


def coordinate(config: RunConfig, links: Links, silence_s: float, train: Train) -> int:
    """Do server 0's part, from start to end; returns the exit code, or ends the process."""
    others = [p for p in range(len(links.hosts)) if p != links.process]
    port = LivenessPort(links.hosts, links.hosts[links.process], lines_from=others, silence_s=silence_s)
    links.announce(dataclasses.asdict(port.address))  # no collective: one that is gone would not come
    post = links.mailbox(TO_SERVERS, says=TO_WORKERS)
    ahead = min(HEADER - 3, -(-config.data.prefetch // config.train.accumulation) + 1)
    coordinator = Coordinator(
        links, port, post, bound=getattr(config.train.strategy, "staleness", None), ahead=ahead
    )
    code = 0
    late: list[int] = []
    try:
        late = port.wait_for_all(MEET_S)
        if late:
            names = ", ".join(f"{links.name_of(process)} (process {process})" for process in late[:_NAMED])
            raise WorldError(
                f"{names}{' and others' if late[_NAMED:] else ''} did not connect to server 0 within "
                f"{MEET_S:.0f} s.",
                cure=meeting.CURE,
            )
        if all(os.environ.get(name, "0") in ("0", "false") for name in _RECOVERY):
            sys.stderr.write(
                "note: mpirun will end the run when a worker dies; the others go on with\n"
                "note: mpirun --mca orte_enable_recovery 1\n"
            )
        train(MainWorld(links), coordinator)
    except Agreed as agreed:
        code = _tell(agreed.error)
    except CingulumError as error:
        code = _tell(error)
    except Exception:
        sys.stderr.write(f"[{links.name_of_server(0)}] {traceback.format_exc()}")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    lost = bool(late or coordinator.dead) or coordinator.lost_server
    clean = _all_leave(port, others, code, lost=lost)
    with contextlib.suppress(OSError):
        if END_FILE in os.environ:
            atomic.write_text(Path(os.environ[END_FILE]), f"{code}\n")
    port.close()
    if clean:
        post.close()
        return code
    # MPI_Finalize would wait for the dead. Where mpirun runs on this host, this ends it.
    time.sleep(0.2)
    threading.Timer(_ABORT_S, os._exit, [code]).start()
    links.abort(code)
    os._exit(code)


def _tell(error: CingulumError) -> int:
    sys.stderr.write(f"{as_text(error)}\n")
    return error.exit_code


def _all_leave(port: LivenessPort, others: list[int], code: int, *, lost: bool) -> bool:
    """Tell all processes to end; returns whether all answered, so that MPI can be finalized.

    First they stop, then they are told how to leave: MPI_Finalize would wait for one who is gone.
    """
    port.say_all({"end": code})
    leaving: set[int] = set()
    deadline = time.monotonic() + _LEAVE_S
    while not lost and len(leaving) < len(others) and time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            process, said = port.heard.get(timeout=_LOOK_S)
            if said is not None and "leaving" in said:
                leaving.add(process)
            elif said is None:
                lost = True
    clean = not lost and len(leaving) == len(others)
    port.say_all({"leave": clean})
    return clean
