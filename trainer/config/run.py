"""RunConfig: everything that decides a run, as one typed and checked value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from trainer.config.data import DataConfig
from trainer.config.section import MAY_CHANGE, MONTH_S, Section, may_change
from trainer.config.task import TaskConfig
from trainer.config.training import TrainConfig


class TelemetryConfig(Section):
    """What a run records of its time and its hosts, in `telemetry/` of the run folder."""

    enabled: bool = may_change(
        True, description="time the parts of each step, and record the load of the hosts"
    )
    trace: bool = may_change(
        False, description="write also `telemetry/trace.json`, for chrome://tracing or ui.perfetto.dev"
    )


# Arguments of a network's function that a run decides.
_DECIDED = ("name", "input_shape", "outputs", "sync_batch_norm", "covariates", "dense")


class ModelConfig(Section):
    """Which network."""

    name: str = Field("small", description="a registered network, or 'module:function' of your own")
    width: int | None = Field(
        None, ge=1, le=4096, description="channels of the first stage; default: the network's own"
    )
    options: dict[str, Any] = Field({}, description="further arguments of the network's function")

    @model_validator(mode="after")
    def _says_nothing_twice(self) -> ModelConfig:
        if "width" in self.options:
            raise ValueError("options.width: set model.width instead")
        if decided := next((name for name in _DECIDED if name in self.options), None):
            raise ValueError(f"options.{decided}: leave it out; it follows from the data and the task")
        return self


class CheckpointConfig(Section):
    """When the state is saved."""

    every_epochs: int = may_change(
        1, ge=1, le=1_000_000, description="save at the end of every so many epochs, and at the last"
    )
    every_steps: int | None = may_change(
        None, ge=1, le=10**9, description="save also after every so many steps"
    )
    keep: int = may_change(
        3, ge=1, le=10_000, description="number of newest checkpoints kept, besides the best epoch's"
    )


class GuardConfig(Section):
    """Checks while a run is going on."""

    divergence_every_steps: int | None = may_change(
        None,
        ge=1,
        le=10**9,
        description="compare weights over ranks every so many steps, besides every epoch's end",
    )
    timeout_s: float = may_change(
        300.0,
        gt=0,
        le=MONTH_S,
        strict=False,
        description="seconds without progress of a rank after which the run ends",
    )


class RunConfig(Section):
    """Everything that decides a run. The same value and the same shards give the same weights."""

    # File systems take 255 bytes; what is made of the name, such as a job's files, adds some.
    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=200,
        description="name of the run folder",
        json_schema_extra=MAY_CHANGE,
    )
    runs: Path = may_change(Path("runs"), strict=False, description="folder of the run folders")
    task: TaskConfig = TaskConfig()
    data: DataConfig
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guards: GuardConfig = GuardConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @model_validator(mode="after")
    def _classes_are_told_apart(self) -> RunConfig:
        if self.task.name == "classification":
            return self
        for key, is_set in (
            ("data.classes", self.data.classes is not None),
            ("data.sampling=balanced", self.data.sampling == "balanced"),
            ("train.label_smoothing", self.train.label_smoothing > 0),
        ):
            if is_set:
                raise ValueError(f"{key} is for classification; the task is {self.task.name}")
        return self

    @model_validator(mode="after")
    def _strategy_can_do_it(self) -> RunConfig:
        self.train.strategy.check(self)
        return self

    @property
    def trained_loss(self) -> str:
        """What training minimises, in words that name all that decides the function but the data."""
        name = self.task.loss_in_words
        if self.task.name == "regression":
            return f"{name} in standard deviations of the training targets"
        if self.task.name == "segmentation":
            return name
        smoothing, equal = self.train.label_smoothing, self.data.sampling == "balanced"
        parts = [f"labels smoothed by {smoothing:g}"] if smoothing else []
        if equal or self.train.class_weights:
            parts.append("classes shown equally often" if equal else "classes weighted equally")
        return f"{name} with {' and '.join(parts)}" if parts else name

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.runs / self.name
