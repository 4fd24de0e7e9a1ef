"""What a run folder tells of a job: how far it is, how good, its curves and its checkpoints.

The folder may be missing, half written or damaged: then less is told, and nothing fails. Files are read again
when they have changed.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from cingulum.service.schema import Best, Checkpoint, Curves, Measured, ProgressView, RunView
from jobs.job import Job
from trainer.config import RunConfig, yaml_reader
from trainer.errors import CingulumError
from trainer.ranks.stopping import Patience
from trainer.run_folder import checkpoint_checks, crossval_folder, record
from trainer.run_folder.record import RunFolder
from trainer.telemetry import json_lines

Rows = Sequence[Mapping[str, Any]]
# Of a file: nanoseconds since 1970 of its last change, bytes, inode.
Stamp = tuple[int, int, int]
_Value = TypeVar("_Value")

# Of telemetry the newest steps are enough; a line has some 300 bytes.
_TAIL_BYTES = 1 << 19
_MOST_POINTS = 2000
_MOST_KEPT = 2000
# Columns of metrics.jsonl that count, and measure nothing.
COUNTS = ("epoch", "step", "start")
_OF_A_STEP = ("seconds", "input_wait", "forward", "backward", "exposed", "update")


def folder_of(job: Job, task: int) -> RunFolder | None:
    """Return the run folder that a task trains or reads; None: it is about none."""
    if job.spec.run is None or job.spec.kind == "import":
        return None
    folder = Path(job.spec.run)
    if job.spec.kind != "crossval":
        return RunFolder(folder)
    given = dict(zip(job.spec.tasks[task], job.spec.tasks[task][1:], strict=False))
    try:
        return RunFolder(crossval_folder.run(folder, int(given["--fold"]), int(given["--seed"])))
    except (KeyError, ValueError):
        return None


class RunPageFacts:
    """Reads run folders; keeps what it has read until the file changes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Path, str], tuple[object, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, run: RunFolder, *, is_running: bool) -> RunView:
        """Return what the page of a run tells, but for its curves."""
        return RunView(
            folder=text_of(run.path),
            config=self.config_text(run),
            progress=self.progress(run, is_running=is_running),
            best=self.best(run),
            checkpoints=self.checkpoints(run),
            has_report=run.report.is_file(),
            figures=self.figures(run, "test"),
        )

    def figures(self, run: RunFolder, split: str) -> dict[str, Measured]:
        """Return the figures that the evaluation of a split wrote, by name; empty without one."""
        metrics = self.json(run, run.evaluation / f"{split}.json")
        if not isinstance(metrics, dict):
            return {}
        if "subjects" not in metrics and is_inside(run.evaluation / f"{split}.csv", run.path):
            # Imported here: SciPy would cost the start of the service a second.
            from trainer.metrics.comparison import stored_metrics

            metrics = stored_metrics(run, split, metrics)
        return {
            name: Measured(value=value, interval=interval(metrics.get(f"{name}_interval")))
            for name, value in metrics.items()
            if isinstance(value, float) and number(value) is not None
        }

    def strategy(self, run: RunFolder) -> str | None:
        """Return how a step is divided over ranks."""
        config = self.config(run)
        return None if config is None else config.train.strategy.name

    def progress(self, run: RunFolder, *, is_running: bool) -> ProgressView | None:
        """Return how far the run is; None before it has begun."""
        config = self.config(run)
        if config is None:
            return None
        epochs, rows = config.train.epochs, self.rows(run)
        done = int(rows[-1]["epoch"]) if rows else 0
        if run.result.is_file():
            return ProgressView(epoch=done, epochs=epochs, part=1.0)
        per_epoch = rows[-1]["step"] / done if done else None
        step = self._step(run, rows) if is_running else rows[-1]["step"] if rows else 0
        if not per_epoch:
            return ProgressView(epoch=done, epochs=epochs, step=step, part=0.0)
        steps = round(per_epoch * epochs)
        left = None
        seconds = [row["seconds"] for row in rows[-3:] if number(row.get("seconds")) is not None]
        if is_running and seconds:
            left = fmean(seconds) / per_epoch * max(0, steps - step)
        return ProgressView(
            epoch=done, epochs=epochs, step=step, steps=steps, part=min(1.0, step / steps), seconds_left=left
        )

    def best(self, run: RunFolder) -> Best | None:
        """Return the best epoch so far, by the metric that the run itself goes by; of a finished run, the one
        whose weights it keeps.
        """
        config, rows = self.config(run), self.rows(run)
        if config is None or not rows:
            return None
        stopping = config.train.early_stopping
        columns = {"loss", "val_loss", *(key for row in rows for key in row)}
        has_validation = any(key.startswith("val_") for row in rows for key in row)
        try:
            patience = Patience.from_config(stopping, sorted(columns), has_validation=has_validation)
            for row in rows:
                patience = patience.after({patience.metric: None, **row})
        except (CingulumError, TypeError):
            return None
        best: Mapping[str, Any] | None = patience.best
        if (kept := self._kept_epoch(run)) is not None:
            best = next((row for row in rows if row.get("epoch") == kept), best)
        if best is None:
            return None
        values = {key: number(value) for key, value in best.items() if key not in COUNTS}
        found = {key: value for key, value in values.items() if value is not None}
        if patience.metric not in found:
            return None
        return Best(metric=patience.metric, value=found[patience.metric], epoch=best["epoch"], values=found)

    def _kept_epoch(self, run: RunFolder) -> object:
        """The epoch whose weights a finished run keeps; None where it does not say so."""
        result = self.json(run, run.result)
        kept = result.get("kept") if isinstance(result, dict) else None
        return kept.get("epoch") if isinstance(kept, dict) else None

    def curves(self, run: RunFolder) -> Curves:
        """Return what was measured at each epoch, and of each of the newest steps of rank 0."""
        rows = self.rows(run)
        rows = rows[:: math.ceil(len(rows) / _MOST_POINTS) or 1]
        columns = sorted({key for row in rows for key, value in row.items() if number(value) is not None})
        steps = [line for line in self._steps(run) if not line.get("first")][-_MOST_POINTS:]
        return Curves(
            epochs={key: [number(row.get(key)) for row in rows] for key in columns},
            steps={key: [number(line.get(key)) for line in steps] for key in ("step", *_OF_A_STEP)},
        )

    def rows(self, run: RunFolder) -> Rows:
        """Return the rows of metrics.jsonl that can be read."""
        found = self._once(run, run.metrics, json_lines.read) or []
        return [
            row for row in found if isinstance(row.get("epoch"), int) and isinstance(row.get("step"), int)
        ]

    def config_text(self, run: RunFolder) -> str | None:
        """Return config.yaml as it is."""
        return self._once(run, run.config, yaml_reader.read_text)

    def json(self, run: RunFolder, path: Path) -> Any:
        """Return what a JSON file of the run folder holds; None where it cannot be read."""
        return self._once(run, path, record.read_json)

    def checkpoints(self, run: RunFolder) -> list[Checkpoint]:
        """Return the checkpoints of the run, the oldest first."""
        checkpoints = []
        try:
            for path in run.checkpoints.iterdir():
                step = checkpoint_checks.step_of(path)
                if step is not None:
                    size = sum(part.stat().st_size for part in path.iterdir())
                    checkpoints.append(Checkpoint(step=step, time=path.stat().st_mtime, bytes=size))
        except OSError:  # removed meanwhile, or none yet
            pass
        return sorted(checkpoints, key=lambda one: one.step)

    def stamp(self, run: RunFolder) -> tuple[Stamp | None, ...]:
        """Return what changes when there is more to tell, of each file that a page is made of."""
        return tuple(
            stamp_of(path) for path in (run.config, run.metrics, _rank_0(run), run.result, run.report)
        )

    def config(self, run: RunFolder) -> RunConfig | None:
        """Return the configuration, defaults included; None where it cannot be read."""
        return self._once(run, run.config, lambda path: run.read_config(), "parsed")

    def _steps(self, run: RunFolder) -> list[dict[str, Any]]:
        return self._once(run, _rank_0(run), lambda path: json_lines.tail(path, _TAIL_BYTES)) or []

    def _step(self, run: RunFolder, rows: Rows) -> int:
        lines = self._steps(run)
        last = lines[-1].get("step") if lines else None
        return max(last if isinstance(last, int) else 0, rows[-1]["step"] if rows else 0)

    def _once(
        self, run: RunFolder, path: Path, read: Callable[[Path], _Value], what: str = ""
    ) -> _Value | None:
        """Return what `read` returns of the file as it is now; None where that fails, or it is elsewhere."""
        stamp = stamp_of(path)
        if stamp is None:
            return None
        with self._lock:
            known, value = self._kept.get((path, what), (None, None))
        if known != stamp:
            value = None
            with contextlib.suppress(CingulumError, OSError):
                if is_inside(path, run.path) and path.is_file():  # a pipe would keep its reader waiting
                    value = read(path)
            with self._lock:
                self._kept[path, what] = stamp, value
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        return value


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path, with links followed, is within the folder."""
    return path.resolve().is_relative_to(folder.resolve())


def text_of(path: str | Path) -> str:
    """Return a path as text that can be sent: bytes of a name that are no UTF-8 are shown as such."""
    return os.fsencode(path).decode("utf-8", "replace")


def _rank_0(run: RunFolder) -> Path:
    return run.telemetry / "rank-00000.jsonl"


def stamp_of(path: Path) -> Stamp | None:
    """Return what changes with a file; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def number(value: Any) -> float | None:
    """Return a value that is a finite number; else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def interval(bounds: Any) -> tuple[float, float] | None:
    """Return two finite numbers as they are; else None."""
    if isinstance(bounds, list) and len(bounds) == 2 and None not in map(number, bounds):
        return bounds[0], bounds[1]
    return None
