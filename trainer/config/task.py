"""What a network learns, and from which loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from trainer.config.section import Section


@dataclass(frozen=True)
class LossKind:
    """What is said of a loss; `trainer.tasks.losses` computes it.

    Attributes:
        tasks: that take it.
        words: that name all that decides the function, with keys of the section in braces.
    """

    tasks: tuple[str, ...]
    words: str


# A task's usual one is the first that it takes.
LOSSES = {
    "dice_cross_entropy": LossKind(("segmentation",), "soft Dice loss plus cross entropy"),
    "cross_entropy": LossKind(("classification", "segmentation"), "cross entropy"),
    "focal": LossKind(("classification",), "focal loss (gamma {focal_gamma:g})"),
    "squared": LossKind(("regression",), "squared error"),
    "absolute": LossKind(("regression",), "absolute error"),
    "huber": LossKind(("regression",), "Huber loss (delta {huber_delta:g})"),
}
if TYPE_CHECKING:
    LossName = str
else:
    LossName = Literal[tuple(LOSSES)]


class TaskConfig(Section):
    """What the network learns, and from which loss.

    Sources of the losses: focal, Lin et al. (arXiv 1708.02002); Dice, Milletari et al. (arXiv 1606.04797).
    """

    name: Literal["classification", "regression", "segmentation"] = Field(
        "classification", description="a class, a number such as age, or a label for every voxel"
    )
    target: Literal["label", "age"] | None = Field(
        None, description="regression: the number to predict; `label` is that of the import. Default: `age`"
    )
    loss: LossName | None = Field(
        None,
        description="default: `cross_entropy`; regression: `squared`; segmentation: `dice_cross_entropy`",
    )
    focal_gamma: float = Field(
        2.0, ge=0, le=100, strict=False, description="focal: weight of the hard samples"
    )
    huber_delta: float = Field(
        1.0,
        gt=0,
        le=1000,
        strict=False,
        description="huber: error from which the loss is linear, in standard deviations",
    )

    @model_validator(mode="after")
    def _belongs_together(self) -> TaskConfig:
        fitting = [name for name, loss in LOSSES.items() if self.name in loss.tasks]
        if self.loss is not None and self.loss not in fitting:
            raise ValueError(f"loss {self.loss!r} is not for {self.name}, which takes {', '.join(fitting)}")
        if self.target is not None and self.name != "regression":
            raise ValueError(f"target is for regression, not for {self.name}")
        return self

    @property
    def chosen_loss(self) -> str:
        """The loss, or the task's usual one."""
        return self.loss or next(name for name, loss in LOSSES.items() if self.name in loss.tasks)

    @property
    def loss_in_words(self) -> str:
        """The loss with its options, without what classes and labels add to it."""
        return LOSSES[self.chosen_loss].words.format(**self.model_dump())
