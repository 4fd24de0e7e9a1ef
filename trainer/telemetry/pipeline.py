"""Who worked on which micro-batch when, in one step of all ranks: for the report's chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainer.telemetry.intervals import WAITS, Interval, StepIntervals

VERSION = 1


class Segment(NamedTuple):
    """A rank works on a micro-batch, without a pause.

    Attributes:
        kind: `forward` or `backward`.
        micro: number of the micro-batch.
        start: seconds from the start of the step.
        end: the same.
    """

    kind: str
    micro: int
    start: float
    end: float


def file(folder: Path) -> Path:
    """Return the path of the chart's data in a run folder."""
    return folder / "telemetry" / "pipeline.json"


def segments(step: StepIntervals, began: float) -> list[Segment]:
    """Return what a rank worked on, its waiting taken out; empty where nothing is told of micro-batches.

    Args:
        step: of the rank.
        began: moment that counts as 0.
    """
    waits = sorted((interval.start, interval.end) for interval in step.intervals if interval.kind in WAITS)
    work: list[Segment] = []
    for interval in step.intervals:
        if interval.micro is None:
            continue
        start = interval.start
        for wait_start, wait_end in waits:
            if wait_end <= start or wait_start >= interval.end:
                continue
            if wait_start > start:
                work.append(Segment(interval.kind, interval.micro, start - began, wait_start - began))
            start = wait_end
        if start < interval.end:
            work.append(Segment(interval.kind, interval.micro, start - began, interval.end - began))
    return work


def outline(step: StepIntervals) -> dict[str, Any]:
    """Return what rank 0 needs of a step: no intervals, where none is of a micro-batch."""
    is_piped = any(one.micro is not None for one in step.intervals)
    return {**vars(step), "intervals": step.intervals if is_piped else ()}


def told(step: dict[str, Any]) -> StepIntervals:
    """Return a step of another rank from its `outline`."""
    return StepIntervals(**{**step, "intervals": tuple(Interval(*one) for one in step["intervals"])})


def tree(steps: Sequence[StepIntervals | None]) -> dict[str, Any] | None:
    """Return the content of the file; None where a rank has recorded another step, or none any micro-batch.

    Args:
        steps: of all ranks; None of one without any stage.
    """
    there = [one for one in steps if one is not None]
    if len({one.step for one in there}) != 1:
        return None
    if not any(one.intervals for one in there):
        return None
    began = min(one.start for one in there)
    return {
        "version": VERSION,
        "step": there[0].step,
        "seconds": max(one.start + one.seconds for one in there) - began,
        "ranks": [[] if one is None else [list(part) for part in segments(one, began)] for one in steps],
    }
