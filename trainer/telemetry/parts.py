"""From the timestamps of a step to its parts: pure arithmetic, for many steps at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.telemetry.records import Step

_DIGITS = 7  # of a second, in what is kept


@dataclass(frozen=True)
class Layout:
    """What the numbers of `Call.marks` are: three moments, events of batch norm, then pairs of the buckets.

    Attributes:
        forward: for each collective event of the forward pass, whether something left (else it returned).
        backward: the same of the backward pass.
        buckets: number of buckets of gradients.
    """

    forward: tuple[bool, ...]
    backward: tuple[bool, ...]
    buckets: int


@dataclass(frozen=True)
class Call:
    """One call of the compiled step: a micro-batch.

    Attributes:
        layout: of the marks.
        marks: float64, seconds of the wall clock: start, end of the forward pass, end of the backward pass,
            events as in `layout`, then each bucket's leaving and return; a bucket's are older than the
            start where nothing was reduced.
        ended: when the call returned.
    """

    layout: Layout
    marks: np.ndarray
    ended: float


@dataclass(frozen=True)
class Timed:
    """A step: its calls, its length and its waiting for input in seconds, and whether it was traced in it."""

    step: int
    seconds: float
    input_wait: float
    first: bool
    calls: tuple[Call, ...]


def steps(timed: Sequence[Timed]) -> list[Step]:
    """The parts of each step; see `records.Step`."""
    found: list[Step] = []
    for layout, group in itertools.groupby(timed, key=lambda step: step.calls[0].layout):
        members = list(group)
        calls = [call for step in members for call in step.calls]
        parts = _parts(layout, np.stack([call.marks for call in calls]), np.array([c.ended for c in calls]))
        ends = np.cumsum([len(step.calls) for step in members])
        for step, end in zip(members, ends, strict=True):
            own = parts[:, end - len(step.calls) : end].sum(axis=1)
            found.append(_step(step, *(float(value) for value in own)))
    return found


def _step(
    timed: Timed, forward: float, backward: float, exposed: float, overlapped: float, update: float
) -> Step:
    rest = timed.seconds - timed.input_wait - forward - backward - exposed - update
    # Two clocks may differ by microseconds: the rest is not negative, and the parts add up.
    return Step(
        step=timed.step,
        seconds=round(timed.seconds + max(-rest, 0.0), _DIGITS),
        input_wait=round(timed.input_wait, _DIGITS),
        forward=round(forward, _DIGITS),
        backward=round(backward, _DIGITS),
        exposed=round(exposed, _DIGITS),
        overlapped=round(overlapped, _DIGITS),
        update=round(update, _DIGITS),
        other=round(max(rest, 0.0), _DIGITS),
        first=timed.first,
    )


def _parts(layout: Layout, marks: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Forward, backward, exposed, overlapped and update seconds `(5, calls)` of marks `(calls, n)`."""
    start, forward_end, backward_end = marks[:, 0], marks[:, 1], marks[:, 2]
    events = marks[:, 3 : 3 + len(layout.forward) + len(layout.backward)]
    in_forward = waited(events[:, : len(layout.forward)], layout.forward)
    in_backward = waited(events[:, len(layout.forward) :], layout.backward)
    pairs = marks[:, 3 + events.shape[1] :].reshape(len(marks), layout.buckets, 2)
    # Left from an earlier call where this one reduced nothing.
    pairs = np.where(pairs[..., :1] < start[:, None, None], backward_end[:, None, None], pairs)
    last = np.maximum(pairs[..., 1].max(axis=1, initial=0.0), backward_end)
    return np.maximum(
        [
            forward_end - start - in_forward,
            backward_end - forward_end - in_backward,
            last - backward_end + in_forward + in_backward,
            covered(np.minimum(pairs, backward_end[:, None, None])),
            ended - last,
        ],
        0.0,
    )


def waited(moments: np.ndarray, leaves: Sequence[bool]) -> np.ndarray:
    """Seconds `(calls,)` for which collectives were under way and nothing else went on.

    Where branches of a network run side by side, one computes while the other's collective is under way. What
    counts is the time from one that leaves to one that returns, with nothing leaving or returning in between.

    Args:
        moments: `(calls, events)`.
        leaves: whether the event is one that leaves, `(events,)`.
    """
    order = np.argsort(moments, axis=1, kind="stable")
    kinds = np.asarray(leaves, bool)[order]
    gaps = np.diff(np.take_along_axis(moments, order, axis=1), axis=1)
    return np.where(kinds[:, :-1] & ~kinds[:, 1:], gaps, 0.0).sum(axis=1)


def covered(pairs: np.ndarray) -> np.ndarray:
    """Seconds `(calls,)` that the intervals `(calls, intervals, 2)` cover together."""
    order = np.argsort(pairs[..., 0], axis=1)[..., None]
    left, right = np.moveaxis(np.take_along_axis(pairs, order, axis=1), -1, 0)
    reached = np.maximum.accumulate(right, axis=1)
    before = np.concatenate([np.full((len(pairs), 1), -np.inf), reached[:, :-1]], axis=1)[:, : left.shape[1]]
    return np.maximum(reached - np.maximum(left, before), 0.0).sum(axis=1)
