"""What a run writes of its pipeline, with MADE-UP numbers: GPipe of equal stages, rank r with stage r."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Seconds of a pass of a stage over a micro-batch.
FORWARD_S, BACKWARD_S = 0.002, 0.004


def passes(ranks: int, micro_batches: int, slower: float = 1.0) -> list[list[list[Any]]]:
    """Return of each rank [kind, micro-batch, start, end]; messages take no time."""
    turned = (micro_batches + ranks - 1) * FORWARD_S
    found = []
    for rank in range(ranks):
        own: list[tuple[str, int, float, float]] = []
        for kind, lasting in (("forward", FORWARD_S), ("backward", BACKWARD_S)):
            for micro in range(micro_batches):
                start = (micro + rank) * lasting
                if kind == "backward":
                    start = turned + (micro + ranks - 1 - rank) * lasting
                own.append((kind, micro, start, start + lasting))
        found.append([[kind, micro, slower * start, slower * end] for kind, micro, start, end in own])
    return found


def step_s(ranks: int, micro_batches: int) -> float:
    """Return the seconds of a step of `passes`."""
    return (micro_batches + ranks - 1) * (FORWARD_S + BACKWARD_S)


def add_pipeline(folder: Path, ranks: int, micro_batches: int) -> Path:
    """Write into a run folder what was predicted, and that it took 1.25 times as long in step 6."""
    path = folder / "plan.json"
    plan = json.loads(path.read_text()) if path.is_file() else {"world_size": ranks}
    seconds = step_s(ranks, micro_batches)
    played = [[rank, *one] for rank, own in enumerate(passes(ranks, micro_batches)) for one in own]
    division = {"step_s": seconds, "played": played}
    plan |= {"stages": ranks, "micro_batches": micro_batches, "division": division}
    path.write_text(json.dumps(plan))
    told = {"version": 1, "step": 6, "seconds": 1.25 * seconds, "ranks": passes(ranks, micro_batches, 1.25)}
    (folder / "telemetry").mkdir(exist_ok=True)
    (folder / "telemetry" / "pipeline.json").write_text(json.dumps(told))
    return folder
