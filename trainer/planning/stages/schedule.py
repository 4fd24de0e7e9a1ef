"""Stages of an assignment, and the order in which their micro-batches are computed. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

from trainer.planning.stages.problem import SCHEDULES, Schedule


class Stage(NamedTuple):
    """Consecutive partitions, as many as possible, on one device: `start` up to, not including, `stop`."""

    device: int
    start: int
    stop: int


class Chunk(NamedTuple):
    """One pass of one micro-batch through one stage."""

    passing: Literal["forward", "backward"]
    micro: int
    stage: int


def stages(devices: Sequence[int]) -> list[Stage]:
    """Return the stages of an assignment, in order; a device may have several.

    Args:
        devices: of each partition.
    """
    stages, start = [], 0
    for device, run in itertools.groupby(devices):
        stop = start + len(list(run))
        stages.append(Stage(int(device), start, stop))
        start = stop
    return stages


def order(stage_count: int, micro_batches: int, schedule: Schedule) -> list[Chunk]:
    """Return all chunks of a step in one order; each device does its own ones in this order.

    It is topological: a forward pass comes after that of the stage before, a backward pass after that of the
    stage after and after its own forward pass. One order for all devices is why they cannot wait for each
    other for ever. Micro-batches ascend in each stage and pass.

    `gpipe` (Huang et al., arXiv 1811.06965): all forward passes, then all backward passes. `1f1b` (PipeDream,
    arXiv 1806.03377, with one update per step): a stage that has S - s micro-batches in flight does a
    backward pass, then a forward one, in turn. The order is that of a timeline in which every pass takes 1.

    Args:
        stage_count: S, at least 1.
        micro_batches: M, at least 1.
        schedule: which of them.

    Raises:
        ValueError: a count below 1, or an unknown schedule.
    """
    if stage_count < 1 or micro_batches < 1 or schedule not in SCHEDULES:
        raise ValueError(f"no order of {micro_batches} micro-batches in {stage_count} stages, {schedule!r}")
    timed = []
    for stage, micro in itertools.product(range(stage_count), range(micro_batches)):
        ahead = stage_count - stage
        if schedule == "gpipe":
            forward, backward = stage + micro, stage_count + micro_batches + ahead + micro
        else:
            forward = stage + micro if micro < ahead else stage + 2 * micro
            backward = stage_count - 1 + ahead + 2 * micro
        timed.append((forward, 1, micro, Chunk("forward", micro, stage)))
        timed.append((backward, 0, micro, Chunk("backward", micro, stage)))
    return [chunk for *_, chunk in sorted(timed)]
