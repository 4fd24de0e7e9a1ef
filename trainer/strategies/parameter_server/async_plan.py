"""How asynchronous training is divided."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np

from trainer.config import RunConfig, micro_batch
from trainer.strategies.parameter_server.async_state import Shares


@dataclasses.dataclass(frozen=True)
class AsyncPlan:
    """How the steps are divided: each is one worker's alone.

    Attributes:
        world_size: number of workers.
        servers: number of servers.
        global_batch: samples per update, all of them one worker's.
        accumulation: micro-batches per update.
        micro_batch: samples per micro-batch.
        parameters: trainable numbers.
        bytes_per_server: that a worker sends each server for an update, and as many it receives; what is not
            trained (moving statistics) included, envelopes of messages not.
        staleness: the bound, or None.
    """

    world_size: int
    servers: int
    global_batch: int
    accumulation: int
    micro_batch: int
    parameters: int
    bytes_per_server: tuple[int, ...]
    staleness: int | None
    strategy: str = "parameter-server"
    mode: str = "async"


def plan(config: RunConfig, model: keras.Model, workers: int) -> AsyncPlan:
    """Give whole steps to workers and whole variables to servers.

    Raises:
        ConfigError: the batch cannot be divided, or there are more servers than variables.
    """
    train = config.train
    return AsyncPlan(
        world_size=workers,
        servers=train.server.count,
        global_batch=train.global_batch,
        accumulation=train.accumulation,
        micro_batch=micro_batch(train.global_batch, world_size=1, accumulation=train.accumulation),
        parameters=sum(int(np.prod(v.shape)) for v in model.trainable_variables),
        bytes_per_server=Shares(model, train.server.count).bytes(model),
        staleness=train.server.staleness,
    )
