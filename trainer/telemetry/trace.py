"""A run's steps in the trace format of Chrome, for chrome://tracing or ui.perfetto.dev.

Format: "Trace Event Format" of the Chromium project; complete events (`ph` X), times in microseconds. A
process is a rank; its threads are the step's parts, its buckets of gradients, and its waiting for batch norm.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trainer.atomic import write_text
from trainer.telemetry import json_lines
from trainer.telemetry.parts import Call, Timed

# Steps of a session that are kept, from its first: some 10 kB each and rank.
MOST_STEPS = 1000

_STEP, _GRADIENTS, _STATISTICS = 0, 1, 2
_THREADS = {_STEP: "step", _GRADIENTS: "gradients", _STATISTICS: "batch norm"}


def rank_file(folder: Path, rank: int) -> Path:
    """Where a rank keeps its events until they are joined."""
    return folder / "telemetry" / f"trace-{rank:05d}.jsonl"


def lines(timed: Iterable[Timed]) -> list[dict[str, Any]]:
    """One line for each step: {"step", "events"}; an event is [thread, name, start, seconds], wall clock."""
    return [{"step": step.step, "events": _events(step)} for step in timed]


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
        (rank, line)
        for rank in range(len(hosts))
        if rank_file(folder, rank).is_file()
        for line in json_lines.read(rank_file(folder, rank))
    ]
    began = min((start for _, line in steps for _, _, start, _ in line["events"]), default=0.0)
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
            "args": {"step": line["step"]},
        }
        for rank, line in steps
        for thread, name, start, seconds in line["events"]
    ]
    path = folder / "telemetry" / "trace.json"
    write_text(path, json.dumps({"traceEvents": told, "displayTimeUnit": "ms"}))
    return path


def _events(step: Timed) -> list[tuple[int, str, float, float]]:
    began = step.calls[-1].ended - step.seconds
    found = [(_STEP, f"step {step.step}", began, step.seconds)]
    if step.input_wait:
        found.append((_STEP, "input wait", began, step.input_wait))
    for call in step.calls:
        found += _of_call(call)
    return [
        (thread, name, round(start, 6), round(max(length, 0.0), 6)) for thread, name, start, length in found
    ]


def _of_call(call: Call) -> list[tuple[int, str, float, float]]:
    start, forward_end, backward_end, *rest = call.marks.tolist()
    kinds = (*call.layout.forward, *call.layout.backward)
    events, pairs = rest[: len(kinds)], rest[len(kinds) :]
    found = [
        (_STEP, "forward", start, forward_end - start),
        (_STEP, "backward", forward_end, backward_end - forward_end),
    ]
    last = backward_end
    for number, (left, back) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
        if left >= start:  # else it was not reduced in this call
            found.append((_GRADIENTS, f"bucket {number}", left, back - left))
            last = max(last, back)
    if last > backward_end:
        found.append((_STEP, "exposed communication", backward_end, last - backward_end))
    found.append((_STEP, "update", last, call.ended - last))
    in_order = sorted(zip(events, kinds, strict=True))
    for (moment, leaves), (following, leaves_too) in itertools.pairwise(in_order):
        if leaves and not leaves_too:
            found.append((_STATISTICS, "statistics", moment, following - moment))
    return found
