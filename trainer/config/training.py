"""How the network is trained: optimizer, learning rate, transfer, ring, when to stop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from trainer.config.section import LARGEST_SEED, MAY_GROW, MOST_SAMPLES, Section, may_change, number
from trainer.config.strategy import DIVIDING, AnyStrategy, RingConfig, named
from trainer.errors import ConfigError


class OptimizerConfig(Section):
    """The update rule. Clipping acts on the reduced gradient: the same at any world size."""

    name: Literal["sgd", "adam", "adamw"] = Field("adamw", description="update rule")
    learning_rate: float = Field(
        3e-3,
        gt=0,
        le=1000,
        strict=False,
        description="learning rate for `schedule.reference_batch` samples a step",
    )
    momentum: float = Field(0.9, ge=0, lt=1, strict=False, description="momentum of sgd")
    weight_decay: float | None = Field(
        None,
        ge=0,
        le=1000,
        strict=False,
        description="decoupled weight decay; default: the update rule's own",
    )
    clip_norm: float | None = Field(
        None, gt=0, le=1e9, strict=False, description="largest norm of each gradient"
    )
    clip_value: float | None = Field(
        None, gt=0, le=1e9, strict=False, description="largest absolute entry of a gradient"
    )
    global_clip_norm: float | None = Field(
        None, gt=0, le=1e9, strict=False, description="largest norm of all gradients together"
    )
    ema: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="momentum of an exponential moving average of the weights, used for evaluation",
    )

    @model_validator(mode="after")
    def _clips_one_way(self) -> OptimizerConfig:
        if sum(v is not None for v in (self.clip_norm, self.clip_value, self.global_clip_norm)) > 1:
            raise ValueError("give at most one of clip_norm, clip_value, global_clip_norm")
        return self


@dataclass(frozen=True)
class FallKind:
    """What is said of how the rate falls; `trainer.strategies.schedule` computes it.

    Attributes:
        words: for the methods of a paper, with keys of the section in braces.
        ends: whether it depends on the number of epochs, so that those that are added have its last rate.
    """

    words: str
    ends: bool = False


FALLS = {
    "constant": FallKind("stayed constant"),
    "cosine": FallKind("fell along a cosine to {final} of its highest value", ends=True),
    "step": FallKind("fell by {step_factor} after epochs {step_epochs}"),
}
if TYPE_CHECKING:
    FallName = str
else:
    FallName = Literal[tuple(FALLS)]


class ScheduleConfig(Section):
    """The learning rate over time (scaling and warm-up: Goyal et al., arXiv 1706.02677, section 2).

    With `--resume train.epochs=N` for a larger N, every update that the run was to have so far keeps its
    rate. `extend: tail`: under `cosine` the added epochs have the rate of the last of these updates, which is
    a little above `final`; `constant` and `step` do not depend on the number of epochs, and go on as they are
    written. `extend: restart`: the added epochs are a cycle of their own, with the rates of a run of these
    epochs alone, warm-up included; `step_epochs` count from its beginning. Both follow from the epochs that
    the run was to have each time that it was made longer, so that it can be done again. N cannot be smaller.
    """

    name: FallName = Field("cosine", description="how the rate falls after the warm-up")
    scale: Literal["none", "linear", "sqrt"] = Field(
        "none", description="multiply the rate by global_batch / reference_batch, or by its square root"
    )
    reference_batch: int = Field(
        8, ge=1, le=MOST_SAMPLES, description="the global batch that optimizer.learning_rate was chosen for"
    )
    warmup_epochs: float = Field(
        1.0, ge=0, le=1_000_000, strict=False, description="the rate rises linearly over so many epochs"
    )
    final: float = Field(
        0.0, ge=0, le=1, strict=False, description="cosine: last rate as a share of the highest"
    )
    step_epochs: tuple[Annotated[int, Field(ge=0, le=1_000_000)], ...] = Field(
        (), strict=False, description="step: epochs after which the rate falls"
    )
    step_factor: float = Field(0.1, gt=0, le=1, strict=False, description="step: factor of each fall")
    extend: Literal["tail", "restart"] = may_change(
        "tail",
        description="epochs that `--resume train.epochs=` adds: at the last rate, or a new cycle",
    )


class EarlyStoppingConfig(Section):
    """Stop when a metric has not improved; all ranks agree on the epoch."""

    metric: str = Field(
        "val_loss",
        description="a column of metrics.jsonl; `val_loss`: what is trained, on the validation split",
    )
    patience: int = Field(5, ge=1, le=1_000_000, description="epochs without improvement")
    min_delta: float = Field(0.0, ge=0, le=1e9, strict=False, description="smaller changes do not count")


class TransferConfig(Section):
    """Start from weights that were learned elsewhere.

    Patterns are those of the shell, over names of layers: `stage1_*`, `head_*`, `*`.
    """

    start_from: Path | None = Field(
        None,
        strict=False,
        description="a finished run's folder or a .keras file, whose layers of the same name and shape are "
        "copied; or published weights (MedicalNet, SFCN) in a .safetensors file",
    )
    freeze: tuple[str, ...] = Field((), strict=False, description="layers that are not trained")
    rate_factors: dict[str, Annotated[float, BeforeValidator(number), Field(gt=0, le=1e6, strict=False)]] = (
        Field(
            {}, description="layers and the factor of their learning rate; the first matching pattern counts"
        )
    )


class TrainConfig(Section):
    """One training."""

    epochs: int = Field(
        80, ge=1, le=1_000_000, description="passes over the training subjects", json_schema_extra=MAY_GROW
    )
    global_batch: int = Field(
        8, ge=1, le=MOST_SAMPLES, description="samples per update, over all ranks and micro-batches"
    )
    accumulation: int = Field(
        1, ge=1, le=10_000, description="micro-batches per update on each rank; gradients are reduced once"
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    transfer: TransferConfig = TransferConfig()
    strategy: AnyStrategy = Field(
        RingConfig(), description="how training is divided over processes; a name alone will do"
    )
    # A short name of `train.strategy.plan`.
    plan: Path | None = Field(None, strict=False, exclude=True)
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = Field(
        "float32", description="type of the arithmetic"
    )
    sync_batch_norm: bool = Field(
        True, description="batch norm over the global micro-batch instead of each rank's own"
    )
    class_weights: bool = Field(
        True, description="weigh each class by the inverse of its share in the training split"
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, strict=False, description="share of the target given to all classes"
    )
    early_stopping: EarlyStoppingConfig | None = None
    deterministic: bool = Field(
        False, description="bit-for-bit repeatable operations, slower on some devices"
    )
    compile: Literal["auto", "xla", "none"] = may_change(
        "auto",
        description="what XLA compiles, the optimizer's update and on GPUs forward and backward: what gets "
        "faster, all or nothing",
    )
    threads: int | None = may_change(
        None,
        ge=1,
        le=1024,
        description="compute threads per rank; default: the host's cores divided by its ranks",
    )
    seed: int = Field(
        0,
        ge=0,
        le=LARGEST_SEED,
        description="seed of initial weights, sample order, augmentation and dropout",
    )

    @field_validator("strategy", mode="before")
    @classmethod
    def _may_be_a_name(cls, value: Any) -> Any:
        return named(value)

    @model_validator(mode="after")
    def _plan_is_of_the_strategy(self) -> TrainConfig:
        """Read `train.plan` as `train.strategy.plan`."""
        if self.plan is not None:
            if "plan" not in type(self.strategy).model_fields:
                raise ValueError(
                    f"plan is for strategies that divide the network: {', '.join(DIVIDING)}; "
                    f"the strategy is {self.strategy.name}"
                )
            if getattr(self.strategy, "plan", None) is not None:
                raise ValueError("plan is given twice; give it in train.strategy only")
            own = {name: getattr(self.strategy, name) for name in type(self.strategy).model_fields}
            try:
                joined = type(self.strategy).model_validate(own | {"plan": self.plan})
            except ValidationError as error:  # what goes with no plan is given, too
                raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
            object.__setattr__(self, "strategy", joined)
            object.__setattr__(self, "plan", None)
        return self


def micro_batch(global_batch: int, *, world_size: int, accumulation: int) -> int:
    """Return samples of one micro-batch on each rank.

    Raises:
        ConfigError: the global batch cannot be divided evenly.
    """
    parts = world_size * accumulation
    if global_batch % parts:
        nearest = max(1, round(global_batch / parts)) * parts
        raise ConfigError(
            f"train.global_batch: {global_batch} samples cannot be shared evenly by {world_size} rank(s) "
            f"with {accumulation} micro-batch(es) each.",
            cure=f"For example train.global_batch={nearest}.",
            key="train.global_batch",
        )
    return global_batch // parts
