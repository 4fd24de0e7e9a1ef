"""`cingulum bench input`: how long training waits for its input, and what it would gain without any."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cingulum.bench import workers
from cingulum.bench.loader.measure import data_folder
from cingulum.bench.processes import Running
from trainer.bench import hardware
from trainer.bench.input_worker import InputJob
from trainer.bench.loader import figures, volumes
from trainer.bench.loader.job import LoaderJob

Progress = Callable[[str], None]
_END_S = 60.0


def measure(job: InputJob, volumes_job: LoaderJob, data: Path | None, progress: Progress) -> dict[str, Any]:
    """Train blocks of steps from shards and from one batch that is repeated, in turn.

    Args:
        job: what is trained; its shards are made here.
        volumes_job: the volumes.
        data: folder for them; None for a temporary one.
        progress: told what is being measured.

    Returns:
        `shares` of the blocks, `timeline` of the last block with real input, the job and the machine.

    Raises:
        WorldError: the training failed.
    """
    with data_folder(data) as folder:
        made = dataclasses.replace(volumes_job, folder=str(volumes.folder_of(folder, volumes_job)))
        progress(f"making {made.volumes} volumes of {made.size}^3")
        volumes.make(made)
        job = dataclasses.replace(job, shards=str(made.path("shards")))
        blocks = []
        progress("building the network")
        for block in _blocks(job):
            blocks.append(block)
            progress(f"block {len(blocks)} of {2 * job.repeats}")
    last = next(block for block in reversed(blocks) if block["kind"] == "real")
    return {
        **shares(blocks),
        "timeline": last["steps"],
        "repeats": job.repeats,
        "job": {**dataclasses.asdict(job), "shards": str(data or "temporary"), "size": volumes_job.size},
        "machine": hardware.here(),
    }


def shares(blocks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the cost of waiting for input, from alternating blocks of real and synthetic input.

    Returns:
        `input_wait_share`: the time in which a block with real input waits for batches, over its whole time;
        `synthetic_gain`: throughput with one repeated batch over that with real input, minus 1, of the two
        blocks that followed each other; `real_step_s` and `synthetic_step_s`. Medians, with `_min`, `_max`.
    """
    real = [block for block in blocks if block["kind"] == "real"]
    synthetic = [block for block in blocks if block["kind"] == "synthetic"]
    waits = [sum(step["wait_s"] for step in block["steps"]) / block["seconds"] for block in real]
    gains = [
        (mine["seconds"] / len(mine["steps"])) / (other["seconds"] / len(other["steps"])) - 1
        for mine, other in zip(real, synthetic, strict=True)
    ]
    return {
        **figures.named("input_wait_share", waits),
        **figures.named("synthetic_gain", gains),
        **figures.named("real_step_s", [block["seconds"] / len(block["steps"]) for block in real]),
        **figures.named("synthetic_step_s", [block["seconds"] / len(block["steps"]) for block in synthetic]),
    }


def _blocks(job: InputJob) -> Iterator[dict[str, Any]]:
    training = workers.process(job, "bench input", "the training")
    with Running([training]) as running:
        for _ in range(2 * job.repeats):
            yield json.loads(running.hear([training], None, "block")[training])
        running.wait(_END_S)
