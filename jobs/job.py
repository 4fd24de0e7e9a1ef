"""A job as stored: values, labels, and which state changes are accepted."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.schedulers import registry
from jobs.schedulers.base import ACTIVE, ENDED, TaskState
from jobs.spec import JobSpec
from trainer.errors import JobError

# Of an array, the first state of this list that one of its tasks is in is the state of the job.
_ORDER = (
    "RUNNING",
    "COMPLETING",
    "CONFIGURING",
    "SUSPENDED",
    "REQUEUED",
    "PENDING",
    "SUBMITTING",
    "FAILED",
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "BOOT_FAIL",
    "LOST",
    "TIMEOUT",
    "DEADLINE",
    "PREEMPTED",
    "CANCELLED",
    "COMPLETED",
)


@dataclass(frozen=True)
class Job:
    """One submission and its last known state.

    Attributes:
        number: of its row, never used again.
        token: 16 hex digits, known to the system that runs the job, too.
        launcher: its name; see jobs/schedulers/registry.py.
        place: within which `external` is unique: a Slurm cluster, a host; "" where the launcher does not say.
        site: name of the site profile.
        external: the launcher's own name of the job; None: the launcher has not answered yet.
        spec: what to run.
        folder: absolute path of the job's private folder.
        user: who submitted it.
        submitter: the process that did (see `jobs.store.submitter`).
        submitted: seconds since 1970.
        changed: when what is known of it last changed, seconds since 1970.
        tasks: the state of each, by number.
        revision: grows with every change of the row; see `Store.record`.
    """

    number: int
    token: str
    launcher: str
    place: str
    site: str
    external: str | None
    spec: JobSpec
    folder: str
    user: str
    submitter: str
    submitted: float
    changed: float
    tasks: tuple[TaskState, ...]
    revision: int

    @property
    def label(self) -> str:
        """What users see and type."""
        return label(self.launcher, self.number, self.external)

    @property
    def key(self) -> str:
        """An id that names it, and no other, for ever: Slurm may count from the beginning again."""
        return label(self.launcher, self.number, None)

    @property
    def state(self) -> str:
        """Of the job as a whole: what its tasks do now, else the worst way in which one of them ended."""
        return overall(self.tasks)

    @property
    def active(self) -> bool:
        """Whether a task waits or runs."""
        return self.state in ACTIVE

    @property
    def exit_code(self) -> int | None:
        """Of the first task that failed, else 0; None while a task waits or runs, or where none is known."""
        if self.active:
            return None
        codes = [task.exit_code for task in self.tasks if task.exit_code is not None]
        return next((code for code in codes if code), 0 if len(codes) == len(self.tasks) else None)

    @property
    def reason(self) -> str:
        """Why it waits or how it failed: the words of the first task in the job's own state."""
        return next((task.reason for task in self.tasks if task.state == self.state and task.reason), "")


@dataclass(frozen=True)
class StateChange:
    """One change of the state of one task.

    Attributes:
        job: label of the job now.
        task: number of the task; 0 where there is no array.
        time: when it was written down, seconds since 1970.
        state: what it changed to.
        exit_code: of the command, where it had ended.
        reason: in words.
        restarts: how often the task had been started again.
    """

    job: str
    task: int
    time: float
    state: str
    exit_code: int | None
    reason: str
    restarts: int


@dataclass(frozen=True)
class Action:
    """What a user did with a job.

    Attributes:
        task: number of the task that was meant; None: the whole job.
        time: when it was asked for, seconds since 1970.
        action: "submit", "cancel", "requeue", "hold", "release" or "nice N".
        who: asked for it, and by what way.
    """

    task: int | None
    time: float
    action: str
    who: str


def label(launcher: str, number: int, external: str | None) -> str:
    """Return `4711` for a scheduler, `mpirun-7` for others, `new-7` before the launcher has answered."""
    if external is None:
        return f"new-{number}"
    return external if registry.is_scheduler(launcher) else f"{launcher}-{number}"


def split_label(text: str) -> tuple[str, int | None]:
    """Return the label of a job and the number of the task in it: `4711_3` is task 3 of 4711.

    Raises:
        JobError: not a label.
    """
    match = re.fullmatch(r"([0-9]{1,18}|[a-z]{1,20}-[0-9]{1,18})(?:_([0-9]{1,9}))?", text.strip(), re.ASCII)
    if match is None:
        raise JobError(
            f"{text!r} is not the id of a job.",
            cure="An id is 4711, 4711_3 or mpirun-7; `cingulum jobs` lists them.",
        )
    return match[1], None if match[2] is None else int(match[2])


def overall(tasks: Sequence[TaskState]) -> str:
    """Return the state of a job from those of its tasks."""
    return min((task.state for task in tasks), key=_ORDER.index)


def believed(before: TaskState, now: TaskState) -> TaskState:
    """Return the state of a task after `now` was reported: `before` itself where the report is not accepted.

    A task that has ended stays ended, whatever a late answer says, unless it was started again: its count of
    restarts grew, or it started after it had ended. LOST is our own guess, which any answer corrects.

    Raises:
        ValueError: a state that has no name here.
    """
    if now.state not in ACTIVE and now.state not in ENDED:
        raise ValueError(f"{now.state!r} is not the state of a task")
    if before.state in ENDED and before.state != "LOST" and not _started_again(before, now):
        return _completed(before, now) if now.state == before.state else before
    return dataclasses.replace(now, restarts=max(before.restarts, now.restarts))


def is_news(before: TaskState, now: TaskState) -> bool:
    """Return whether the difference belongs into the history: not, for example, another
    reason for waiting.
    """
    if (before.state, before.exit_code, before.restarts) != (now.state, now.exit_code, now.restarts):
        return True
    return now.state in ENDED and before.reason != now.reason


def _started_again(before: TaskState, now: TaskState) -> bool:
    if now.restarts > before.restarts:
        return True
    return None not in (before.ended, now.started) and (now.started or 0) > (before.ended or 0)


def _completed(before: TaskState, now: TaskState) -> TaskState:
    """Return the same end, completed by a later answer."""
    return dataclasses.replace(
        before,
        exit_code=now.exit_code if before.exit_code is None else before.exit_code,
        reason=before.reason or now.reason,
        hosts=before.hosts or now.hosts,
        started=now.started if before.started is None else before.started,
        ended=now.ended if before.ended is None else before.ended,
    )
