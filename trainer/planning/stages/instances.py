"""Problems drawn at random, with which planners are compared. Pure."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from trainer.planning.stages.problem import Schedule, StageProblem

Family = Literal["equal", "unequal", "slow-links", "skips", "memory", "all"]
FAMILIES: tuple[Family, ...] = get_args(Family)


def drawn(
    family: Family, seed: int, *, partitions: int, devices: int, micro_batches: int, schedule: Schedule
) -> StageProblem:
    """Return a problem of a family; the same for the same arguments.

    `equal`: a chain of unequal partitions on equal devices, with messages of about 5 % of a pass.
    `unequal`: devices up to 4 times as slow, not by the same factor for every partition.
    `slow-links`: as `equal`, with messages of about half a pass, and unequal links.
    `skips`: as `equal`, where partitions also read others, further back.
    `memory`: as `equal`, with limits under which each device has room for a bit more than its share.
    `all`: everything at once.

    Args:
        family: which.
        seed: of the random numbers.
        partitions: P.
        devices: D.
        micro_batches: M.
        schedule: of the micro-batches.
    """
    rng = np.random.default_rng([seed, FAMILIES.index(family), partitions, devices, micro_batches])
    p, d = partitions, devices
    work = rng.lognormal(0.0, 0.7, p)
    slowness = np.ones((p, d))
    if family in ("unequal", "all"):
        slowness = rng.uniform(1.0, 4.0, d) * rng.uniform(0.8, 1.25, (p, d))
    forward = work[:, None] * slowness
    moved = np.diag(rng.lognormal(0.0, 0.7, p - 1), 1) if p > 1 else np.zeros((1, 1))
    if family in ("skips", "all"):
        skips = np.triu(rng.random((p, p)) < 0.2, 2)
        moved = moved + skips * rng.lognormal(0.0, 0.7, (p, p))
    slow = family in ("slow-links", "all")
    rate = (2.0 if slow else 20.0) / (rng.uniform(1.0, 4.0, (d, d)) if slow else np.ones((d, d)))
    state, kept = rng.lognormal(0.0, 1.0, p), 0.2 * rng.lognormal(0.0, 0.7, p)
    limits = np.full(d, np.inf)
    if family in ("memory", "all"):
        flying = micro_batches if schedule == "gpipe" else min(micro_batches, d)
        total = state.sum() + kept.sum() * flying
        limits = rng.uniform(1.0, 1.8, d) * max(total / d, (state + kept * flying).max())
    return StageProblem(
        forward_s=forward, backward_s=2 * forward, update_s=0.1 * state[:, None] * slowness,
        state_bytes=state, kept_bytes=kept, moved_bytes=moved, latency_s=np.full((d, d), 0.01),
        bytes_per_second=rate, memory_bytes=limits, micro_batches=micro_batches, schedule=schedule,
        reduced_s=np.zeros((p, d)),
    )  # fmt: skip
