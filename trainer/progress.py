"""Show progress on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

LINE_EVERY_S = 30.0


class Counting:
    """Shows how many of how many are done, how fast, and the time left.

    It appears with the first `show`, so that errors of the arguments stand alone.

    Args:
        what: is done, such as "importing".
        unit: of what is counted, in the plural.
    """

    def __init__(self, what: str, unit: str) -> None:
        self._what, self._unit = what, unit
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(unit),
            TimeRemainingColumn(),
            console=Console(stderr=True, highlight=False),
            disable=not sys.stderr.isatty(),
        )
        self._task: Any = None
        self._first = 0
        self._began = self._spoke = time.monotonic()

    def __enter__(self) -> Counting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._bar.stop()

    def show(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done; items done at the first call do not count for the speed."""
        now = time.monotonic()
        if self._task is None:
            self._first, self._began = done, now
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=total, completed=done)
        self._bar.update(self._task, total=total, completed=done)
        if self._bar.disable and now - self._spoke >= LINE_EVERY_S and done > self._first:
            self._spoke = now
            left = timedelta(seconds=round((now - self._began) / (done - self._first) * (total - done)))
            self.note(f"{self._what}: {done} of {total} {self._unit}, {left} left")

    def note(self, message: str, style: str = "") -> None:
        """Print a line above the bar."""
        self._bar.console.print(Text(message, style=style), soft_wrap=True)


class _Rate(ProgressColumn):
    """Units per second, or per hour where they take long."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        slow = task.speed < 0.1
        return Text(f"{task.speed * 3600:.0f} {self._unit}/h" if slow else f"{task.speed:.1f} {self._unit}/s")


# Takes how many of how many are done.
Show = Callable[[int, int], None]


class Reporter:
    """Base of what shows the progress of a run; by itself it shows nothing: for all ranks but the first."""

    def note(self, message: str) -> None:
        """Show a message, once."""

    @contextlib.contextmanager
    def counting(self, what: str, unit: str) -> Iterator[Show]:
        """Count something besides training in a context; yields what to call with (done, total)."""
        yield lambda done, total: None

    def start(self, step: int, steps: int) -> None:
        """Begin training at `step` of `steps`."""

    def step(self, step: int, epoch: int, samples_per_second: float) -> None:
        """Show that a step is done."""

    def epoch(self, row: dict[str, Any]) -> None:
        """Show that an epoch is done, with its row of metrics.jsonl."""


class Shown(Reporter):
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

    @contextlib.contextmanager
    def counting(self, what: str, unit: str) -> Iterator[Show]:
        """Show another bar in place of the one of the training."""
        self._bar.stop()
        try:
            with Counting(what, unit) as counting:
                yield counting.show
        finally:
            self._bar.start()

    def start(self, step: int, steps: int) -> None:
        """Set the length of the bar."""
        self._bar.start_task(self._task)
        self._bar.update(self._task, total=steps, completed=step)
        self._began = (step, steps, time.monotonic())

    def step(self, step: int, epoch: int, samples_per_second: float) -> None:
        """Move the bar; without one, print a line now and then."""
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
        """Print a line for the epoch."""
        names = {"loss": "loss", "accuracy": "accuracy", "mae": "MAE", "dice": "Dice", "val_loss": "val loss"}
        names |= {"val_auc": "val AUC", "val_mae": "val MAE", "val_dice": "val Dice"}
        parts = [f"{name} {row[key]:.4f}" for key, name in names.items() if row.get(key) is not None]
        self.note(f"epoch {row['epoch']:>3}  {'  '.join(parts)}  {row['samples_per_second']:.1f} samples/s")
