"""Longest processing time first: the classical greedy assignment. Pure."""

from __future__ import annotations

import numpy as np

from trainer.planning.stages.problem import StageProblem


def longest_first(problem: StageProblem) -> tuple[int, ...]:
    """Return the device of each partition by LPT (Graham 1969), for devices that may be unequal.

    Partitions with the most seconds, on the mean over devices, come first; each goes where its device is
    done soonest with all that it has. It knows neither order nor messages. A device is passed over that
    would have more state, and activations of one micro-batch, than its memory; where all would, none is.

    Args:
        problem: that is planned.
    """
    load, held = np.zeros(problem.devices), np.zeros(problem.devices)
    devices = [0] * problem.partitions
    size = problem.state_bytes + problem.kept_bytes
    for p in np.argsort(-problem.work_s.mean(axis=1), kind="stable"):
        done = load + problem.work_s[p]
        fits = held + size[p] <= problem.memory_bytes
        device = int(np.argmin(np.where(fits, done, np.inf) if fits.any() else done))
        devices[p] = device
        load[device] = done[device]
        held[device] += size[p]
    return tuple(devices)
