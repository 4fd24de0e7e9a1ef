"""Parse what Grid Engine's commands print as XML. Pure functions."""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

from jobs.schedulers.base import TaskState
from jobs.schedulers.cluster_view import Host, Queued

# A task's state by the letters that qstat shows, the first that is among them.
_STATES = (
    ("d", "COMPLETING"),
    ("E", "FAILED"),
    ("s", "SUSPENDED"),
    ("S", "SUSPENDED"),
    ("T", "SUSPENDED"),
    ("r", "RUNNING"),
    ("t", "RUNNING"),
    ("R", "REQUEUED"),
    ("q", "PENDING"),
)
_MOST_TASKS = 100_000


def tasks(text: str) -> dict[str, list[TaskState]]:
    """Return the tasks of each job that `qstat -xml` lists, by its number; those of arrays from 0."""
    jobs: dict[str, list[TaskState]] = {}
    for one in _jobs(text):
        letters, queue = one.findtext("state", ""), one.findtext("queue_name") or ""
        state = state_named(letters)
        begun = state in ("RUNNING", "COMPLETING", "SUSPENDED")
        jobs.setdefault(one.findtext("JB_job_number", ""), []).extend(
            TaskState(
                number,
                state,
                exit_code=1 if state == "FAILED" else None,
                reason=_reason(letters),
                hosts=(queue.partition("@")[2],) if "@" in queue else (),
                restarts=int("R" in letters),
                started=seconds(one.findtext("JAT_start_time")) if begun else None,
            )
            for number in numbers(one.findtext("tasks") or "")
        )
    return jobs


def state_named(letters: str) -> str:
    """Return the state that qstat's letters mean, such as `hqw` and `Rr`."""
    return next((state for letter, state in _STATES if letter in letters), "PENDING")


def numbers(text: str) -> Iterator[int]:
    """Yield the tasks, counted from 0, that qstat writes as `2`, `4-9:1` or `3,5`; 0 without an array."""
    for part in text.split(",") if text else ["1"]:
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip())
        if match is None:
            continue
        first, last = int(match[1]), int(match[2] or match[1])
        yield from range(first - 1, min(last, first + _MOST_TASKS), int(match[3] or 1))


def with_context(text: str, token: str) -> str | None:
    """Return the number of the job in `qstat -xml -j '*'` whose context holds this token."""
    for one in ElementTree.fromstring(text).iter("element"):
        held = (each.findtext("VA_value") for each in one.iter("context_list"))
        if token in held:
            return one.findtext("JB_job_number")
    return None


def hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts of `qstat -f -xml`; their slots are those of all of their queues."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    queues: dict[str, set[str]] = {}
    for one in ElementTree.fromstring(text).iter("Queue-List"):
        queue, _, host = one.findtext("name", "").partition("@")
        slots = int(one.findtext("slots_total") or 0), int(one.findtext("slots_used") or 0)
        found.setdefault(host, []).append((*slots, one.findtext("state") or ""))
        queues.setdefault(host, set()).add(queue)
    return tuple(
        Host(
            name=host,
            state=next((state for _, _, state in rows if state), "free"),
            usable=any(not state for _, _, state in rows),
            cpus=max(total for total, _, _ in rows),
            cpus_used=sum(used for _, used, _ in rows),
            partitions=tuple(sorted(queues[host])),
        )
        for host, rows in found.items()
    )


def queue(text: str) -> tuple[Queued, ...]:
    """Return what runs and waits by `qstat -xml -u '*'`."""
    return tuple(
        Queued(
            id="_".join(filter(None, (one.findtext("JB_job_number"), one.findtext("tasks")))),
            user=one.findtext("JB_owner", ""),
            state=state_named(one.findtext("state", "")),
            reason=_reason(one.findtext("state", "")),
            partition=(one.findtext("queue_name") or "").partition("@")[0],
            cpus=int(one.findtext("slots") or 0),
            hosts=(one.findtext("queue_name") or "").partition("@")[2],
            submitted=seconds(one.findtext("JB_submission_time")),
            started=seconds(one.findtext("JAT_start_time")),
        )
        for one in _jobs(text)
    )


def seconds(text: str | None) -> float | None:
    """Return a time of Grid Engine, in the zone of this host, as seconds since 1970."""
    try:
        return time.mktime(time.strptime(text or "", "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def _jobs(text: str) -> Iterator[ElementTree.Element]:
    return ElementTree.fromstring(text).iter("job_list")


def _reason(letters: str) -> str:
    if "E" in letters:
        return "Grid Engine could not start it: see qstat -j"
    return "held" if "h" in letters else ""
