"""Plan stages by name of a planner, and say how far the plan is from a proven bound. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from trainer.planning.stages import filling
from trainer.planning.stages.dynamic import MOST_DEVICES, dynamic
from trainer.planning.stages.exhaustive import MOST, exhaustive
from trainer.planning.stages.gabra import gabra
from trainer.planning.stages.greedy import longest_first
from trainer.planning.stages.milp import MilpAssignment, milp
from trainer.planning.stages.problem import StageProblem
from trainer.planning.stages.steps import memory, overflow, step_s

Planner = Literal["gabra", "dynamic", "milp", "greedy", "exhaustive"]
# Takes half as long again as 100, and finds the optimum more often: decision 55.
POPULATION = 300
PLANNERS: tuple[Planner, ...] = get_args(Planner)
# Of the program where it only proves a bound: after ten the bound was a thousandth higher at most.
_BOUNDING_S = 1.0


class NoneFits(ValueError):
    """There is proven to be no assignment within the limits of memory."""


@dataclass(frozen=True)
class Assignment:
    """An assignment.

    Attributes:
        planner: that made it.
        devices: of each partition.
        step_s: predicted seconds of a step.
        bound_s: seconds that no assignment within the limits of memory can be below.
        gap: step_s / bound_s - 1; 0 where it is the optimum.
        memory_bytes: the most that each device holds.
        fits: into the limits of memory.
        seconds_taken: to plan, without the bound.
    """

    planner: Planner
    devices: tuple[int, ...]
    step_s: float
    bound_s: float
    gap: float
    memory_bytes: tuple[float, ...]
    fits: bool
    seconds_taken: float


def plan(problem: StageProblem, planner: Planner, seed: int = 0, *, time_limit_s: float = 10.0) -> Assignment:
    """Return the assignment that a planner makes.

    `gabra` searches twice, without twins: once from the assignments of `greedy` and `dynamic`, climbing, and
    once from random ones, since such a start narrows the search.
    It and all others but `milp`, and the bound, are the same on every machine.

    Args:
        problem: that is planned.
        planner: which.
        seed: of `gabra`.
        time_limit_s: of the mixed-integer program, which also proves the bound; for that alone it gets a
            second.

    Raises:
        ValueError: an unknown planner, too many assignments or devices for it, or limits of memory
            within which there is proven to be no assignment.
    """
    return _plans(problem, [planner], seed, time_limit_s)[0]


def compare(problem: StageProblem, seed: int = 0, *, time_limit_s: float = 10.0) -> list[Assignment]:
    """Return what every planner makes of a problem that is not too large for it, in the order of `PLANNERS`.

    Args:
        problem: that is planned.
        seed: see `plan`.
        time_limit_s: see `plan`.

    Raises:
        ValueError: no assignment fits into memory.
    """
    can = {
        "dynamic": problem.devices <= MOST_DEVICES,
        "exhaustive": problem.devices**problem.partitions <= MOST,
    }
    return _plans(problem, [one for one in PLANNERS if can.get(one, True)], seed, time_limit_s)


def _plans(
    problem: StageProblem, planners: Sequence[Planner], seed: int, time_limit_s: float
) -> list[Assignment]:
    for planner in planners:
        if planner not in PLANNERS:
            raise ValueError(f"planner must be one of {', '.join(PLANNERS)}, not {planner!r}")
    if "milp" not in planners:
        time_limit_s = min(time_limit_s, _BOUNDING_S)
    begun = time.perf_counter()
    solved = milp(problem, time_limit_s=time_limit_s)
    took = time.perf_counter() - begun
    bound = bound_s(problem, solved)
    if np.isinf(bound):
        raise NoneFits("no assignment fits into the memory of the devices")
    assignments = []
    for planner in planners:
        begun = time.perf_counter()
        devices = _FOUND[planner](problem, seed, solved)
        seconds = time.perf_counter() - begun + took * (planner == "milp")
        step = float(step_s(problem, [devices])[0])
        assignments.append(
            Assignment(
                planner=planner, devices=devices, step_s=step, bound_s=bound,
                gap=step / bound - 1 if bound else 0.0,
                memory_bytes=tuple(map(float, memory(problem, [devices])[0])),
                fits=not overflow(problem, [devices])[0], seconds_taken=seconds,
            )
        )  # fmt: skip
    return assignments


def plan_gabra(problem: StageProblem, seed: int) -> tuple[int, ...]:
    """Return the better plan of two searches: from plans of others, and from random ones; see `plan`."""
    started = [longest_first(problem)]
    if problem.devices <= MOST_DEVICES:
        started.append(dynamic(problem))
    searches = [
        gabra(problem, seed=seed, population=POPULATION, started=started, climbing=True, distinct=True),
        gabra(problem, seed=seed, population=POPULATION, distinct=True),
    ]
    return min(searches, key=lambda one: one.history[-1]).devices


_FOUND: dict[str, Callable[[StageProblem, int, MilpAssignment], tuple[int, ...]]] = {
    "gabra": lambda problem, seed, _: plan_gabra(problem, seed),
    "dynamic": lambda problem, *_: dynamic(problem),
    "milp": lambda problem, _, solved: solved.devices or longest_first(problem),
    "greedy": lambda problem, *_: longest_first(problem),
    "exhaustive": lambda problem, *_: exhaustive(problem).devices,
}


def path_s(problem: StageProblem) -> float:
    """Return the largest over partitions of what comes before it, all its own passes, and what comes after.

    Each is on its fastest device, without messages. With one micro-batch it is the critical path.
    """
    before, after = filling.anywhere(problem)
    passes = problem.passes_s
    last = passes + problem.final_s, passes + after[:, None]
    return float((before + last[0].clip(min=last[1]).min(axis=1)).max())


def bound_s(problem: StageProblem, solved: MilpAssignment) -> float:
    """Return the best proven bound; `inf` where no assignment fits into memory.

    Args:
        problem: that is planned.
        solved: what `milp` found of it.
    """
    return max(path_s(problem), solved.bound_s)
