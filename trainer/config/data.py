"""What is learned, from which data, divided how."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from trainer.config.augment import AugmentConfig
from trainer.config.section import Section


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
    prefetch: int = Field(2, ge=0, description="micro-batches read ahead, where `read_ahead` leaves room")
    read_ahead: int = Field(
        1024,
        ge=0,
        description="memory for batches read ahead, per rank, in MiB; the one in use is not counted",
    )
    evaluation_batch: int = Field(
        4,
        ge=1,
        description="volumes per rank and forward pass in evaluation; figures must not depend on the number "
        "of ranks, so this does not either",
    )
    reader_threads: int = Field(2, ge=1, description="threads that read and decode, per rank")
