"""A rank that an attendant's mpirun starts: `python attended.py FOLDER [what]`, without TensorFlow.

It notes its process in FOLDER and waits: SIGUSR2 makes it end with 75. `what`: `once` to end with 0 after
a restart; `deaf` to take no notice of any signal that can be ignored; `CODE` to end with it at once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from mpi4py import MPI

folder, what = Path(sys.argv[1]), [*sys.argv[2:], "wait"][0]
rank = MPI.COMM_WORLD.rank
restarts = int(os.environ["CINGULUM_RESTARTS"])


def save(number: int, frame: object) -> None:
    MPI.Finalize()
    os._exit(75)


signal.signal(signal.SIGUSR2, signal.SIG_IGN if what == "deaf" else save)
if what == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if what.isdigit():
    MPI.Finalize()
    os._exit(int(what))
if what == "once" and restarts:
    sys.exit(0)
MPI.COMM_WORLD.Barrier()
path = folder / f"rank-{rank}-start-{restarts}"
path.with_suffix(".partial").write_text(f"{os.getpid()} {MPI.COMM_WORLD.size}")
path.with_suffix(".partial").rename(path)
while True:
    time.sleep(0.05)
