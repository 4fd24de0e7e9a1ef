"""From the intervals of a step to its parts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from trainer.telemetry.intervals import INPUT, MOVES, WAITS, StepIntervals, Transfer, spent, transfers
from trainer.telemetry.records import Step

# Of a second: the wall clock counts microseconds.
_DIGITS = 6
_COMMUNICATION = WAITS | MOVES


def steps(recorded: Iterable[StepIntervals]) -> list[Step]:
    """Return the parts of each step; see `records.Step`. Computing of another kind is `other`."""
    return [_step(one) for one in recorded]


def _step(step: StepIntervals) -> Step:
    seconds, overlapped = spent(step.intervals)
    input_wait, forward, backward, update = (
        round(seconds.get(kind, 0.0), _DIGITS) for kind in (INPUT, "forward", "backward", "update")
    )
    exposed = round(sum(seconds[kind] for kind in seconds if kind in _COMMUNICATION), _DIGITS)
    rest = round(step.seconds - input_wait - forward - backward - exposed - update, _DIGITS)
    return Step(
        step=step.step,
        # Two clocks may differ by microseconds: the rest is not negative, and the parts add up.
        seconds=round(step.seconds + max(-rest, 0.0), _DIGITS),
        input_wait=input_wait,
        forward=forward,
        backward=backward,
        exposed=exposed,
        overlapped=round(overlapped, _DIGITS),
        update=update,
        other=max(rest, 0.0),
        first=step.first,
        transfers=tuple(
            Transfer(kind, peer, size, round(took, _DIGITS))
            for kind, peer, size, took in transfers(step.intervals)
        ),
    )
