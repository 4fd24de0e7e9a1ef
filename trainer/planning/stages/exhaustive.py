"""The best of all assignments, found by trying them. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainer.planning.stages.greedy import longest_first
from trainer.planning.stages.problem import StageProblem
from trainer.planning.stages.steps import fitness

# 4 devices, 10 partitions, and a bit.
MOST = 2_000_000
_BATCH = 4_096


class ExhaustiveBest(NamedTuple):
    """The best assignment.

    Attributes:
        devices: of each partition.
        tried: assignments in all.
        played: of them, those whose busiest device has less to do than the best step so far.
    """

    devices: tuple[int, ...]
    tried: int
    played: int


def exhaustive(problem: StageProblem, *, most: int = MOST) -> ExhaustiveBest:
    """Return the assignment of the least `fitness`.

    A step cannot be shorter than what its busiest device has to do: where that is no less than the best so
    far, the step is not played.

    Args:
        problem: that is planned.
        most: assignments that may be tried.

    Raises:
        ValueError: there are more.
    """
    p, d = problem.partitions, problem.devices
    total = d**p
    if total > most:
        raise ValueError(f"{d} devices and {p} partitions have {total} assignments; at most {most} are tried")
    best = np.array(longest_first(problem))
    least, played = float(fitness(problem, best[None])[0]), 1
    places = d ** np.arange(p - 1, -1, -1)
    for start in range(0, total, _BATCH):
        batch = np.arange(start, min(start + _BATCH, total))[:, None] // places % d
        load = np.zeros((len(batch), d))
        for q in range(p):
            load[np.arange(len(batch)), batch[:, q]] += problem.work_s[q, batch[:, q]]
        batch = batch[load.max(axis=1) < least]
        if not len(batch):
            continue
        found = fitness(problem, batch)
        played += len(batch)
        if found.min() < least:
            best, least = batch[found.argmin()], float(found.min())
    return ExhaustiveBest(tuple(map(int, best)), total, played)
