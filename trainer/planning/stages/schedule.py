"""The order in which stages work on micro-batches: GPipe's and 1F1B's. Pure.

All devices follow one total order of chunks, each doing its own: what a chunk needs comes before it in this
order, so that devices cannot wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Passing = Literal["forward", "backward"]
Schedule = Literal["gpipe", "1f1b"]


class Chunk(NamedTuple):
    """A stage's pass over one micro-batch."""

    passing: Passing
    micro: int
    stage: int


def stages(devices: Sequence[int]) -> list[tuple[int, int]]:
    """Return the runs `(start, stop)` of consecutive partitions on one device."""
    cuts = [i for i in range(1, len(devices)) if devices[i] != devices[i - 1]]
    return list(zip([0, *cuts], [*cuts, len(devices)], strict=True))


def order(stage_count: int, micro_batches: int, schedule: Schedule) -> list[Chunk]:
    """Return all chunks in an order in which each comes after what it needs.

    GPipe (Huang et al., arXiv 1811.06965): all forward passes, then all backward passes. 1F1B (Narayanan et
    al., PipeDream-Flush, arXiv 2006.09503): as soon as a stage can go backwards it takes turns, so that stage
    s of S keeps at most S - s micro-batches. The order is that of a timeline in which every pass takes 1.
    """
    count = stage_count
    chunks = [
        (_moment(passing, micro, stage, count, micro_batches, schedule), Chunk(passing, micro, stage))
        for passing in ("forward", "backward")
        for micro in range(micro_batches)
        for stage in range(count)
    ]
    return [chunk for _, chunk in sorted(chunks, key=lambda one: (one[0], one[1]))]


def _moment(passing: str, micro: int, stage: int, count: int, micro_batches: int, schedule: Schedule) -> int:
    if schedule == "gpipe":
        fill = micro_batches + count
        return stage + micro if passing == "forward" else fill + count - 1 - stage + micro
    if passing == "backward":
        return 2 * count - 1 - stage + 2 * micro
    return stage + micro if micro < count - stage else 2 * micro + stage
