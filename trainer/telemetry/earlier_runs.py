"""What earlier runs of a configuration took for an epoch, from their run folders alone."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.config import RunConfig
from trainer.errors import CingulumError, InputError
from trainer.ranks.stopping import improves
from trainer.run_folder import record
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord
from trainer.telemetry import json_lines

# Keys that another run of the same configuration may have otherwise: they change no epoch's duration by much.
_OTHERWISE = ("train.epochs", "train.seed", "data.split.fold", "data.split.seed")
# A slow file system shall not hold up a submission.
_LOOKING_S = 0.5
# Epochs that are counted at most, the newest.
_EPOCHS = 100


@dataclass(frozen=True)
class Processes:
    """What trained, or would.

    Attributes:
        count: of processes, servers included.
        hosts: that they are on.
        on_gpus: whether they have GPUs.
    """

    count: int
    hosts: int
    on_gpus: bool


@dataclass(frozen=True)
class Pace:
    """What an epoch took in an earlier run.

    Attributes:
        run: its folder.
        epoch_s: median seconds of an epoch, evaluation included.
        epochs: that this is the median of.
    """

    run: Path
    epoch_s: float
    epochs: int


def pace(config: RunConfig, processes: Processes) -> Pace | None:
    """Return what an epoch took in the newest run of a configuration on as many processes and hosts.

    It is looked for among the folders in `runs`, and those of a cross-validation of this name. What cannot be
    read is passed over.

    Args:
        config: of the run.
        processes: that would train.
    """
    end = time.monotonic() + _LOOKING_S
    for folder in _newest_first([*_within(config.runs), *_within(config.folder)]):
        if time.monotonic() > end:
            return None
        try:
            earlier = _of(folder, config, processes)
        except (CingulumError, OSError, KeyError, TypeError, ValueError):
            continue
        if earlier is not None:
            return earlier
    return None


def epochs_done(folder: RunFolder) -> int:
    """Return the epochs that a run has behind it; 0 where that cannot be read."""
    try:
        return int(json_lines.read(folder.metrics)[-1]["epoch"])
    except (CingulumError, OSError, LookupError, TypeError, ValueError):
        return 0


def epochs_to(folder: RunFolder, metric: str, value: float) -> int:
    """Return the first epoch of a run in which a metric was as good as a value.

    Args:
        folder: of the run.
        metric: a column of metrics.jsonl, such as `val_auc`.
        value: that is to be reached.

    Raises:
        InputError: the run has no such metric, or never reached it.
        RunError: metrics.jsonl cannot be read.
    """
    rows = [row for row in json_lines.read(folder.metrics) if isinstance(row.get(metric), int | float)]
    if not rows:
        raise InputError(f"{folder.path}: has no {metric}.", cure="Name a column of its metrics.jsonl.")
    reached = [row for row in rows if row[metric] == value or improves(metric, row[metric], value)]
    if not reached:
        best = functools.reduce(
            lambda a, b: b if improves(metric, b, a) else a, (row[metric] for row in rows)
        )
        raise InputError(
            f"{folder.path}: {metric} came to {best:g}, not {value:g}.", cure=f"Ask for {best:g}."
        )
    return int(reached[0]["epoch"])


def _of(folder: RunFolder, config: RunConfig, processes: Processes) -> Pace | None:
    run = RunRecord.read(folder.run)
    # Servers on hosts of their own are no ranks.
    apart = run.servers if getattr(config.train.strategy, "placement", "") == "separate" else []
    count = (run.world_size or 0) + len(apart)
    if Processes(count, len({*run.hosts, *apart}), any(run.gpus)) != processes:
        return None
    if set(record.differences(record.load_config(folder), config)) - set(_OTHERWISE):
        return None
    rows = json_lines.read(folder.metrics)
    # run.json tells of the last start alone. In its first epoch the network was traced.
    last = [row for row in rows if row.get("start") == rows[-1].get("start")]
    seconds = [float(row["seconds"]) for row in (last[1:] or last)][-_EPOCHS:]
    return Pace(folder.path, statistics.median(seconds), len(seconds)) if seconds else None


def _within(place: Path) -> Iterator[RunFolder]:
    try:
        yield from (RunFolder(path) for path in place.iterdir() if not path.name.startswith("."))
    except OSError:
        return


def _newest_first(folders: list[RunFolder]) -> list[RunFolder]:
    """Those that have trained an epoch."""
    found = []
    for folder in folders:
        try:
            found.append((folder.metrics.stat().st_mtime, folder))
        except OSError:
            continue
    return [folder for _, folder in sorted(found, key=lambda one: -one[0])]
