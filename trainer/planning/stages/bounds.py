"""Seconds that no assignment's step can be shorter than, proven. Pure."""

from __future__ import annotations

from trainer.planning.stages import filling
from trainer.planning.stages.milp import Solved
from trainer.planning.stages.problem import Problem


def path_s(problem: Problem) -> float:
    """Return the largest over partitions of what comes before it, all its own passes, and what comes after.

    Each is on its fastest device, without messages. With one micro-batch it is the critical path.
    """
    before, after = filling.anywhere(problem)
    passes = problem.passes_s
    last = passes + problem.final_s, passes + after[:, None]
    return float((before + last[0].clip(min=last[1]).min(axis=1)).max())


def bound_s(problem: Problem, solved: Solved) -> float:
    """Return the best proven bound; `inf` where no assignment fits into memory.

    Args:
        problem: that is planned.
        solved: what `milp` found of it.
    """
    return max(path_s(problem), solved.bound_s)
