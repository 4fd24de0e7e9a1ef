"""Parse the output of squeue and sacct, requested in fixed formats. Pure functions.

No format asks for a job's name or its folder: users choose those, with any character in them. What is asked
for holds no `|`, so that a line can be cut at it; of sacct, only the last field may hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from jobs.schedulers.base import ACTIVE, ENDED, TaskState

# squeue cuts a field to its width; 2000 holds the names of some hundred hosts that follow no pattern.
QUEUE_FORMAT = (
    "ArrayJobID:24|,ArrayTaskID:2000|,State:32|,exit_code:24|,RestartCnt:16|,"
    "StartTime:32|,EndTime:32|,NodeList:2000|,Reason:400|,Comment:64|"
)
ACCOUNT_FIELDS = "JobID,State,ExitCode,Start,End,NodeList,Reason"

# States that other versions or plugins of Slurm know besides ours, by the nearest of ours.
_STATES = {
    "RESIZING": "RUNNING",
    "SIGNALING": "RUNNING",
    "STOPPED": "SUSPENDED",
    "STAGE_OUT": "COMPLETING",
    "EXPEDITING": "REQUEUED",
    "POWER_UP_NODE": "CONFIGURING",
    "REQUEUE_FED": "REQUEUED",
    "REQUEUE_HOLD": "REQUEUED",
    "SPECIAL_EXIT": "REQUEUED",
    "RESV_DEL_HOLD": "PENDING",
    "LAUNCH_FAILED": "FAILED",
    "RECONFIG_FAIL": "FAILED",
}
# In a federation: another cluster runs it, and this one can tell no more.
_ELSEWHERE = "REVOKED"
_BEGUN = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED")
_LAST_SIGNAL = 64
_NOTHING = ("", "None", "(null)", "N/A", "NONE", "Unknown", "None assigned", "(None)", "None assi")

# For each task its state, for each job by Slurm's id.
Jobs = dict[str, dict[int, TaskState]]


def comment_of(token: str) -> str:
    """Return the comment with which a job carries the token of its submission."""
    return f"cingulum:{token}"


def queued(text: str) -> Jobs:
    """Parse squeue's output, requested in QUEUE_FORMAT with times as seconds since 1970."""
    jobs: Jobs = {}
    for fields in _rows(text, 10):
        job, tasks, state, status, restarts, start, end, hosts, reason, _ = fields
        if not job.isdigit() or state == _ELSEWHERE:
            continue
        state = state_named(state)
        for task in task_numbers(tasks):
            jobs.setdefault(job, {})[task] = TaskState(
                task=task,
                state=state,
                exit_code=_exit_code(state, _of_wait_status(status)),
                reason=_said(reason),
                hosts=() if state not in (*_BEGUN, *ENDED) else host_names(_said(hosts)),
                restarts=int(restarts) if restarts.isdigit() else 0,
                started=_time(start) if state in (*_BEGUN, *ENDED) else None,
                ended=_time(end) if state in ENDED else None,
            )
    return jobs


def arrays(text: str) -> set[str]:
    """Return ids of the arrays in squeue's output in QUEUE_FORMAT, of which it may list some tasks only."""
    return {fields[0] for fields in _rows(text, 10) if fields[1] not in _NOTHING}


def accounted(text: str) -> Jobs:
    """Parse the output of `sacct --duplicates --allocations --parsable2`, requested with ACCOUNT_FIELDS.

    A job that was requeued has a record for each start; the newest one tells its state.
    """
    jobs: Jobs = {}
    for fields in _rows(text, 7):
        name, stated, status, start, end, hosts, reason = fields
        job, _, tasks = name.partition("_")
        if not job.isdigit() or stated == _ELSEWHERE:
            continue
        word, _, by = stated.partition(" by ")
        state = state_named(word)
        for task in task_numbers(tasks):
            before = jobs.setdefault(job, {}).get(task)
            record = TaskState(
                task=task,
                state=state,
                exit_code=_exit_code(state, _of_pair(status)),
                reason=f"by user {by}" if by else _said(reason) if state not in ("COMPLETED",) else "",
                hosts=host_names(_said(hosts)),
                restarts=0 if before is None else before.restarts + 1,
                started=_time(start),
                ended=_time(end) if state in ENDED else None,
            )
            jobs[job][task] = record
    return jobs


def with_comment(text: str, token: str) -> str | None:
    """Return the id of the job that carries this token, in squeue's output in QUEUE_FORMAT."""
    wanted = comment_of(token)
    return next((fields[0] for fields in _rows(text, 10) if fields[9] == wanted), None)


def submitted_with(text: str, token: str) -> str | None:
    """Return the id of the job that was submitted with this token, in sacct's JobID and SubmitLine."""
    wanted = re.escape(f"--comment={comment_of(token)}")
    found = re.search(rf"^(\d+)(?:_[^|\n]*)?\|sbatch --parsable {wanted} ", text, re.M)
    return found[1] if found else None


def state_named(given: str) -> str:
    """Return our state for Slurm's: "CANCELLED+" is cut, unknown states count as running."""
    word = given.strip().rstrip("+")
    return word if word in (*ACTIVE, *ENDED) else _STATES.get(word, "RUNNING")


def task_numbers(text: str) -> tuple[int, ...]:
    """Return the tasks of an array: "3", "3-7%2", "[0,2,5-9:2%1]"; (0,) where there is no array.

    >>> task_numbers("[0,2,5-9:2%1]")
    (0, 2, 5, 7, 9)
    """
    inner = text.strip().strip("[]").split("%")[0]
    if inner in _NOTHING:
        return (0,)
    numbers: list[int] = []
    for part in inner.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            numbers.extend(range(first, last + 1, int(match[3] or 1)))
    return tuple(numbers)


def host_names(text: str) -> tuple[str, ...]:
    """Return single names from Slurm's short form.

    >>> host_names("login,gpu[08-10,12]-ib")
    ('login', 'gpu08-ib', 'gpu09-ib', 'gpu10-ib', 'gpu12-ib')
    """
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*(?:\]|$))+", text):
        names.extend(_expanded(part))
    return tuple(names)


def _expanded(name: str) -> Iterator[str]:
    before, bracket, rest = name.partition("[")
    if not bracket:
        yield name
        return
    inner, _, after = rest.partition("]")
    for part in inner.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:  # cut to the field's width
            continue
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            for end in _expanded(after):
                yield f"{before}{number:0{len(match[1])}d}{end}"


def _rows(text: str, count: int) -> Iterable[list[str]]:
    """Return lines of exactly `count` fields; anything else was not printed for one of our jobs."""
    for line in text.splitlines():
        fields = [field.strip() for field in line.removesuffix("|").split("|")]
        if len(fields) == count:
            yield fields


def _of_wait_status(text: str) -> int | None:
    """Convert squeue's exit code, which is the status of wait(): 768 is exit code 3, 9 is signal 9; others
    print 3:0.
    """
    if ":" in text:
        return _of_pair(text)
    if not text.isdigit():
        return None
    status = int(text)
    return _code(status >> 8, status & 127)


def _of_pair(text: str) -> int | None:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    return _code(int(match[1]), int(match[2])) if match else None


def _code(code: int, signal: int) -> int | None:
    """Return the code as a shell reports it; None for what is not a signal: Slurm writes 125 where memory was
    exhausted.
    """
    if signal > _LAST_SIGNAL:
        return None
    return 128 + signal if signal else code


def _exit_code(state: str, code: int | None) -> int | None:
    """Return the exit code; None while it runs, and where Slurm ended it before the command had a code of its
    own.
    """
    if state not in ENDED or (state != "COMPLETED" and code == 0):
        return None
    return code


def _said(text: str) -> str:
    return "" if text in _NOTHING else text


def _time(text: str) -> float | None:
    return float(text) if text.isdigit() else None
