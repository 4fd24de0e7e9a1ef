"""RunConfig: a YAML file and `key=value` overrides, made into one typed and checked value.

An unknown key is an error with a suggestion; so is a value of the wrong type or out of range.
`docs/reference/config.md` is made from the descriptions in this file.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainer.errors import ConfigError

Share = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """A part of the configuration; immutable, unknown keys refused, types not bent."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SplitConfig(Section):
    """How subjects are divided. No subject is ever in two splits."""

    validation: float = Field(0.15, ge=0, lt=1, description="share of subjects used to choose the best epoch")
    test: float = Field(0.2, ge=0, lt=1, description="share of subjects held out until the end")
    folds: int | None = Field(
        None, ge=2, description="k-fold cross-validation: the test split is one of k folds"
    )
    fold: int = Field(0, ge=0, description="which of the folds is held out, from 0")
    seed: int = Field(0, ge=0, description="seed of the division")
    stratify: tuple[Literal["label", "site", "sex", "age"], ...] = Field(
        ("label", "site", "sex", "age"),
        strict=False,
        description="what the splits should be alike in; `label` comes first, whatever the order",
    )

    @model_validator(mode="after")
    def _leaves_something_to_train_on(self) -> SplitConfig:
        held_out = 1 / self.folds if self.folds else self.test
        if self.validation + held_out >= 1:
            raise ValueError("validation and test together leave no subject to train on")
        if self.folds is not None and self.fold >= self.folds:
            raise ValueError(
                f"fold {self.fold} does not exist: {self.folds} folds are numbered 0 to {self.folds - 1}"
            )
        return self


class AugmentConfig(Section):
    """Random changes of training volumes, a pure function of seed, epoch and sample."""

    flip: bool = Field(False, description="mirror left and right in half of the samples")
    shift: int = Field(0, ge=0, description="largest shift along each axis, in voxels")
    scale: float = Field(0.0, ge=0, lt=1, description="largest relative change of intensity")
    noise: float = Field(
        0.0, ge=0, description="standard deviation of added Gaussian noise, in units of the normalised volume"
    )


class TaskConfig(Section):
    """What the network learns, and from which loss.

    Sources of the losses: focal, Lin et al. (arXiv 1708.02002); Dice, Milletari et al. (arXiv 1606.04797).
    """

    name: Literal["classification", "regression", "segmentation"] = Field(
        "classification", description="a class, a number such as age, or a label for every voxel"
    )
    target: Literal["label", "age"] | None = Field(
        None,
        description="regression: which number; `label` is what the set was imported with. Default: `age`",
    )
    loss: Literal["cross_entropy", "focal", "dice_cross_entropy", "squared", "absolute", "huber"] | None = (
        Field(
            None,
            description="default: `cross_entropy`; regression: `squared`; segmentation: `dice_cross_entropy`",
        )
    )
    focal_gamma: float = Field(2.0, ge=0, strict=False, description="focal: weight of the hard samples")
    huber_delta: float = Field(
        1.0, gt=0, strict=False, description="huber: where it turns linear, in standard deviations"
    )

    @model_validator(mode="after")
    def _belongs_together(self) -> TaskConfig:
        fitting = LOSSES[self.name]
        if self.loss is not None and self.loss not in fitting:
            raise ValueError(f"loss {self.loss!r} is not for {self.name}, which takes {', '.join(fitting)}")
        if self.target is not None and self.name != "regression":
            raise ValueError(f"target is for regression; {self.name} learns what the set holds")
        return self

    @property
    def chosen_loss(self) -> str:
        """The loss, or the task's usual one."""
        return self.loss or LOSSES[self.name][0]


# The losses of each task, its usual one first.
LOSSES: dict[str, tuple[str, ...]] = {
    "classification": ("cross_entropy", "focal"),
    "regression": ("squared", "absolute", "huber"),
    "segmentation": ("dice_cross_entropy", "cross_entropy"),
}


class DataConfig(Section):
    """What to train on."""

    shards: Path = Field(description="folder of the shard set (cingulum import makes one)", strict=False)
    classes: tuple[str, ...] | None = Field(
        None,
        strict=False,
        min_length=2,
        description="labels to tell apart, in this order; default: all labels in the set, sorted",
    )
    covariates: tuple[Literal["age", "sex"], ...] = Field(
        (), strict=False, description="what the network is told besides the volume"
    )
    sampling: Literal["natural", "balanced"] = Field(
        "natural",
        description="`balanced`: every class comes equally often in an epoch, small ones several times",
    )
    split: SplitConfig = SplitConfig()
    leaks: Literal["stop", "warn", "ignore"] = Field(
        "stop", description="what a subject or an image in two splits does to the run"
    )
    augment: AugmentConfig = AugmentConfig()
    prefetch: int = Field(2, ge=0, description="batches read ahead")
    evaluation_batch: int = Field(
        4,
        ge=1,
        description="volumes per rank and forward pass in evaluation; figures must not depend on the number "
        "of ranks, so this does not either",
    )
    reader_threads: int = Field(2, ge=1, description="threads that read and decode, per rank")


class ModelConfig(Section):
    """Which network."""

    name: str = Field("resattnet18", description="a registered network, or 'module:function' of your own")
    width: int | None = Field(
        None, ge=1, description="channels of the first stage; default: the network's own"
    )
    options: dict[str, Any] = Field({}, description="further arguments of the network's function")


class OptimizerConfig(Section):
    """How weights follow gradients. Clipping acts on the reduced gradient: the same at any world size."""

    name: Literal["sgd", "adam", "adamw"] = Field("adamw", description="update rule")
    learning_rate: float = Field(
        1e-3, gt=0, strict=False, description="for `schedule.reference_batch` samples a step"
    )
    momentum: float = Field(0.9, ge=0, lt=1, strict=False, description="of sgd")
    weight_decay: float | None = Field(
        None, ge=0, strict=False, description="decoupled weight decay; default: the update rule's own"
    )
    clip_norm: float | None = Field(None, gt=0, strict=False, description="largest norm of each gradient")
    clip_value: float | None = Field(
        None, gt=0, strict=False, description="largest absolute entry of a gradient"
    )
    global_clip_norm: float | None = Field(
        None, gt=0, strict=False, description="largest norm of all gradients together"
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


class ScheduleConfig(Section):
    """The learning rate over time (scaling and warm-up: Goyal et al., arXiv 1706.02677, section 2)."""

    name: Literal["constant", "cosine", "step"] = Field(
        "cosine", description="how the rate falls after the warm-up"
    )
    scale: Literal["none", "linear", "sqrt"] = Field(
        "none", description="multiply the rate by global_batch / reference_batch, or by its square root"
    )
    reference_batch: int = Field(
        8, ge=1, description="the global batch that optimizer.learning_rate was chosen for"
    )
    warmup_epochs: float = Field(
        1.0, ge=0, strict=False, description="the rate rises linearly over so many epochs"
    )
    final: float = Field(
        0.0, ge=0, le=1, strict=False, description="cosine: last rate as a share of the highest"
    )
    step_epochs: tuple[int, ...] = Field(
        (), strict=False, description="step: epochs after which the rate falls"
    )
    step_factor: float = Field(0.1, gt=0, le=1, strict=False, description="step: by how much")


class EarlyStoppingConfig(Section):
    """Stop when a metric has not improved; all ranks agree on the epoch."""

    metric: str = Field("val_loss", description="a column of metrics.jsonl")
    patience: int = Field(5, ge=1, description="epochs without improvement")
    min_delta: float = Field(0.0, ge=0, strict=False, description="smaller changes do not count")


class TransferConfig(Section):
    """Start from weights that were learned elsewhere.

    Patterns are those of the shell, over names of layers: `stage1_*`, `head_*`, `*`.
    """

    start_from: Path | None = Field(
        None,
        strict=False,
        description="a finished run's folder or a .keras file; layers of the same name and shape are taken",
    )
    freeze: tuple[str, ...] = Field((), strict=False, description="layers that are not trained")
    rate_factors: dict[str, Annotated[float, Field(gt=0, strict=False)]] = Field(
        {}, description="layers and what their learning rate is multiplied by; the first that fits counts"
    )


class RingConfig(Section):
    """How gradients are combined over ranks."""

    reduction: Literal["buckets", "per_tensor", "grouped"] = Field(
        "buckets", description="buckets leave in reverse layer order while the backward pass runs"
    )
    bucket_mb: float = Field(4.0, gt=0, strict=False, description="size of a bucket, in MiB of gradients")
    compression: Literal["none", "float16", "bfloat16"] = Field(
        "none", description="type of gradients on the wire"
    )


class TrainConfig(Section):
    """One training."""

    epochs: int = Field(10, ge=1, description="passes over the training subjects")
    global_batch: int = Field(8, ge=1, description="samples per update, over all ranks and micro-batches")
    accumulation: int = Field(
        1, ge=1, description="micro-batches per update on each rank; gradients are reduced once"
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    transfer: TransferConfig = TransferConfig()
    ring: RingConfig = RingConfig()
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
    threads: int | None = Field(
        None, ge=1, description="compute threads per rank; default: the host's cores divided by its ranks"
    )
    seed: int = Field(0, ge=0, description="of initial weights, sample order, augmentation and dropout")


class CheckpointConfig(Section):
    """When the state is saved."""

    every_epochs: int = Field(1, ge=1, description="save at the end of every so many epochs, and at the last")
    every_steps: int | None = Field(None, ge=1, description="save also after every so many steps")
    keep: int = Field(3, ge=1, description="newest checkpoints kept; the best epoch's is kept besides")


class GuardConfig(Section):
    """What is watched while it runs."""

    divergence_every_steps: int | None = Field(
        None, ge=1, description="compare weights over ranks this often, besides every epoch's end"
    )
    timeout_s: float = Field(
        300.0, gt=0, strict=False, description="a rank that makes no progress for so long ends the run"
    )


class RunConfig(Section):
    """Everything that decides a run. The same value and the same shards give the same weights."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="name of the run folder")
    runs: Path = Field(Path("runs"), strict=False, description="folder of the run folders")
    task: TaskConfig = TaskConfig()
    data: DataConfig
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guards: GuardConfig = GuardConfig()

    @model_validator(mode="after")
    def _classes_are_told_apart(self) -> RunConfig:
        if self.task.name == "classification":
            return self
        for key, given in (
            ("data.classes", self.data.classes is not None),
            ("data.sampling=balanced", self.data.sampling == "balanced"),
            ("train.label_smoothing", self.train.label_smoothing > 0),
        ):
            if given:
                raise ValueError(f"{key} is for classification; the task is {self.task.name}")
        return self

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.runs / self.name


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply `a.b=value` overrides.

    Raises:
        ConfigError: the file is missing or no YAML mapping, a key is unknown, a value is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.", cure="An example: examples/demo.yaml") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        cure = "Name a YAML file, such as examples/demo.yaml"
        raise ConfigError(f"{path}: cannot be read as a text file ({reason}).", cure=cure) from None
    return parse(text, overrides, source=str(path))


def parse(text: str, overrides: Sequence[str] = (), *, source: str = "configuration") -> RunConfig:
    """Like `load`, from text; `source` names it in errors."""
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{source}: holds no keys.", cure="It starts with `name: my-run`; see examples/demo.yaml."
        )
    for override in overrides:
        _apply_override(tree, override)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(source, problem) for problem in error.errors())) from None


def dump(config: RunConfig) -> str:
    """The whole configuration, defaults included, as YAML that `parse` reads back to an equal value."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def fields(section: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key with its pydantic field, in order: for suggestions and for the reference page."""
    for name, field in section.model_fields.items():
        nested = section_of(field.annotation)
        yield prefix + name, field
        if nested is not None:
            yield from fields(nested, f"{prefix}{name}.")


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The Section that an annotation such as `X` or `X | None` holds."""
    members = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((m for m in members if isinstance(m, type) and issubclass(m, BaseModel)), None)


def _apply_override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(
            f"override {override!r}: is not of the form key=value.", cure="For example: train.epochs=3"
        )
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"override {override!r}: the value is not YAML.") from None
    *parents, last = key.split(".")
    node = tree
    for parent in parents:
        child = node.setdefault(parent, {})
        if child is None:
            child = node[parent] = {}
        if not isinstance(child, dict):
            raise ConfigError(
                f"override {override!r}: {parent!r} is a single value and has no keys of its own."
            )
        node = child
    node[last] = value


def _explain(source: str, problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = [key for key, _ in fields()]
        # The last word is what was mistyped; a right word in a wrong place is found by its full name.
        close = difflib.get_close_matches(where, known, n=1, cutoff=0.6) or [
            key for key in known if key.rsplit(".", 1)[-1] == where.rsplit(".", 1)[-1]
        ]
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return f"{source}: unknown key {where!r}.{hint}"
    if problem["type"] == "missing":
        return f"{source}: {where!r} is missing: it must be given."
    what = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "string_pattern_mismatch":
        what = "Must be letters, digits, '.', '_' and '-', starting with a letter or a digit"
    given = "" if isinstance(problem["input"], dict) else f", not {problem['input']!r}"
    return f"{source}: {f'{where}: ' if where else ''}{what}{given}."
