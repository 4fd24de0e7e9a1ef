"""The exact dynamic program for pipelines of contiguous stages, after PipeDream (arXiv 1806.03377). Pure."""

from __future__ import annotations

import numpy as np

from trainer.planning.stages.problem import Floats, StageProblem
from trainer.planning.stages.steps import fitness

# Subsets of devices: 2 ** 12.
MOST_DEVICES = 12


def dynamic(problem: StageProblem) -> tuple[int, ...]:
    """Return the best step among the assignments with the least bottleneck for each number of stages.

    Every device has one stage at most. A bottleneck is the most seconds per micro-batch of a stage or of a
    link: a stage computes both passes, and an M-th of reduction and update; a link carries the tensors that
    cross a border, to the next stage or back. The program finds the least one exactly over all cuts, and
    all assignments of devices to stages, for partitions each of which reads the one before. A skip that
    crosses several borders counts at each, which is an estimate. Memory is exact: under `1f1b` a stage keeps
    as many micro-batches as there are stages from it on, under `gpipe` all. A stage that computes again has
    one of them whole.

    The least bottleneck is not the least step: filling and draining are not in it. So stages of every number
    are tried with `steps`, and the best is taken.

    Args:
        problem: that is planned.

    Raises:
        ValueError: more than 12 devices.
    """
    p, d = problem.partitions, problem.devices
    if d > MOST_DEVICES:
        raise ValueError(f"the dynamic program takes at most {MOST_DEVICES} devices, not {d}")
    crossing = _crossing(problem)
    subsets = np.arange(2**d)
    size = np.array([int(subset).bit_count() for subset in subsets])
    # least[start, subset, device]: bottleneck of the partitions from `start` on, in stages on all devices
    # of the subset, the first of them on `device`. The stage's end and the next device are kept.
    least = np.full((p + 1, 2**d, d), np.inf)
    stop_at = np.zeros((p + 1, 2**d, d), np.int64)
    next_device = np.zeros((p + 1, 2**d, d), np.int64)
    again = problem.recomputed
    work = problem.forward_s + problem.backward_s + problem.final_s / problem.micro_batches
    link_s = [_link_s(problem, moved) for moved in crossing]
    for start in range(p - 1, -1, -1):
        for device in range(d):
            having = subsets[(subsets >> device) & 1 == 1]
            others = having & ~(1 << device)
            flying = np.full(len(having), problem.micro_batches)
            if problem.schedule == "1f1b":
                flying = np.minimum(flying, size[having])
            for stop in range(start + 1, p + 1):
                part = slice(start, stop)
                took = work[part, device].sum()
                whole = kept = problem.kept_bytes[part].sum()
                if again is not None:
                    kept = again.kept_bytes[start, stop - 1]
                    # Under `1f1b`, the passes of the last stage follow each other.
                    if problem.micro_batches > 1 and (stop < p or problem.schedule == "gpipe"):
                        took += again.seconds[start, stop - 1, device]
                held = problem.state_bytes[part].sum() + whole + kept * (flying - 1)
                if stop == p:
                    bottleneck, after = np.where(others == 0, took, np.inf), np.zeros(len(having), np.int64)
                else:
                    rest = np.maximum(least[stop, others], link_s[stop][device])  # (subsets, D)
                    after = rest.argmin(axis=1)
                    bottleneck = np.maximum(rest.min(axis=1), took)
                bottleneck = np.where(held <= problem.memory_bytes[device], bottleneck, np.inf)
                better = bottleneck < least[start, having, device]
                where = having[better]
                least[start, where, device] = bottleneck[better]
                stop_at[start, where, device] = stop
                next_device[start, where, device] = after[better]
    plans = []
    for count in range(1, min(p, d) + 1):
        costs = np.where((size == count)[:, None], least[0], np.inf)
        if np.isfinite(costs).any():
            subset, first = divmod(int(costs.argmin()), d)
            plans.append(_plan(subset, first, stop_at, next_device))
    if not plans:
        plans = [[int(problem.memory_bytes.argmax())] * p]
    return tuple(plans[int(fitness(problem, plans).argmin())])


def _crossing(problem: StageProblem) -> Floats:
    """Return the bytes that cross each border, before partition 0 to P - 1."""
    moved = problem.moved_bytes
    return np.array([moved[:cut, cut:].max(axis=1).sum() if cut else 0.0 for cut in range(len(moved))])


def _link_s(problem: StageProblem, moved: float) -> Floats:
    """Return the seconds to send `moved` bytes from a device to another, or back, whichever is more."""
    d = problem.devices
    if not moved:
        return np.zeros((d, d))
    seconds = np.zeros((d, d))
    source, target = np.nonzero(~np.eye(d, dtype=bool))
    seconds[source, target] = problem.message_s(moved, source, target)
    return np.maximum(seconds, seconds.T)


def _plan(subset: int, device: int, stop_at: np.ndarray, next_device: np.ndarray) -> list[int]:
    devices: list[int] = []
    while subset:
        start = len(devices)
        devices += [device] * int(stop_at[start, subset, device] - start)
        after = int(next_device[start, subset, device])
        subset &= ~(1 << device)
        device = after
    return devices
