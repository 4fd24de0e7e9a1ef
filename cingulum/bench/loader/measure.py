"""`cingulum bench loader`: every reader on the same volumes, in turn, cold and warm."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from cingulum.bench.loader.processes import ReaderProcess, python_of
from trainer.bench import hardware
from trainer.bench.loader import figures, page_cache, volumes
from trainer.bench.loader.job import LoaderJob
from trainer.bench.loader.readers import KINDS, LIMIT, OURS, PARTS
from trainer.bench.loader.worker import LEAST_S
from trainer.errors import CingulumError, WorldError

Progress = Callable[[str], None]

# From so little of a file in the page cache on, reading it counts as cold.
COLD_SHARE = 0.02


@dataclasses.dataclass(frozen=True)
class LoaderStudy:
    """What is measured.

    Attributes:
        job: how volumes are read; its folder and size are set by the benchmark.
        sizes: edges of the volumes, in voxels.
        repeats: measurements of each kind, in turn.
        caches: states of the page cache: cold, warm.
        readers: names in `readers.KINDS`.
        data: where volumes are made and kept; None for a temporary folder.
    """

    job: LoaderJob
    sizes: tuple[int, ...] = (96, 128)
    repeats: int = 5
    caches: tuple[str, ...] = ("cold", "warm")
    readers: tuple[str, ...] = dataclasses.field(default_factory=lambda: tuple(KINDS))
    data: Path | None = None


def loader(study: LoaderStudy, progress: Progress) -> dict[str, Any]:
    """Measure all of it.

    Returns:
        `limit_ratio` and `best_peer_ratio`, the worst over sizes and states of the page cache; `worst`, where
        that was; `cases`, the ratios of each size and state; `readers`, a row for each reader, size and
        state; `peak_memory_by_volumes`; `machine`.

    Raises:
        CingulumError: our own reader failed, or delivered other volumes than it should.
    """
    cases: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    growth: dict[str, dict[str, int]] = {}
    with data_folder(study.data) as data:
        for size in study.sizes:
            job = dataclasses.replace(study.job, size=size)
            job = dataclasses.replace(job, folder=str(volumes.folder_of(data, job)))
            progress(f"{size}^3: making {job.volumes} volumes")
            volumes.make(job)
            found = _Size(study, job, progress).measure()
            cases += found["cases"]
            rows += found["rows"]
            growth[str(size)] = _memory_by_volumes(job)
        machine = {**hardware.here(), **_storage(data, rows)}
    worst = {name: figures.worst(cases, name) for name in ("limit_ratio", "best_peer_ratio")}
    return {
        **{name: case[name] if case else None for name, case in worst.items()},
        "worst": {
            name: {"size": case["size"], "cache": case["cache"]} if case else None
            for name, case in worst.items()
        },
        "cases": cases,
        "readers": rows,
        "peak_memory_by_volumes": growth,
        "units": {
            "volumes_per_s": "volumes delivered per second, as batches of float32",
            "bytes_per_s": "bytes of these float32 volumes per second",
            "peak_memory_bytes": "above the process after its imports, summed over its worker processes",
            "storage_bytes": "read from storage in an epoch, page cache hits not counted; median",
        },
        "job": {**dataclasses.asdict(study.job), "folder": str(study.data or "temporary"), "size": None},
        "sizes": list(study.sizes),
        "repeats": study.repeats,
        "machine": machine,
    }


@contextmanager
def data_folder(named: Path | None) -> Iterator[Path]:
    """Yield the folder for the volumes: the one that was named, or a temporary one that is removed."""
    if named is not None:
        named.mkdir(parents=True, exist_ok=True)
        yield named
        return
    made = Path(tempfile.mkdtemp(prefix="cingulum-bench-"))
    try:
        yield made
    finally:
        shutil.rmtree(made)


class _Size:
    """The measurements at one size."""

    def __init__(self, study: LoaderStudy, job: LoaderJob, progress: Progress) -> None:
        self._study, self._job, self._tell = study, job, progress
        self._skipped: dict[str, str] = {}
        self._opened: dict[str, dict[str, Any]] = {}
        self._found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._cached: dict[tuple[str, str], list[float]] = {}

    def measure(self) -> dict[str, Any]:
        """Return the rows and ratios of this size."""
        with ExitStack() as stack:
            running = self._start(stack)
            for repeat in range(self._study.repeats):
                # No reader always follows the same one.
                names = _rotated(list(running), repeat)
                for cache in self._study.caches:
                    for name in names:
                        if name in running and _is_measured(name, cache):
                            self._progress(f"repeat {repeat + 1} of {self._study.repeats}, {cache}: {name}")
                            self._measure_one(running, name, cache)
        return {
            "rows": [
                self._row(name, cache)
                for cache in self._study.caches
                for name in self._study.readers
                if _is_measured(name, cache)
            ],
            "cases": [
                {"size": self._job.size, "cache": cache, **figures.ratios(self._speeds(cache))}
                for cache in self._study.caches
            ],
        }

    def _progress(self, what: str) -> None:
        self._tell(f"{self._job.size}^3: {what}")

    def _start(self, stack: ExitStack) -> dict[str, ReaderProcess]:
        running: dict[str, ReaderProcess] = {}
        for name in self._study.readers:
            if python_of(name) is None:
                self._skipped[name] = f"not installed: {KINDS[name].install}"
                continue
            try:
                for writer in KINDS[name].written_by:
                    self._prepare(writer)
                self._progress(f"opening and checking: {name}")
                process = stack.enter_context(ReaderProcess(name, self._job))
                self._opened[name] = process.ask("open")
                running[name] = process
            except WorldError as failure:
                self._failed(name, failure)
        return running

    def _prepare(self, name: str) -> None:
        # By a process of its own, so that what it allocates does not count as the reader's.
        done = self._job.path(f".prepared-{name}")
        if not done.exists():
            self._progress(f"writing its files: {name}")
            with ReaderProcess(name, self._job) as process:
                process.ask("prepare")
            done.touch()

    def _failed(self, name: str, failure: WorldError) -> None:
        if name in (OURS, LIMIT):
            raise CingulumError(f"At {self._job.size}^3: {failure}") from None
        self._skipped[name] = f"failed: {failure.message.splitlines()[-1]}"

    def _measure_one(self, running: dict[str, ReaderProcess], name: str, cache: str) -> None:
        files = [Path(file) for file in self._opened[name]["files"]]
        (page_cache.drop if cache == "cold" else page_cache.fill)(files)
        self._cached.setdefault((name, cache), []).append(page_cache.share(files))
        least_s = LEAST_S if cache == "warm" else 0.0
        try:
            if name == LIMIT:
                parts = {
                    part: running[name].ask("part", name=part, least_s=least_s)["seconds"] for part in PARTS
                }
                timing = {"volumes": self._job.volumes, "seconds": max(parts.values()), "parts_s": parts}
            else:
                timing = running[name].ask("epoch", least_s=least_s)
        except WorldError as failure:
            self._failed(name, failure)
            del running[name]
            return
        self._found.setdefault((name, cache), []).append(timing)

    def _speeds(self, cache: str) -> dict[str, list[float]]:
        return {
            name: [found["volumes"] / found["seconds"] for found in self._found[name, cache]]
            for name in self._study.readers
            if name not in self._skipped and _is_measured(name, cache)
        }

    def _row(self, name: str, cache: str) -> dict[str, Any]:
        kind, job = KINDS[name], self._job
        row: dict[str, Any] = {"reader": name, "title": kind.title, "size": job.size, "cache": cache}
        if name in self._skipped:
            return {**row, "skipped": self._skipped[name]}
        found = self._found[name, cache]
        speeds = figures.spread([one["volumes"] / one["seconds"] for one in found])
        row |= {
            "volumes_per_s": speeds,
            "bytes_per_s": {key: value * job.voxels * 4 for key, value in speeds.items()},
            "stored": job.dtype if job.dtype == "float32" else kind.stored,
            "stored_bytes": self._opened[name]["stored_bytes"],
            "share_in_page_cache_before": max(self._cached[name, cache]),
            "from_memory": kind.memory,
        }
        if cache == "cold":
            row["page_cache_dropped"] = row["share_in_page_cache_before"] <= COLD_SHARE
        if name == LIMIT:
            return row | {
                f"{part}_s": figures.spread([one["parts_s"][part] for one in found]) for part in PARTS
            }
        return row | {
            "peak_memory_bytes": max(one["peak_memory_bytes"] for one in found),
            "storage_bytes": figures.spread([one["storage_bytes"] for one in found])["median"],
            "in_stored_order": any(one["in_stored_order"] for one in found),
            "note": self._opened[name]["note"],
        }


def _is_measured(name: str, cache: str) -> bool:
    return cache == "cold" or not KINDS[name].past_cache


def _memory_by_volumes(job: LoaderJob) -> dict[str, int]:
    """Return our loader's peak memory in an epoch of a quarter of the volumes, and of all."""
    peaks = {}
    for count in sorted({max(job.batch, job.volumes // 4 // job.batch * job.batch), job.volumes}):
        with ReaderProcess(OURS, dataclasses.replace(job, volumes=count)) as process:
            process.ask("open")
            peaks[str(count)] = process.ask("epoch")["peak_memory_bytes"]
    return peaks


def _storage(data: Path, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the file system of the data, and the speed of the limit's cold reads."""
    mounts = [
        part for part in psutil.disk_partitions(all=True) if data.resolve().is_relative_to(part.mountpoint)
    ]
    under = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    cold = [
        row["stored_bytes"] / row["read_s"]["median"]
        for row in rows
        if row["reader"] == LIMIT and row["cache"] == "cold"
    ]
    return {
        "memory_bytes": psutil.virtual_memory().total,
        "file_system": under.fstype if under else "unknown",
        "cold_read_bytes_per_s": max(cold) if cold else None,
    }


def _rotated(names: list[str], by: int) -> list[str]:
    by %= max(1, len(names))
    return names[by:] + names[:by]
