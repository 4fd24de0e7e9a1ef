#!/usr/bin/env python3
"""Whether several stages on each device would pay, by the planners' prediction: nothing is trained.

    .venv/bin/python benchmarks/interleaving.py

Networks, accelerators and links are those of stages_on_hosts.py. Each is cut into 16 partitions for four
devices. The steps of three plans stand side by side: the best with one stage on each device at most, of all
there are; the best of 2 or 4 stages on each device in turn, in the interleaved order (Narayanan et al., arXiv
2104.04473); and that of `gabra`, which may give a device any partitions, in the order of 1F1B.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import stages_on_hosts

from trainer.planning.placement import partitioning
from trainer.planning.stages import planners, steps
from trainer.planning.stages.problem import StageProblem
from trainer.planning.stages.schedule import Chunk
from trainer.strategies.placed.reading import read

DEVICES, PARTITIONS, SAMPLES = 4, 16, 8
NETWORKS = {
    "3D-ResAttNet-18": ("resattnet18", 16, 64),
    "VGG": ("vgg", 16, 64),
    "U-Net": ("unet3d", 8, 32),
    "DenseNet-121": ("densenet121", 16, 64),
}
RATES = ("100mbit", "250mbit", "1gbit", "10gbit")


def problem_of(network: str, rate: str) -> StageProblem:
    """Return what a planner decides by: micro-batches of one volume, 8 GFLOP/s, equal links."""
    model, width, size = NETWORKS[network]
    cell = {
        "strategy": "stages", "model": model, "width": width, "size": size, "samples": SAMPLES, "gflops": 8.0,
        "rate": rate, "ranks": DEVICES, "replicas": 1, "planner": "gabra",
    }  # fmt: skip
    job = stages_on_hosts.job_of(cell)
    profile, operations = stages_on_hosts.profile(cell, job), read(stages_on_hosts.network_of(job), 1)
    parts = partitioning.partitions(operations, profile, DEVICES, PARTITIONS)
    return partitioning.problem(
        operations, parts, profile, devices=DEVICES, replicas=1, micro_batches=SAMPLES, schedule="1f1b",
        slots=1,
    )  # fmt: skip


def runs(partitions: int, stages: int) -> Iterator[list[int]]:
    """Yield the stage of each partition, for all cuts into so many stages."""
    for cuts in itertools.combinations(range(1, partitions), stages - 1):
        ends = (0, *cuts, partitions)
        yield [stage for stage, (a, b) in enumerate(itertools.pairwise(ends)) for _ in range(b - a)]


def interleaved(each: int, micro_batches: int) -> list[Chunk]:
    """Return the chunks of `each` stages on every device in a total order; micro-batches fill all devices."""
    lists = [_of_device(device, each, micro_batches) for device in range(DEVICES)]
    done: set[Chunk] = set()
    found: list[Chunk] = []
    while any(lists):
        now = [own[0] for own in lists if own and _needs(own[0], DEVICES * each) <= done]
        for own in lists:
            if own and own[0] in now:
                own.pop(0)
        done |= set(now)
        found += now
    return found


def _of_device(device: int, each: int, micro_batches: int) -> list[Chunk]:
    total = each * micro_batches

    def chunk(passing: str, number: int) -> Chunk:
        group, place = divmod(number, DEVICES * each)
        turn = place // DEVICES if passing == "forward" else each - 1 - place // DEVICES
        return Chunk(passing, group * DEVICES + number % DEVICES, turn * DEVICES + device)  # type: ignore[arg-type]

    ahead = min(total, 2 * (DEVICES - device - 1) + (each - 1) * DEVICES)
    found = [chunk("forward", number) for number in range(ahead)]
    for number in range(total):
        if ahead + number < total:
            found.append(chunk("forward", ahead + number))
        found.append(chunk("backward", number))
    return found


def _needs(chunk: Chunk, stages: int) -> set[Chunk]:
    passing, micro, stage = chunk
    if passing == "forward":
        return {Chunk("forward", micro, stage - 1)} if stage else set()
    own = {Chunk("forward", micro, stage)}
    return own | ({Chunk("backward", micro, stage + 1)} if stage + 1 < stages else set())


def in_turn(problem: StageProblem, each: int) -> float:
    """Return the step of the best plan with `each` stages on every device in turn, of all cuts."""
    chunks = interleaved(each, problem.micro_batches)
    count = DEVICES * each
    table = steps._table(problem.partitions, problem.micro_batches, problem.schedule)
    for slot, chunk in enumerate(chunks):
        table.passes[slot, count] = chunk.stage + problem.partitions * (chunk.passing == "backward")
        table.micro[slot, count] = chunk.micro
    plans = np.array(list(runs(problem.partitions, count))) % DEVICES
    best = float(steps.step_s(problem, plans).min())
    steps._table.cache_clear()
    return best


def best_contiguous(problem: StageProblem) -> tuple[float, int]:
    """Return the step of the best plan with one stage on each device at most, and its number of stages."""
    found = [
        (float(steps.step_s(problem, np.array(list(runs(problem.partitions, count)))).min()), count)
        for count in range(1, DEVICES + 1)
    ]
    return min(found)


def row(network: str, rate: str) -> Sequence[str]:
    """Return a line of the table."""
    problem = problem_of(network, rate)
    one, stages = best_contiguous(problem)
    several = {each: in_turn(problem, each) for each in (2, 4)}
    free = planners.plan(problem, "gabra")
    cells = [network, rate, f"{one:.3f}, {stages} stages"]
    cells += [f"{found:.3f} ({found / one - 1:+.0%})" for found in several.values()]
    return [*cells, f"{free.step_s:.3f} ({free.step_s / one - 1:+.0%})", f"{free.gap:.0%}"]


def main() -> None:
    """Print the table as Markdown."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    print("| network | links | a stage each, s | 2 each in turn | 4 each | `gabra`, any | above the bound |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for network, rate in itertools.product(NETWORKS, RATES):
        print(f"| {' | '.join(row(network, rate))} |", flush=True)


if __name__ == "__main__":
    main()
