"""What a network learns: a class, a number, or a label for every voxel. One file per task.

    task = tasks.build(config, shards)          # which classes, which target
    task = task.fitted(split.train)             # what is learned from the training split alone

Loader, loop and evaluation ask the task what differs between them. Its name is for run.json, and for those
who read it there, such as the report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainer.config import RunConfig
from trainer.data.shards.shards import ShardSet
from trainer.errors import ConfigError
from trainer.tasks.base import Task
from trainer.tasks.classification import Classification
from trainer.tasks.regression import Regression
from trainer.tasks.segmentation import Segmentation

__all__ = ["Classification", "Regression", "Segmentation", "Task", "build"]


def build(config: RunConfig, shards: ShardSet) -> Task:
    """Build the task of a run.

    Raises:
        CohortError: the shard set does not hold what the task needs.
        ConfigError: labels name a side, and data.augment does not say whether volumes are mirrored.
    """
    if config.task.name == "regression":
        regression = Regression.build(config, shards)
        check_sides(config, [regression.target])
        return regression
    if config.task.name == "segmentation":
        segmentation = Segmentation.build(config, shards)
        check_sides(config, segmentation.classes)
        return segmentation
    classification = Classification.build(config, shards)
    check_sides(config, classification.volume_classes)
    return classification


_SIDE = re.compile(r"(?<![a-z])(left|right|lh|rh)(?![a-z])", re.IGNORECASE)


def check_sides(config: RunConfig, names: Iterable[str]) -> None:
    """Require data.augment where names of labels name a side and volumes would be mirrored by default.

    Args:
        config: of the run. One that has `data.augment` has said it, whatever it says there.
        names: of classes, of classes in label maps, or of the number that is learned.

    Raises:
        ConfigError: a mirrored volume may no longer fit its label.
    """
    if "augment" in config.data.model_fields_set or not config.data.augment.flip:
        return
    sided = [name for name in names if _SIDE.search(name)]
    if sided:
        raise ConfigError(
            f"The label {sided[0]!r} seems to name a side of the body, and training volumes are mirrored "
            "where data.augment is not given.",
            cure="Set data.augment.flip=false (do not mirror) or data.augment.flip=true (mirror).",
            key="data.augment.flip",
        )
