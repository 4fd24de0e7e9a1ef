"""How our loader's throughput grows with the number of volumes, of threads and of ranks: with a picture."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cingulum.bench.loader.measure import LoaderStudy, Progress, data_folder
from cingulum.bench.loader.processes import ReaderProcess
from trainer.bench import hardware
from trainer.bench.loader import figures, page_cache, volumes
from trainer.bench.loader.job import LoaderJob
from trainer.bench.loader.readers import LIMIT, OURS, PARTS
from trainer.bench.loader.worker import LEAST_S
from trainer.errors import CingulumError, WorldError


@dataclasses.dataclass(frozen=True)
class SweepPoint:
    """One place on a curve.

    Attributes:
        axis: volumes, threads or ranks.
        value: how many.
        job: what is read; its world size is the number of ranks.
    """

    axis: str
    value: int
    job: LoaderJob


def points(job: LoaderJob, cores: int) -> list[SweepPoint]:
    """Return the points to measure: along each axis doubled, from 1 or a batch up to what there is."""
    more = [dataclasses.replace(job, volumes=job.batch * 2**k) for k in range(1, 12)]
    grid = [SweepPoint("volumes", one.volumes, one) for one in more if one.volumes <= job.volumes]
    for threads in _doubled(2 * cores):
        grid.append(SweepPoint("threads", threads, dataclasses.replace(job, threads=threads)))
    for ranks in _doubled(cores):
        if job.volumes % (ranks * job.batch) == 0:
            # As many threads in all, whatever the ranks: what is added is another process, not another core.
            own = dataclasses.replace(job, world_size=ranks, threads=max(1, cores // ranks))
            grid.append(SweepPoint("ranks", ranks, own))
    return grid


def scaling(study: LoaderStudy, progress: Progress) -> dict[str, Any]:
    """Measure throughput along each axis, at the study's first size, from a warm page cache.

    Ranks are processes that start an epoch at the same moment; reading needs no word between them, so that
    MPI would change nothing. Their throughput is all their volumes over the time of the slowest.

    Returns:
        `points`: axis, value, volumes per second, peak memory of a rank and stored bytes that all ranks have
        read per epoch, and for threads the `limit`; `stored_bytes` of the set; `machine`.

    Raises:
        CingulumError: a reader failed.
    """
    job = dataclasses.replace(study.job, size=study.sizes[0])
    with data_folder(study.data) as data:
        job = dataclasses.replace(job, folder=str(volumes.folder_of(data, job)))
        progress(f"{job.size}^3: making {job.volumes} volumes")
        volumes.make(job)
        chosen = points(job, len(os.sched_getaffinity(0)))
        measured = []
        for number, point in enumerate(chosen):
            progress(f"{number + 1} of {len(chosen)}: {point.value} {point.axis}")
            try:
                measured.append(_measured(point, study.repeats))
            except WorldError as failure:
                raise CingulumError(f"Cingulum's loader with {point.value} {point.axis}: {failure}") from None
        stored = sum(path.stat().st_size for path in job.path("shards").glob("shard-*.h5"))
    return {
        "points": measured,
        "stored_bytes": stored,
        "size": job.size,
        "job": {**dataclasses.asdict(study.job), "folder": str(study.data or "temporary"), "size": job.size},
        "repeats": study.repeats,
        "machine": hardware.here(),
    }


def _measured(point: SweepPoint, repeats: int) -> dict[str, Any]:
    job = point.job
    ranks = [dataclasses.replace(job, rank=rank) for rank in range(job.world_size)]
    with ExitStack() as stack:
        processes = [stack.enter_context(ReaderProcess(OURS, rank)) for rank in ranks]
        opened = _all(processes, "open")
        page_cache.fill(Path(file) for file in opened[0]["files"])
        speeds, read, memory = [], [], []
        # One epoch by each rank, so that they read at the same time; together long enough to be timed.
        for _ in range(repeats):
            seconds, epochs = 0.0, 0
            while seconds < LEAST_S:
                answers = _all(processes, "epoch")
                seconds += max(answer["seconds"] for answer in answers)
                epochs += 1
            speeds.append(epochs * job.volumes / seconds)
            read.append(sum(answer["bytes_read"] for answer in answers))
            memory.append(max(answer["peak_memory_bytes"] for answer in answers))
    row = {
        "axis": point.axis,
        "value": point.value,
        "volumes_per_s": figures.spread(speeds),
        "peak_memory_bytes": max(memory),
        "bytes_read_by_all_ranks": max(read),
    }
    return {**row, "limit": _limit(job, repeats)} if point.axis == "threads" else row


def _all(processes: Sequence[ReaderProcess], what: str) -> list[dict[str, Any]]:
    for process in processes:
        process.tell(what)
    return [process.answer() for process in processes]


def _limit(job: LoaderJob, repeats: int) -> dict[str, float]:
    with ReaderProcess(LIMIT, job) as process:
        process.ask("open")
        return figures.spread(
            [
                figures.limit_speed(
                    job.volumes,
                    {part: process.ask("part", name=part, least_s=LEAST_S)["seconds"] for part in PARTS},
                )
                for _ in range(repeats)
            ]
        )


def _doubled(most: int) -> list[int]:
    return [2**k for k in range(most.bit_length()) if 2**k <= most]


TITLES = {"volumes": "volumes in an epoch", "threads": "threads of one rank", "ranks": "ranks"}


def draw(sweep: dict[str, Any], path: Path) -> None:
    """Draw three panels: throughput by volumes, by threads with the machine's limit, and by ranks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(10, 3.4), sharey=True, layout="constrained")
    for panel, (axis, title) in zip(panels, TITLES.items(), strict=True):
        along = [point for point in sweep["points"] if point["axis"] == axis]
        _curve(panel, along, "volumes_per_s", "Cingulum", "C0", "o-")
        if axis == "threads":
            _curve(panel, along, "limit", "limit: slowest of read, decode, cast", "0.5", "s--")
            panel.legend(frameon=False, fontsize=8)
        panel.set_xscale("log", base=2)
        panel.set_xticks([point["value"] for point in along], [str(point["value"]) for point in along])
        panel.minorticks_off()
        panel.set_xlabel(title)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("volumes per second")
    job, machine = sweep["job"], sweep["machine"]
    figure.suptitle(
        f"{sweep['size']}³ {job['dtype']}, {job['codec']}, page cache warm; "
        f"{machine['cpu']}, {machine['cores']} cores",
        fontsize=9,
    )
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _curve(panel: Any, along: list[dict[str, Any]], name: str, label: str, colour: str, style: str) -> None:
    values = [point["value"] for point in along]
    middle = [point[name]["median"] for point in along]
    below = [point[name]["median"] - point[name]["min"] for point in along]
    above = [point[name]["max"] - point[name]["median"] for point in along]
    panel.errorbar(
        values, middle, [below, above], fmt=style, color=colour, label=label, capsize=3, markersize=4
    )
