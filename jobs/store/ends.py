"""How tasks ended, in the job's folder: for launchers that forget, and for a store that is made again.

The script of a task and an attendant note the ends that they live to see. A task that was cancelled while it
waited, or that Slurm killed at once, leaves none: what the store knows of it is noted beside, in `ends.json`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

from jobs.job import Job
from jobs.schedulers.base import ENDED, TaskState
from jobs.store import submitter
from trainer import atomic

# Written from the store alone, by whoever has changed it last.
FILE = "ends.json"


def note(job: Job) -> None:
    """Write down in which way tasks of the user's own job have ended, as the store has it now.

    LOST is left out: it is a guess. That a folder is gone or cannot be written is no failure.
    """
    if job.user != submitter.user():
        return
    ended = [dataclasses.asdict(task) for task in job.tasks if task.state in ENDED and task.state != "LOST"]
    file = Path(job.folder) / FILE
    text = json.dumps({"tasks": ended}) + "\n"
    with contextlib.suppress(OSError):
        before = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None
        if before != text and (ended or before is not None):
            atomic.write_private(file, text)


def noted(job: Job, number: int) -> TaskState | None:
    """Return the end of a task from the files of the job's folder; see `noted_in`."""
    return noted_in(Path(job.folder), number)


def noted_in(folder: Path, number: int) -> TaskState | None:
    """Return the end of a task from the files of a job's folder; None: no file, or no end in it.

    An attendant writes `state.json`, of all tasks; the script of a task under Slurm, `state-TASK.json` where
    there are several. What the store knew goes before where it is of the same start: Slurm knows why.
    """
    own = folder / f"state-{number}.json"
    left = _read(own if own.is_file() else folder / "state.json", number)
    known = _read(folder / FILE, number)
    if left is None or known is None:
        return left or known
    return left if left.restarts > known.restarts else known


def _read(file: Path, number: int) -> TaskState | None:
    try:
        tasks: Any = json.loads(file.read_text(encoding="utf-8"))["tasks"]
        end = next((task for task in tasks if task["task"] == number and task["state"] in ENDED), None)
        if end is None:
            return None
        names = [field.name for field in dataclasses.fields(TaskState)]
        return TaskState(**{**{key: end[key] for key in names if key in end}, "hosts": tuple(end["hosts"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None  # half a file, or none: as good as no word
