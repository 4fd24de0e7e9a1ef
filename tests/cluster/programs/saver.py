"""Stands for a training where only signals and exit codes matter: starts at once, needs no MPI.

    python saver.py FOLDER [late]

The first start waits until it is asked to save (SIGUSR2, SIGTERM), and ends with exit code 75. A start that
finds what was saved in FOLDER ends with 0. Rank 0 notes in FOLDER/events what happens, a word a line. late:
the other ranks take seconds to end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("SLURM_PROCID", "0")
ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
is_first = rank == "0"
told = []


def note(word: str) -> None:
    if is_first:
        with (folder / "events").open("a") as file:
            file.write(f"{word}\n")


for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda number, frame: told.append(signal.Signals(number).name))
(folder / f"listens-{rank}").touch()
while is_first and not told and len(list(folder.glob("listens-*"))) < ranks:
    time.sleep(0.05)  # a signal would end a rank that does not listen yet
note("started")
if (folder / "saved").exists():
    note("done")
    sys.exit(0)
while not told:
    time.sleep(0.05)
late = folder / "late"
if is_first:
    time.sleep(1)  # a training ends its step and writes its checkpoint
    (folder / "saved").touch()
    note(f"saved-on-{told[0]}")
    while sys.argv[2:] == ["late"] and not late.exists():
        time.sleep(0.05)
else:
    while not (folder / "saved").exists() and len(told) < 50:
        time.sleep(0.05)
    if sys.argv[2:] == ["late"]:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as after a training
        late.touch()
        time.sleep(3)
sys.exit(75)
