"""Configurations that say how batches are read, for the tests of the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.config import AugmentConfig, DataConfig, RunConfig, TrainConfig


def reading(
    seed: int = 0,
    global_batch: int = 4,
    accumulation: int = 1,
    augment: AugmentConfig | None = None,
    **data: Any,
) -> RunConfig:
    """Without augmentation, unless it is given; `data` are keys of the section of that name."""
    return RunConfig(
        name="test",
        data=DataConfig(shards=Path("shards"), augment=augment or AugmentConfig(), **data),
        train=TrainConfig(seed=seed, global_batch=global_batch, accumulation=accumulation),
    )
