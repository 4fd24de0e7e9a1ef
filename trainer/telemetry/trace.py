"""A run's steps in the trace format of Chrome, for chrome://tracing or ui.perfetto.dev.

Format: "Trace Event Format" of the Chromium project; complete events (`ph` X), times in microseconds. A
process is a rank; its threads are what it did, what moved meanwhile, its waiting for batch norm, and that for
messages. Events of a thread must lie inside of each other or apart: what overlaps otherwise is on a further
thread of the same name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.atomic import write_text
from trainer.errors import RunError
from trainer.telemetry import json_lines
from trainer.telemetry.intervals import MOVES, Interval, StepIntervals

# Steps of a session that are kept, from its first: some 10 kB each and rank.
MOST_STEPS = 1000
# Of the lines. Those without a version are of the first, and hold events: [thread, name, start, seconds].
VERSION = 2

STEP, TRANSFERS, STATISTICS, MESSAGES = 0, 1, 2, 3
_THREADS = {STEP: "step", TRANSFERS: "transfers", STATISTICS: "batch norm", MESSAGES: "messages"}
# Of a microsecond, in which moments are told: so that rounding makes no events overlap.
_PARTS = 10
# Thread, name, start, seconds, what else is known.
Event = tuple[int, str, float, float, dict[str, Any]]


def rank_file(folder: Path, rank: int) -> Path:
    """Return the path of a rank's intervals, until they are joined."""
    return folder / "telemetry" / f"trace-{rank:05d}.jsonl"


def lines(recorded: Iterable[StepIntervals]) -> list[dict[str, Any]]:
    """Return a line for each step; intervals are [kind, start, end, peer, bytes, micro], wall clock."""
    return [{"version": VERSION, **vars(one)} for one in recorded]


def join(folder: Path, hosts: Sequence[str]) -> Path:
    """Write telemetry/trace.json from all ranks' events, the first of them at 0.

    Clocks of different hosts are as close to each other as those hosts keep them.

    Args:
        folder: of the run.
        hosts: of each rank.

    Raises:
        RunError: a rank's file is damaged.
        OSError: it cannot be written.
    """
    steps = [
        (rank, line["step"], _events(line, rank_file(folder, rank)))
        for rank in range(len(hosts))
        if rank_file(folder, rank).is_file()
        for line in json_lines.read(rank_file(folder, rank))
    ]
    path = folder / "telemetry" / "trace.json"
    write_text(path, text([f"rank {rank} @ {host}" for rank, host in enumerate(hosts)], steps))
    return path


def text(ranks: Sequence[str], steps: Sequence[tuple[int, int, Sequence[Event]]]) -> str:
    """Return the content of a trace file.

    Args:
        ranks: name of each.
        steps: rank, number of the step, and its events.
    """
    began = min((start for _, _, events in steps for _, _, start, _, _ in events), default=0.0)
    entries: list[dict[str, Any]] = []
    for rank, named in enumerate(ranks):
        entries.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": named}})
        own = [(step, event) for of_rank, step, events in steps if of_rank == rank for event in events]
        for thread, name in _THREADS.items():
            on_thread = [(step, event) for step, event in own if event[0] == thread]
            for lane, some in enumerate(_lanes(on_thread, began) or [[]]):
                tid = thread + len(_THREADS) * lane
                known = {"name": name if not lane else f"{name} {lane + 1}"}
                entries.append({"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": known})
                entries += [{"ph": "X", "pid": rank, "tid": tid, **event} for event in some]
    return json.dumps({"traceEvents": entries, "displayTimeUnit": "ms"})


def _lanes(events: Iterable[tuple[int, Event]], began: float) -> list[list[dict[str, Any]]]:
    """Divide the events of a thread so that any two of a part lie inside of each other or apart.

    Args:
        events: each with its step.
        began: moment that counts as 0.
    """

    def at(moment: float) -> int:
        return round((moment - began) * 1e6 * _PARTS)

    spans = [
        (at(start), at(start + seconds), name, details, step)
        for step, (_, name, start, seconds, details) in events
    ]
    lanes: list[list[dict[str, Any]]] = []
    # Of each lane, when the events end in which the next one might lie.
    open_until: list[list[int]] = []
    for begins, ends, name, details, step in sorted(spans, key=lambda span: (span[0], -span[1])):
        if ends < begins:
            continue
        lane = next((n for n, within in enumerate(open_until) if _fits(begins, ends, within)), len(lanes))
        if lane == len(lanes):
            lanes.append([])
            open_until.append([])
        open_until[lane].append(ends)
        times = {"ts": begins / _PARTS, "dur": (ends - begins) / _PARTS}
        lanes[lane].append({"name": name, **times, "args": {"step": step, **details}})
    return lanes


def _fits(begins: int, ends: int, open_until: list[int]) -> bool:
    """Whether an event lies inside of the innermost that is still open; forgets those that are over."""
    while open_until and open_until[-1] <= begins:
        open_until.pop()
    return not open_until or ends <= open_until[-1]


def _events(line: Mapping[str, Any], path: Path) -> list[Event]:
    """Return a step's events, and one for the whole step.

    Raises:
        RunError: the line is of no known version.
    """
    try:
        if "version" not in line:
            return [(*event, {}) for event in line["events"]]
        events: list[Event] = []
        numbers: dict[str, itertools.count[int]] = {}
        for told in line["intervals"]:
            interval = Interval(*told)
            number = next(numbers.setdefault(interval.kind, itertools.count()))
            events.append(
                (
                    _thread(interval),
                    _name(interval, number),
                    interval.start,
                    interval.end - interval.start,
                    _known(interval),
                )
            )
        # By another clock than they are, it might begin or end microseconds inside of them.
        own = [(start, start + seconds) for thread, _, start, seconds, _ in events if thread == STEP]
        whole = [(line["start"], line["start"] + line["seconds"]), *own]
        start, end = min(start for start, _ in whole), max(end for _, end in whole)
        events.append((STEP, f"step {line['step']}", start, end - start, {}))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path}: is damaged ({error}).") from None
    return events


def _thread(interval: Interval) -> int:
    if interval.kind == "statistics":
        return STATISTICS
    if interval.kind == "wait" and interval.peer is not None:
        return MESSAGES
    return TRANSFERS if interval.kind in MOVES else STEP


def _name(interval: Interval, number: int) -> str:
    if interval.peer is not None:
        return f"{interval.kind}, peer {interval.peer}"
    if interval.micro is not None:
        return f"{interval.kind} of micro-batch {interval.micro}"
    return f"{interval.kind} {number}" if interval.kind in MOVES else interval.kind


def _known(interval: Interval) -> dict[str, Any]:
    return {} if not interval.bytes else {"bytes": interval.bytes}
