"""How long a pipeline fills before a partition's first pass, and drains after its last, at least. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainer.planning.stages.problem import Floats, StageProblem


class Filling(NamedTuple):
    """Seconds that no assignment can avoid.

    Attributes:
        before_s: from the start of the step to the first forward pass of a partition.
        after_s: from the end of its last backward pass to that of the step, for what it reads.
    """

    before_s: Floats
    after_s: Floats


def anywhere(problem: StageProblem) -> Filling:
    """Return what holds for each partition, (P,), wherever it and those before it are.

    Those that it reads have to be computed first, each on its fastest device, and without messages.
    """
    return _paths(problem, np.ones(problem.devices, bool))


def first_on(problem: StageProblem) -> Filling:
    """Return what holds for a partition that is the first one on a device, (P, D).

    Those that it reads are then on other devices, and a message comes from there, and its gradient goes
    back. By the order of either schedule, the stage that it begins has the device's first chunk and its last.
    0 where there is one device.
    """
    p, d = problem.partitions, problem.devices
    filling = Filling(np.zeros((p, d)), np.zeros((p, d)))
    for device in range(d if d > 1 else 0):
        others = np.arange(d) != device
        paths = _paths(problem, others)
        elsewhere = np.flatnonzero(others)
        for a, q in zip(*np.nonzero(problem.moved_bytes), strict=True):
            moved = problem.moved_bytes[a, q]
            comes = problem.forward_s[a, others] + problem.message_s(moved, elsewhere, device)
            before = paths.before_s[a] + comes.min()
            goes = problem.message_s(moved, device, elsewhere) + problem.least_backward_s[a, others]
            after = (goes + np.maximum(problem.final_s[a, others], paths.after_s[a])).min()
            filling.before_s[q, device] = max(filling.before_s[q, device], before)
            filling.after_s[q, device] = max(filling.after_s[q, device], after)
    return filling


def _paths(problem: StageProblem, allowed: np.ndarray) -> Filling:
    """Return the longest paths to each partition, with every one on the fastest of the allowed devices."""
    longest = Filling(np.zeros(problem.partitions), np.zeros(problem.partitions))
    # Pairs come in the order of p, and everything before p is done when p comes.
    for p, q in zip(*np.nonzero(problem.moved_bytes), strict=True):
        before = longest.before_s[p] + problem.forward_s[p, allowed].min()
        last = np.maximum(problem.final_s[p, allowed], longest.after_s[p])
        after = (problem.least_backward_s[p, allowed] + last).min()
        longest.before_s[q] = max(longest.before_s[q], before)
        longest.after_s[q] = max(longest.after_s[q], after)
    return longest
