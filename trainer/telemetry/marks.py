"""From the timestamps that a compiled training step returns to intervals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trainer.telemetry.intervals import Interval


@dataclass(frozen=True)
class MarkLayout:
    """What the numbers of `Call.marks` are: three moments, ends of chunks, events, pairs of buckets.

    Attributes:
        forward: for each collective event of the forward pass, whether something left (else it returned).
        backward: the same of the backward pass.
        buckets: bytes of each bucket of gradients on its way.
        kind: of the intervals of buckets.
        chunks: `forward` or `backward`, and the micro-batch, of each chunk in turn; empty where there is one
            micro-batch.
    """

    forward: tuple[bool, ...] = ()
    backward: tuple[bool, ...] = ()
    buckets: tuple[int, ...] = ()
    kind: str = "reduce"
    chunks: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Call:
    """One call of the compiled step: a micro-batch.

    Attributes:
        layout: of the marks.
        marks: float64, seconds of the wall clock: start, end of the forward pass, end of the backward pass,
            ends of chunks and events as in `layout`, then each bucket's leaving and return; a bucket's are
            older than the start where nothing was reduced. Buckets are missing until the first was reduced.
        ended: when the call returned.
        arrived: when the first message of others was there; where there is none, when the step began.
    """

    layout: MarkLayout
    marks: np.ndarray
    ended: float
    arrived: float = 0.0


def intervals(call: Call) -> Iterator[Interval]:
    """Return what the rank did in one call.

    `wait` is from the end of the backward pass until the last bucket is back. Where branches of a network run
    side by side, one computes while the other's collective is under way: `statistics` are from one that
    leaves to one that returns, with nothing leaving or returning in between.
    """
    layout = call.layout
    start, forward_end, backward_end, *rest = call.marks.tolist()
    chunks, rest = _ends(rest[: len(layout.chunks)], backward_end), rest[len(layout.chunks) :]
    computed = chunks[0] if chunks else forward_end
    if start > computed:
        # A rank that reads no input computes nothing before its first message, and nothing there waits for
        # the timestamp of the start, which TensorFlow then takes at its leisure.
        start = min(call.arrived, computed)
    if chunks:
        begins = [start, *chunks[:-1]]
        for (kind, micro), begin, end in zip(layout.chunks, begins, chunks, strict=True):
            yield Interval(kind, begin, end, micro=micro)
        yield Interval("backward", chunks[-1], backward_end)
    else:
        yield Interval("forward", start, forward_end)
        yield Interval("backward", forward_end, backward_end)
    there = len(layout.forward)
    events = there + len(layout.backward)
    for moments, kinds in ((rest[:there], layout.forward), (rest[there:events], layout.backward)):
        for (left, leaves), (back, again) in itertools.pairwise(sorted(zip(moments, kinds, strict=True))):
            if leaves and not again:
                yield Interval("statistics", left, back)
    last = backward_end
    pairs = rest[events:]
    for left, back, size in zip(pairs[::2], pairs[1::2], layout.buckets, strict=False):
        if left >= start:  # else it is left from an earlier call: this one reduced nothing
            yield Interval(layout.kind, left, back, None, size)
            last = max(last, back)
    if last > backward_end:
        yield Interval("wait", backward_end, last)
    yield Interval("update", last, call.ended)


def _ends(stamps: list[float], last: float) -> list[float]:
    """Return when passes that follow each other ended, at the latest.

    A timestamp may be taken later than its pass ends, even after the end of the next one; a pass ends before
    the next one does.
    """
    ends: list[float] = []
    for stamp in reversed(stamps):
        last = min(last, stamp)
        ends.insert(0, last)
    return ends
