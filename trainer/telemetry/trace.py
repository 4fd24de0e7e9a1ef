"""A run's steps in the trace format of Chrome, for chrome://tracing or ui.perfetto.dev.

Format: "Trace Event Format" of the Chromium project; complete events (`ph` X), times in microseconds. A
process is a rank; its threads are what it did, what moved meanwhile, and its waiting for batch norm.
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

_STEP, _MOVES, _STATISTICS = 0, 1, 2
_THREADS = {_STEP: "step", _MOVES: "transfers", _STATISTICS: "batch norm"}
# Thread, name, start, seconds, what else is known.
_Event = tuple[int, str, float, float, dict[str, Any]]


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
    began = min((start for _, _, events in steps for _, _, start, _, _ in events), default=0.0)
    told: list[dict[str, Any]] = []
    for rank, host in enumerate(hosts):
        told.append(
            {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank} @ {host}"}}
        )
        told += [
            {"ph": "M", "pid": rank, "tid": thread, "name": "thread_name", "args": {"name": name}}
            for thread, name in _THREADS.items()
        ]
    told += [
        {
            "ph": "X",
            "pid": rank,
            "tid": thread,
            "name": name,
            "ts": round((start - began) * 1e6, 1),
            "dur": round(seconds * 1e6, 1),
            "args": {"step": step, **known},
        }
        for rank, step, events in steps
        for thread, name, start, seconds, known in events
    ]
    path = folder / "telemetry" / "trace.json"
    write_text(path, json.dumps({"traceEvents": told, "displayTimeUnit": "ms"}))
    return path


def _events(line: Mapping[str, Any], path: Path) -> list[_Event]:
    """A step's events, and one for the whole.

    Raises:
        RunError: the line is of no known version.
    """
    try:
        if "version" not in line:
            return [(*event, {}) for event in line["events"]]
        found: list[_Event] = [(_STEP, f"step {line['step']}", line["start"], line["seconds"], {})]
        numbers: dict[str, itertools.count[int]] = {}
        for told in line["intervals"]:
            one = Interval(*told)
            number = next(numbers.setdefault(one.kind, itertools.count()))
            found.append((_thread(one), _name(one, number), one.start, one.end - one.start, _known(one)))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path}: is damaged ({error}).") from None
    return found


def _thread(one: Interval) -> int:
    if one.kind == "statistics":
        return _STATISTICS
    return _MOVES if one.kind in MOVES else _STEP


def _name(one: Interval, number: int) -> str:
    if one.peer is not None:
        return f"{one.kind}, peer {one.peer}"
    if one.micro is not None:
        return f"{one.kind} of micro-batch {one.micro}"
    return f"{one.kind} {number}" if one.kind in MOVES else one.kind


def _known(one: Interval) -> dict[str, Any]:
    return {} if not one.bytes else {"bytes": one.bytes}
