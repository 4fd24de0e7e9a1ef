"""The learning rate over time: scaled to the global batch, warmed up, then falling.

Linear scaling and gradual warm-up follow Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677,
sections 2.1 and 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras

from trainer.config import OptimizerConfig, ScheduleConfig
from trainer.config.training import FALLS


def peak(schedule: ScheduleConfig, optimizer: OptimizerConfig, global_batch: int) -> float:
    """Return the rate after the warm-up, scaled to the global batch."""
    ratio = global_batch / schedule.reference_batch
    return optimizer.learning_rate * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[schedule.scale]


# Cycles of a run's schedule, in epochs: where each begins, and how many it has.
Cycles = Sequence[tuple[int, int]]


def extended(
    cycles: Cycles, epochs: int, longer: int, extend: Literal["tail", "restart"]
) -> tuple[tuple[int, int], ...]:
    """Return the cycles of a run that is made longer; those that it has stay as they are.

    A tail adds none: after its last cycle the schedule stays at that cycle's last rate. A restart adds one
    over the epochs that are new, with a warm-up of its own.

    Args:
        cycles: of the run so far.
        epochs: that it was to have so far; 0 before it has begun.
        longer: epochs that it is to have now.
        extend: what the new ones are.
    """
    if not epochs:
        return ((0, longer),)
    added = [(epochs, longer - epochs)] if extend == "restart" and longer > epochs else []
    return (*cycles, *added)


def learning_rate(
    schedule: ScheduleConfig,
    optimizer: OptimizerConfig,
    global_batch: int,
    steps_per_epoch: int,
    epochs: int,
    *,
    accumulation: int = 1,
    cycles: Cycles | None = None,
) -> RunSchedule:
    """Return the schedule: the rate at every step of a run.

    Args:
        schedule: how it rises and falls.
        optimizer: holds the rate for `schedule.reference_batch`.
        global_batch: samples per update.
        steps_per_epoch: updates per epoch.
        epochs: epochs of the whole run.
        accumulation: micro-batches per update: Keras asks for the rate by number of micro-batch.
        cycles: of a run that was made longer; default: one over all epochs.
    """
    return RunSchedule(
        schedule.name,
        peak(schedule, optimizer, global_batch),
        steps_per_epoch=steps_per_epoch,
        cycles=[(0, epochs)] if cycles is None else cycles,
        warmup_steps=round(schedule.warmup_epochs * steps_per_epoch),
        final=schedule.final,
        drop_steps=[epoch * steps_per_epoch for epoch in schedule.step_epochs],
        drop_factor=schedule.step_factor,
        accumulation=accumulation,
    )


def schedule_of(optimizer: keras.Optimizer) -> RunSchedule | None:
    """Return the schedule of an optimizer that `optimizers.build` made; None for another one's."""
    inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
    return inner._learning_rate if isinstance(inner._learning_rate, RunSchedule) else None


@keras.saving.register_keras_serializable("cingulum")
class RunSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """In each cycle a linear warm-up to `peak` over `warmup_steps` updates, then what `kind` says.

    Update s (from 0) of the warm-up has the rate peak * (s + 1) / warmup_steps. A cosine would reach
    final * peak with the update after a cycle's last; those that come after the cycle have the rate of its
    last update. The other two do not depend on a cycle's length, and go on.

    Attributes:
        cycles: where each begins and how many epochs it has. They may be changed before the first update.
    """

    def __init__(
        self,
        kind: str,
        peak: float,
        *,
        steps_per_epoch: int = 1,
        cycles: Cycles = ((0, 1),),
        warmup_steps: int = 0,
        final: float = 0.0,
        drop_steps: Sequence[int] = (),
        drop_factor: float = 1.0,
        accumulation: int = 1,
    ) -> None:
        self.kind = kind
        self.peak = peak
        self.steps_per_epoch = steps_per_epoch
        self.cycles: Cycles = [(first, epochs) for first, epochs in cycles]
        self.warmup_steps = warmup_steps
        self.final = final
        self.drop_steps = list(drop_steps)
        self.drop_factor = drop_factor
        self.accumulation = accumulation

    def __call__(self, step: Any) -> Any:
        """The rate (float32 scalar) of Keras' iteration `step`, which counts micro-batches."""
        ops = keras.ops
        update = ops.cast(ops.floor_divide(step, self.accumulation), "float32")
        rate = self._of_cycle(update, self.cycles[0][1])
        for begin, epochs in self.cycles[1:]:
            first = begin * self.steps_per_epoch
            rate = ops.where(update < first, rate, self._of_cycle(update - first, epochs))
        return rate

    def at(self, update: int) -> float:
        """Return the rate of an update of the run, from 0."""
        return float(self(update * self.accumulation))

    def _of_cycle(self, update: Any, epochs: int) -> Any:
        """The rate at an update of a cycle, counted from its beginning."""
        ops = keras.ops
        steps = epochs * self.steps_per_epoch
        if FALLS[self.kind].ends:
            update = ops.minimum(update, float(steps - 1))
        rate = self.peak * self._fallen(update, steps)
        if self.warmup_steps == 0:
            return rate
        rising = self.peak * (update + 1.0) / self.warmup_steps
        return ops.where(update < self.warmup_steps, rising, rate)

    def _fallen(self, update: Any, steps: int) -> Any:
        """Return the share of the peak that is left after the warm-up, at an update in a cycle of `steps`."""
        return _LEFT[self.kind](self, update, steps)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make an equal schedule."""
        return {
            "kind": self.kind,
            "peak": self.peak,
            "steps_per_epoch": self.steps_per_epoch,
            "cycles": [list(cycle) for cycle in self.cycles],
            "warmup_steps": self.warmup_steps,
            "final": self.final,
            "drop_steps": self.drop_steps,
            "drop_factor": self.drop_factor,
            "accumulation": self.accumulation,
        }


def _constant(schedule: RunSchedule, update: Any, steps: int) -> Any:
    return keras.ops.ones_like(update)


def _cosine(schedule: RunSchedule, update: Any, steps: int) -> Any:
    length = max(1, steps - schedule.warmup_steps)
    progress = keras.ops.clip((update - schedule.warmup_steps) / length, 0.0, 1.0)
    return schedule.final + (1.0 - schedule.final) * 0.5 * (1.0 + keras.ops.cos(math.pi * progress))


def _step(schedule: RunSchedule, update: Any, steps: int) -> Any:
    left = keras.ops.ones_like(update)
    for drop in schedule.drop_steps:
        left = left * keras.ops.where(update >= drop, schedule.drop_factor, 1.0)
    return left


# By name in `FALLS`: the share of the peak that is left at an update of a cycle of `steps`.
_LEFT: dict[str, Callable[[RunSchedule, Any, int], Any]] = {
    "constant": _constant,
    "cosine": _cosine,
    "step": _step,
}
