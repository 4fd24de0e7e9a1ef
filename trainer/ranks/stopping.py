"""When to end a run: a signal that asks for it, or a metric that no longer improves.

SIGUSR2 and SIGTERM set a flag; so does the first Ctrl-C while steps are taken, where no mpirun takes it for
all ranks and sends them SIGTERM. Slurm may signal one rank or all; the ranks ask each other about twice a
second (docs/decisions/0005) and stop at the same step. mpirun forwards SIGUSR2 to its ranks; on SIGTERM it
kills them within a second, without grace, so schedulers should send SIGUSR2.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from trainer.config import EarlyStoppingConfig
from trainer.errors import ConfigError, Stopped

SIGNALS = (signal.SIGUSR2, signal.SIGTERM)

_ANSWER = b"\nstopping; the state is saved first (Ctrl-C again ends at once)\n"

# Figures that are the better the smaller; all others are the better the larger.
FALLING = ("loss", "cross_entropy", "mae")


class StopRequest:
    """A context in which SIGUSR2 and SIGTERM ask for a stop instead of ending the process.

    `requested` is true on this rank from the first signal on; handlers are put back at the end.

    Args:
        interrupt: Ctrl-C asks for a stop, too; a second one ends the process as usual.
        word: is written as soon as SIGTERM asks, which mpirun follows by SIGKILL after a second.
    """

    def __init__(self, *, interrupt: bool = False, word: str = "") -> None:
        self.requested = False
        self._word = word.encode()
        self._answers = interrupt
        self._numbers = (*SIGNALS, signal.SIGINT) if interrupt else SIGNALS
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in self._numbers:
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def by_interrupt(self, *, answers: bool) -> Iterator[None]:
        """Return a context in which Ctrl-C asks for a stop; a second one ends the process as usual.

        Args:
            answers: say so at the first one, on one of the ranks that get it.
        """
        self._answers = answers
        previous = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self.requested:
                raise KeyboardInterrupt
            if self._answers:
                # Not through sys.stderr: whoever is writing to it now may be interrupted here.
                os.write(2, _ANSWER)
        if number == signal.SIGTERM and not self.requested:
            os.write(2, self._word)
        self.requested = True


@contextlib.contextmanager
def ended_by_signals(stopped: Stopped) -> Iterator[None]:
    """Return a context in which SIGUSR2 and SIGTERM end the work where it is, as Ctrl-C does.

    Raises:
        Stopped: `stopped`, for these signals.
    """
    signalled = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal signalled
        signalled = True
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    except KeyboardInterrupt:
        if not signalled:
            raise
        raise stopped from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def improves(metric: str, value: float | None, best: float | None, min_delta: float = 0.0) -> bool:
    """Return whether `value` beats `best` by more than `min_delta`; losses and errors fall, all else rises.

    A missing or non-finite value never improves; the first finite one always does.
    """
    if value is None or not math.isfinite(value):
        return False
    if best is None:
        return True
    return value < best - min_delta if is_falling(metric) else value > best + min_delta


def is_falling(metric: str) -> bool:
    """Return whether a column of metrics.jsonl is the better the smaller."""
    return metric.removeprefix("val_") in FALLING


def columns(score: str, monitored: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of metrics.jsonl that rate an epoch, from a task's `score` and `monitored`."""
    return ("loss", score, *(f"val_{name}" for name in monitored))


@dataclass(frozen=True)
class Patience:
    """The best epoch so far and how many epochs have passed since; a value, so that it can be saved.

    Every rank holds the same metrics, reduced over all of them, so every rank comes to the same decision.
    """

    metric: str = "val_loss"
    limit: int | None = None
    min_delta: float = 0.0
    best: dict[str, Any] | None = None
    waited: int = 0

    @classmethod
    def from_config(
        cls, config: EarlyStoppingConfig | None, metrics: Sequence[str], *, has_validation: bool
    ) -> Patience:
        """Early stopping as configured; without it, only the best epoch is remembered.

        Args:
            config: of the run, if it stops early at all.
            metrics: columns of metrics.jsonl that tell how good an epoch is; see `columns`.
            has_validation: whether there are validation subjects.

        Raises:
            ConfigError: there is no such metric, or it needs a validation split.
        """
        if config is None:
            return cls("val_loss" if has_validation else "loss")
        if config.metric not in metrics:
            close = difflib.get_close_matches(config.metric, metrics, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"train.early_stopping.metric: {config.metric!r} is not a metric of an epoch.{hint}",
                cure=f"Choose one of {', '.join(metrics)}.",
            )
        if config.metric.startswith("val_") and not has_validation:
            raise ConfigError(
                f"train.early_stopping.metric: {config.metric!r} needs a validation split; there is none.",
                cure="Set data.split.validation above 0, or train.early_stopping.metric=loss",
            )
        return cls(config.metric, config.patience, config.min_delta)

    def resumed(self, best: dict[str, Any] | None, waited: int) -> Patience:
        """Return the same rule with the state of a checkpoint.

        Args:
            best: row of the best epoch so far.
            waited: epochs without improvement since.
        """
        return dataclasses.replace(self, best=best, waited=waited)

    def after(self, row: dict[str, Any]) -> Patience:
        """Return the state after one more epoch with the metrics `row`."""
        best = None if self.best is None else self.best[self.metric]
        improved = improves(self.metric, row[self.metric], best, self.min_delta)
        return dataclasses.replace(
            self, best=row if improved else self.best, waited=0 if improved else self.waited + 1
        )

    def told(self, loss: str) -> str:
        """Return which epoch is the best one and whether training waits for a better one, as a sentence.

        Args:
            loss: what is trained, in words.
        """
        what = f" ({loss}) on" if self.metric.removeprefix("val_") == "loss" else " on"
        split = "validation" if self.metric.startswith("val_") else "training"
        order = "lowest" if is_falling(self.metric) else "highest"
        told = f"the best epoch is that of the {order} {self.metric}{what} the {split} split"
        if self.limit is None:
            return told
        return f"{told}; training stops after {self.limit} epoch(s) without a better one"

    @property
    def exhausted(self) -> bool:
        """Whether training should end now."""
        return self.limit is not None and self.waited >= self.limit
