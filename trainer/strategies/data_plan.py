"""How data parallelism divides an update over ranks, and what it sends."""

from __future__ import annotations

import dataclasses

import keras

from trainer.strategies.base import Plan
from trainer.strategies.reduction import Algorithm, sent_by_busiest


@dataclasses.dataclass(frozen=True)
class DataPlan(Plan):
    """How an update is divided by data parallelism.

    Attributes:
        bytes_per_update: bytes that the busiest rank sends per update; on the ring all send as many, 2(n-1)/n
            of the gradients on the wire.
        algorithm: how gradients are combined, as `train.strategy.algorithm` names it.
    """

    bytes_per_update: int
    algorithm: str = "ring"

    def __str__(self) -> str:
        who = "each rank" if self.algorithm in ("ring", "segmented-ring") else f"a rank ({self.algorithm})"
        sent = (
            f"{self.bytes_per_update / 2**20:.2f} MiB sent by {who}"
            if self.world_size > 1
            else "nothing sent"
        )
        return (
            f"data parallel: {self.global_batch} samples per update = {self.world_size} rank(s) x "
            f"{self.accumulation} micro-batch(es) x {self.micro_batch}; "
            f"{self.parameters:,} parameters on every rank; {sent} per update"
        )


def plan(
    model: keras.Model,
    *,
    world_size: int,
    global_batch: int,
    accumulation: int = 1,
    compression: str = "none",
    algorithm: Algorithm = "ring",
) -> DataPlan:
    """Divide a global batch over ranks.

    Raises:
        ConfigError: it cannot be divided evenly.
    """
    found = DataPlan.of(
        model,
        "data",
        world_size=world_size,
        global_batch=global_batch,
        accumulation=accumulation,
        bytes_per_update=0,
        algorithm=algorithm,
    )
    width = 4 if compression == "none" else 2
    sent = round(sent_by_busiest(algorithm, world_size) * found.parameters * width)
    return dataclasses.replace(found, bytes_per_update=sent)
