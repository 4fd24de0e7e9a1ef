"""What a plan of stages is made from: partitions of a network, devices, links. Pure."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Schedule = Literal["gpipe", "1f1b"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
Floats = NDArray[np.float64]


# eq: arrays have no single truth.
@dataclass(frozen=True, eq=False)
class StageProblem:
    """P partitions of a network in topological order, and D devices that may compute them.

    Attributes:
        forward_s: (P, D), seconds of the forward pass of one micro-batch of a partition on a device.
        backward_s: (P, D), of its backward pass.
        update_s: (P, D), of the optimizer's update, once per step.
        state_bytes: (P,), parameters and the optimizer's slots.
        kept_bytes: (P,), activations kept for each micro-batch between its two passes.
        moved_bytes: (P, P), what partition q (column) reads of an earlier partition p (row) per micro-batch;
            gradients move the same bytes back. 0 where it reads nothing.
        latency_s: (D, D), of a message from a device (row) to another.
        bytes_per_second: (D, D), above 0. The diagonals of both are not looked at.
        memory_bytes: (D,), limits; `inf` for none.
        micro_batches: M, per step.
        schedule: order of the micro-batches.
        reduced_s: (P, D), seconds to reduce a partition's gradients over replicas, once per step.
        again_s: (2, P, D), seconds to compute a partition again before its backward pass: where the next one
            is in the same stage, and, no more, where it ends a stage. A stage then keeps, between its two
            passes over a micro-batch, what it reads of others, if that is less; it does not compute again
            what its device has just computed. None: stages keep everything.

    Raises:
        ValueError: which of them is wrong.
    """

    forward_s: Floats
    backward_s: Floats
    update_s: Floats
    state_bytes: Floats
    kept_bytes: Floats
    moved_bytes: Floats
    latency_s: Floats
    bytes_per_second: Floats
    memory_bytes: Floats
    micro_batches: int
    schedule: Schedule
    reduced_s: Floats
    again_s: Floats | None = None

    def __post_init__(self) -> None:
        forward = np.asarray(self.forward_s)
        if forward.ndim != 2 or not forward.size:
            raise ValueError(f"forward_s must be (partitions, devices), not {forward.shape}")
        p, d = forward.shape
        for name, shape in (
            ("forward_s", (p, d)), ("backward_s", (p, d)), ("update_s", (p, d)), ("reduced_s", (p, d)),
            ("state_bytes", (p,)), ("kept_bytes", (p,)), ("moved_bytes", (p, p)),
        ):  # fmt: skip
            array = self._keep(name, getattr(self, name), shape)
            if not (np.isfinite(array).all() and (array >= 0).all()):
                raise ValueError(f"{name} must be finite and not negative")
        if self.again_s is not None:
            inside, last = self._keep("again_s", self.again_s, (2, p, d))
            if not (np.isfinite(inside).all() and (last >= 0).all() and (inside >= last).all()):
                raise ValueError("again_s must be finite, not negative, and no more at the end of a stage")
        if np.tril(self.moved_bytes).any():
            raise ValueError("moved_bytes must be 0 but from a partition to a later one")
        apart = ~np.eye(d, dtype=bool)
        latency = self._keep("latency_s", self.latency_s, (d, d))[apart]
        if not (np.isfinite(latency).all() and (latency >= 0).all()):
            raise ValueError("latency_s must be finite and not negative between devices")
        if not (self._keep("bytes_per_second", self.bytes_per_second, (d, d))[apart] > 0).all():
            raise ValueError("bytes_per_second must be above 0 between devices")
        if not (self._keep("memory_bytes", self.memory_bytes, (d,)) >= 0).all():
            raise ValueError("memory_bytes must not be negative; inf for no limit")
        if self.micro_batches < 1:
            raise ValueError(f"micro_batches must be at least 1, not {self.micro_batches}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}")

    def _keep(self, name: str, values: ArrayLike, shape: tuple[int, ...]) -> Floats:
        array = np.array(values, np.float64)
        if array.shape != shape:
            raise ValueError(f"{name} must have the shape {shape}, not {array.shape}")
        array.setflags(write=False)
        object.__setattr__(self, name, array)
        return array

    @property
    def partitions(self) -> int:
        """P."""
        return len(self.forward_s)

    @property
    def devices(self) -> int:
        """D."""
        return self.forward_s.shape[1]

    @property
    def final_s(self) -> Floats:
        """(P, D), what is done once per step: reducing gradients, and the update."""
        return self.reduced_s + self.update_s

    @functools.cached_property
    def recomputed(self) -> Recomputed | None:
        """What stages compute again; None where they keep everything."""
        if self.again_s is None:
            return None
        return recomputed(self.kept_bytes, self.moved_bytes, self.again_s)

    @property
    def least_backward_s(self) -> Floats:
        """(P, D), of a backward pass and what is computed again for it whatever the assignment.

        Under `1f1b` that is nothing: a partition may be in the last stage, whose passes follow each other.
        """
        found = self.recomputed
        if found is None or self.schedule == "1f1b" or self.micro_batches == 1:
            return self.backward_s
        return self.backward_s + found.least_s

    @property
    def passes_s(self) -> Floats:
        """(P, D), all passes of a partition in a step, at least."""
        return self.micro_batches * (self.forward_s + self.least_backward_s)

    @property
    def work_s(self) -> Floats:
        """(P, D), all that a device does for a partition in a step, at least."""
        return self.passes_s + self.final_s

    def message_s(self, moved: float | Floats, source: int | NDArray, target: int | NDArray) -> Floats:
        """Return the seconds that a message of `moved` bytes occupies its link."""
        return np.asarray(self.latency_s[source, target] + moved / self.bytes_per_second[source, target])


# Which stages compute their activations again before a backward pass, and what they keep. Pure.


class Recomputed(NamedTuple):
    """What follows for each stage there can be: from a partition (row) up to another, included (column).

    Attributes:
        kept_bytes: (P, P), kept of a micro-batch between its two passes.
        seconds: (P, P, D), to compute the stage again; 0 where it keeps everything.
        least_s: (P, D), to compute a partition again, whichever stage it is in.
    """

    kept_bytes: Floats
    seconds: Floats
    least_s: Floats


def recomputed(kept_bytes: Floats, moved_bytes: Floats, again_s: Floats) -> Recomputed:
    """Return what each stage keeps: what it reads of others, or everything where that is no more.

    Args:
        kept_bytes: (P,), what each partition keeps where everything is kept.
        moved_bytes: (P, P), see `StageProblem`.
        again_s: (2, P, D), see `StageProblem`.
    """
    count = len(kept_bytes)
    read, whole = np.zeros((count, count)), np.zeros((count, count))
    inside, last = again_s
    seconds = np.zeros((count, *last.shape))
    for start in range(count):
        # A tensor counts once, with the most of it that one partition reads.
        read[start, start:] = np.maximum.accumulate(moved_bytes[:start, start:], axis=1).sum(axis=0)
        whole[start, start:] = np.cumsum(kept_bytes[start:])
        seconds[start, start:] = np.cumsum(inside[start:], axis=0) - inside[start:] + last[start:]
    is_less = read < whole
    sure = np.array([is_less[: p + 1, p:].all() for p in range(count)])
    return Recomputed(np.minimum(read, whole), seconds * is_less[..., None], last * sure[:, None])
