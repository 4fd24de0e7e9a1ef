"""What processes tell each other at the start, before there are mailboxes: no collective, limited in time.

In a collective a process that died stops all others, and none of them can say which one it is. Here whoever
listens does so for each process by itself, and names those that said nothing.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

CURE = "Does it still run? Is there a firewall between its host and this one?"
_TAG = 1
_LOOK_S = 0.005
_END_S = 30


# Messages that may not have left yet: MPI reads them until then.
_leaving: list[Any] = []


def tell(comm: Any, processes: Iterable[int], value: Any) -> None:
    """Send a value to processes; returns at once.

    Args:
        comm: MPI's communicator of all processes.
        processes: their numbers in it.
        value: must survive JSON.
    """
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    _leaving.extend(comm.Isend(text, process, _TAG) for process in processes)


def hear(mpi: Any, comm: Any, processes: Iterable[int], within_s: float) -> dict[int, Any]:
    """Return what each process has told this one; one that is missing said nothing in time.

    Where one is missing, this process has 30 s to report it and end: MPI's own end waits for all processes.

    Args:
        mpi: the module mpi4py.MPI, started.
        comm: as for `tell`.
        processes: to listen to.
        within_s: seconds to wait for all of them.
    """
    awaited, status = set(processes), mpi.Status()
    values: dict[int, Any] = {}
    deadline = time.monotonic() + within_s
    while awaited:
        for process in sorted(awaited):
            message = comm.Improbe(process, _TAG, status)
            if message is not None:
                text = np.empty(status.Get_count(mpi.BYTE), np.uint8)
                message.Recv(text)
                values[process] = json.loads(text.tobytes())
        awaited -= values.keys()
        if awaited and time.monotonic() > deadline:
            signal.alarm(_END_S)
            break
        time.sleep(_LOOK_S)
    return values
