"""Where the time of an asynchronous worker's steps goes: its lines of `telemetry/`, written by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from trainer.config.run import TelemetryConfig
from trainer.ranks import world as worlds
from trainer.telemetry import json_lines, parts, records
from trainer.telemetry.recorder import FLUSH_S
from trainer.telemetry.timeline import Timeline


class WorkerTimes:
    """One worker's steps. No collective: a worker that dies takes at most its last seconds' lines along.

    Args:
        config: what is asked for.
        folder: the run folder.
        worker: its number.
        staging: folder of the lease on it, once the main process has told.
        deterministic: see `Timeline`.
    """

    def __init__(
        self,
        config: TelemetryConfig,
        folder: Path,
        worker: int,
        staging: Callable[[], Path | None],
        *,
        deterministic: bool = False,
    ) -> None:
        self.timeline = Timeline(config.enabled, deterministic=deterministic)
        self._path, self._staging = records.rank_file(folder, worker), staging
        self._file: json_lines.LineFile | None = None
        self._flushed = time.monotonic()

    def step(self, step: int, seconds: float) -> None:
        """Close a step: its gradient has been sent.

        Args:
            step: of the global order, from 0.
            seconds: since the last one was sent.
        """
        if not self.timeline.enabled:
            return
        self.timeline.close_step(step + 1, seconds)
        if self._file is None:
            self._open()
        if time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write what is not yet written; where that fails, training goes on without."""
        if self._file is None or not self.timeline.enabled:
            return
        self._flushed = time.monotonic()
        try:
            self._file.append([records.line(one) for one in parts.steps(self.timeline.take())])
        except OSError as error:
            self._end(error)

    def _open(self) -> None:
        staging = self._staging()
        if staging is None:
            return
        try:
            self._file = json_lines.LineFile(self._path, staging)
        except FileNotFoundError:  # another start has taken the run over: the main process says so
            self.timeline.enabled = False
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> None:
        self.timeline.enabled = False
        worlds.report(f"warning: {self._path}: cannot be written ({error.strerror}); telemetry ends here.")
