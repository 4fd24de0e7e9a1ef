"""GABRA: a genetic algorithm that assigns partitions of a network to devices. Pure.

GABRA is in Akintoye, Han et al. (arXiv 2104.05035). As published, as far as we know it: a chromosome has the
device of each partition; tournament selection, crossover, mutation of each gene, elitism; the cost is that of
the slowest device, its computing plus what crosses its borders over the bandwidth, and a penalty where memory
is short.

Ours: the fitness is the predicted step of the very schedule (`steps`); its kind of crossover (one point) and
every number below; and three extensions, each of which can be switched off: `started`, individuals that other
planners found; `climbing`, a local search around the best individual of each generation; `distinct`, which
puts random individuals in the place of those that are there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainer.planning.stages.problem import Floats, StageProblem
from trainer.planning.stages.steps import Integers, fitness, step_s


class GabraResult(NamedTuple):
    """The best assignment of a search.

    Attributes:
        devices: of each partition.
        step_s: its seconds, without a penalty.
        history: fitness of the best individual of each generation; never rises.
        evaluations: assignments that were played, each once.
    """

    devices: tuple[int, ...]
    step_s: float
    history: tuple[float, ...]
    evaluations: int


def gabra(
    problem: StageProblem,
    *,
    seed: int,
    population: int = 100,
    generations: int = 100,
    tournament: int = 3,
    crossover: float = 0.9,
    mutation: float | None = None,
    elite: int = 2,
    started: Sequence[Sequence[int]] = (),
    climbing: bool = False,
    distinct: bool = False,
) -> GabraResult:
    """Return the best assignment that the genetic algorithm finds; the same one for the same arguments.

    Args:
        problem: that is planned.
        seed: of the random numbers.
        population: individuals, at least 2.
        generations: how often they are replaced.
        tournament: individuals of which the best becomes a parent.
        crossover: probability that an individual has two parents; else it is a copy of one.
        mutation: probability that a gene becomes a random device; None: 1 / P.
        elite: best individuals that live on unchanged, at least 1 and fewer than the population.
        started: assignments in the first population, which else is random.
        climbing: see `_climb`.
        distinct: see the top of this file.

    Raises:
        ValueError: sizes that do not fit together.
    """
    if not 1 <= elite < population or len(started) > population or tournament < 1 or generations < 0:
        raise ValueError(f"no population of {population} with {elite} elite and {len(started)} started ones")
    rng = np.random.default_rng(seed)
    rate = 1 / problem.partitions if mutation is None else mutation
    living = rng.integers(0, problem.devices, (population, problem.partitions))
    if len(started):
        living[: len(started)] = started
    judge = _Judge(problem)
    living, cost = judge.sorted(living, climbing)
    history = [float(cost[0])]
    for _ in range(generations):
        born = population - elite
        parents = rng.integers(0, population, (2, born, tournament)).min(axis=2)  # sorted: the least is best
        first, second = living[parents]
        point = rng.integers(1, max(problem.partitions, 2), (born, 1))
        crossed = (np.arange(problem.partitions) >= point) & (rng.random((born, 1)) < crossover)
        children = np.where(crossed, second, first)
        anew = rng.integers(0, problem.devices, children.shape)
        children = np.where(rng.random(children.shape) < rate, anew, children)
        living = np.concatenate([living[:elite], children])
        if distinct:
            _replace_twins(living, elite, rng.integers(0, problem.devices, living.shape))
        living, cost = judge.sorted(living, climbing)
        history.append(float(cost[0]))
    best = living[0]
    step = float(step_s(problem, best[None])[0])
    return GabraResult(tuple(map(int, best)), step, tuple(history), judge.evaluations)


def _replace_twins(living: Integers, elite: int, others: Integers) -> None:
    """Put others in the place of individuals that are there already; not of the elite."""
    twins = np.ones(len(living), bool)
    twins[np.unique(living, axis=0, return_index=True)[1]] = False
    twins[:elite] = False
    living[twins] = others[twins]


class _Judge:
    """Fitness of individuals; none is played twice."""

    def __init__(self, problem: StageProblem) -> None:
        self._problem = problem
        self._known: dict[bytes, float] = {}
        self._climbed: bytes | None = None

    @property
    def evaluations(self) -> int:
        return len(self._known)

    def sorted(self, living: Integers, climbing: bool) -> tuple[Integers, Floats]:
        """Return individuals and their fitness, the best first."""
        cost = self._cost(living)
        ranking = np.argsort(cost, kind="stable")
        living, cost = living[ranking], cost[ranking]
        if climbing and living[0].tobytes() != self._climbed:
            living[0], cost[0] = self._climb(living[0], cost[0])
            self._climbed = living[0].tobytes()
        return living, cost

    def _cost(self, living: Integers) -> Floats:
        keys = [one.tobytes() for one in living]
        new = {key: at for at, key in enumerate(keys) if key not in self._known}
        if new:
            costs = fitness(self._problem, living[list(new.values())])
            self._known.update(zip(new, map(float, costs), strict=True))
        return np.array([self._known[key] for key in keys])

    def _climb(self, best: Integers, cost: float) -> tuple[Integers, float]:
        """Go to the best neighbour while it is better.

        Neighbours have one gene changed, or two devices exchanged.
        """
        while True:
            around = neighbours(best, self._problem.devices)
            costs = self._cost(around)
            if not len(around) or costs.min() >= cost:
                return best, cost
            best, cost = around[costs.argmin()], float(costs.min())


def neighbours(devices: Integers, count: int) -> Integers:
    """Return assignments with one partition on another device, or with two devices exchanged.

    Args:
        devices: (P,), of each partition.
        count: D.

    Returns:
        (P (D - 1) + D (D - 1) / 2, P).
    """
    p = len(devices)
    moved = np.tile(devices, (p, count, 1))
    moved[np.arange(p), :, np.arange(p)] = np.arange(count)
    moved = moved.reshape(-1, p)[(np.arange(count) != devices[:, None]).ravel()]
    low, high = np.triu_indices(count, 1)
    exchanged = np.where(devices == low[:, None], high[:, None], devices)
    exchanged = np.where(devices == high[:, None], low[:, None], exchanged)
    return np.concatenate([moved, exchanged])
