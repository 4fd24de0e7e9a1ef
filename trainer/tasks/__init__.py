"""What a network learns: a class, a number, or a label for every voxel. One file per task.

    task = tasks.build(config, shards)          # which classes, which target
    task = task.fitted(split.train)             # what is learned from the training split alone

Loader, loop and evaluation ask the task what differs between them. Its name is for run.json, and for those
who read it there, such as the report.
"""

from __future__ import annotations

from trainer.config import RunConfig
from trainer.data.shards.shards import ShardSet
from trainer.tasks import sides
from trainer.tasks.base import Task
from trainer.tasks.classification import Classification
from trainer.tasks.regression import Regression
from trainer.tasks.segmentation import Segmentation

__all__ = ["Classification", "Regression", "Segmentation", "Task", "build"]


def build(config: RunConfig, shards: ShardSet) -> Task:
    """The task of a run.

    Raises:
        CohortError: the shard set does not hold what the task needs.
        ConfigError: labels tell left from right, and nobody said whether volumes are mirrored.
    """
    if config.task.name == "regression":
        regression = Regression.build(config, shards)
        sides.check(config, [regression.target])
        return regression
    if config.task.name == "segmentation":
        segmentation = Segmentation.build(config, shards)
        sides.check(config, segmentation.classes)
        return segmentation
    classification = Classification.build(config, shards)
    sides.check(config, classification.told_apart)
    return classification
