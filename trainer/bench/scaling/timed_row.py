"""From the seconds of each rank's steps, and counters of interfaces around them, to a row of a study."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from trainer.bench import hardware
from trainer.bench.scaling.cells import Cell, Row

# Bytes that each host's interface has sent and received so far.
Counters = Mapping[str, tuple[int, int]]


def of_steps(cell: Cell, seconds: Sequence[Sequence[float]], before: Counters, after: Counters) -> Row:
    """Step times are means over ranks of each rank's median, shortest and longest step; bytes are per step.

    Args:
        cell: what was measured.
        seconds: of the timed steps of each rank.
        before: counters right before these steps.
        after: the same, right after.

    Returns:
        The row, without what only a worker of ours can tell (parts of a step, a prediction).
    """
    median = statistics.mean(statistics.median(one) for one in seconds)
    return Row(
        cell,
        samples_per_second=cell.global_batch / median,
        step_s={
            "median": median,
            "min": statistics.mean(min(one) for one in seconds),
            "max": statistics.mean(max(one) for one in seconds),
        },
        interfaces={
            host: {
                "sent": (after[host][0] - before[host][0]) / cell.steps,
                "received": (after[host][1] - before[host][1]) / cell.steps,
            }
            for host in before
        },
        machine=hardware.here(),
        facts={"mean_step_s": statistics.mean(sum(one) for one in seconds) / cell.steps},
    )
