"""The learning rate over time: scaled to the global batch, warmed up, then falling.

Linear scaling and gradual warm-up follow Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677,
sections 2.1 and 2.2.
"""

from __future__ import annotations

import math
from typing import Any

import keras

from trainer.config import OptimizerConfig, ScheduleConfig


def peak(schedule: ScheduleConfig, optimizer: OptimizerConfig, global_batch: int) -> float:
    """Return the rate after the warm-up, scaled to the global batch."""
    ratio = global_batch / schedule.reference_batch
    return optimizer.learning_rate * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[schedule.scale]


def learning_rate(
    schedule: ScheduleConfig,
    optimizer: OptimizerConfig,
    global_batch: int,
    steps_per_epoch: int,
    epochs: int,
    *,
    accumulation: int = 1,
) -> RunSchedule:
    """Return the schedule: the rate at every step of a run.

    Args:
        schedule: how it rises and falls.
        optimizer: holds the rate for `schedule.reference_batch`.
        global_batch: samples per update.
        steps_per_epoch: updates per epoch.
        epochs: epochs of the whole run.
        accumulation: micro-batches per update: Keras asks for the rate by number of micro-batch.
    """
    return RunSchedule(
        schedule.name,
        peak(schedule, optimizer, global_batch),
        warmup_steps=round(schedule.warmup_epochs * steps_per_epoch),
        total_steps=steps_per_epoch * epochs,
        final=schedule.final,
        drop_steps=[epoch * steps_per_epoch for epoch in schedule.step_epochs],
        drop_factor=schedule.step_factor,
        accumulation=accumulation,
    )


@keras.saving.register_keras_serializable("cingulum")
class RunSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to `peak` over `warmup_steps` updates, then `constant`, `cosine` or `step`.

    Update s (from 0) of the warm-up has the rate peak * (s + 1) / warmup_steps. A cosine reaches
    final * peak with the update after the last.
    """

    def __init__(
        self,
        kind: str,
        peak: float,
        *,
        warmup_steps: int = 0,
        total_steps: int = 1,
        final: float = 0.0,
        drop_steps: list[int] | None = None,
        drop_factor: float = 1.0,
        accumulation: int = 1,
    ) -> None:
        self.kind = kind
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.final = final
        self.drop_steps = list(drop_steps or [])
        self.drop_factor = drop_factor
        self.accumulation = accumulation

    def __call__(self, step: Any) -> Any:
        """The rate (float32 scalar) of Keras' iteration `step`, which counts micro-batches."""
        ops = keras.ops
        update = ops.cast(ops.floor_divide(step, self.accumulation), "float32")
        rate = self.peak * self._fallen(update)
        if self.warmup_steps == 0:
            return rate
        rising = self.peak * (update + 1.0) / self.warmup_steps
        return ops.where(update < self.warmup_steps, rising, rate)

    def _fallen(self, update: Any) -> Any:
        """Share of the peak that is left at an update after the warm-up."""
        ops = keras.ops
        if self.kind == "cosine":
            length = max(1, self.total_steps - self.warmup_steps)
            progress = ops.clip((update - self.warmup_steps) / length, 0.0, 1.0)
            return self.final + (1.0 - self.final) * 0.5 * (1.0 + ops.cos(math.pi * progress))
        left = ops.ones_like(update)
        for drop in self.drop_steps if self.kind == "step" else ():
            left = left * ops.where(update >= drop, self.drop_factor, 1.0)
        return left

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make an equal schedule."""
        return {
            "kind": self.kind,
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
            "final": self.final,
            "drop_steps": self.drop_steps,
            "drop_factor": self.drop_factor,
            "accumulation": self.accumulation,
        }
