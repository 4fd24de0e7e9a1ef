"""Progress for people, on standard error of rank 0: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 30.0


class Reporter(Protocol):
    """What the loop tells about itself."""

    def note(self, message: str) -> None:
        """Something worth knowing, once."""

    def start(self, step: int, steps: int) -> None:
        """Training begins at `step` of `steps`."""

    def step(self, step: int, epoch: int, samples_per_second: float) -> None:
        """A step is done."""

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch is done, with its row of metrics.jsonl."""


class Silent:
    """For all ranks but the first, and for scripts."""

    def note(self, message: str) -> None:
        """Say nothing."""

    def start(self, step: int, steps: int) -> None:
        """Say nothing."""

    def step(self, step: int, epoch: int, samples_per_second: float) -> None:
        """Say nothing."""

    def epoch(self, row: dict[str, Any]) -> None:
        """Say nothing."""


class Shown:
    """A rich bar with samples per second and time left on a terminal; plain lines in a log file."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]:.1f} samples/s"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not sys.stderr.isatty(),
        )
        self._spoke = time.monotonic()
        self._began = (0, 0, time.monotonic())
        self._task = self._bar.add_task("train", total=None, start=False, epoch=1, speed=0.0)

    def __enter__(self) -> Shown:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def note(self, message: str) -> None:
        """Print a line above the bar."""
        self._console.print(message, markup=False)

    def start(self, step: int, steps: int) -> None:
        """Set the length of the bar."""
        self._bar.start_task(self._task)
        self._bar.update(self._task, total=steps, completed=step)
        self._began = (step, steps, time.monotonic())

    def step(self, step: int, epoch: int, samples_per_second: float) -> None:
        """Move the bar; without one, say a line now and then."""
        self._bar.update(self._task, completed=step, epoch=epoch, speed=samples_per_second)
        now = time.monotonic()
        if self._bar.disable and now - self._spoke >= LINE_EVERY_S:
            self._spoke = now
            first, steps, began = self._began
            left = timedelta(seconds=round((now - began) / (step - first) * (steps - step)))
            self.note(
                f"epoch {epoch:>3}  step {step}/{steps}  {samples_per_second:.1f} samples/s  {left} left"
            )

    def epoch(self, row: dict[str, Any]) -> None:
        """One line per epoch."""
        names = {"loss": "loss", "accuracy": "accuracy", "val_loss": "val loss", "val_auc": "val AUC"}
        parts = [f"{name} {row[key]:.4f}" for key, name in names.items() if row.get(key) is not None]
        self.note(f"epoch {row['epoch']:>3}  {'  '.join(parts)}  {row['samples_per_second']:.1f} samples/s")
