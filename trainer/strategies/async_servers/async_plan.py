"""How asynchronous training is divided."""

from __future__ import annotations

import dataclasses

import keras

from trainer.config import RunConfig, ServerConfig
from trainer.planning.communication import Flow
from trainer.planning.exchange import Exchange
from trainer.strategies.async_servers.async_state import Shares
from trainer.strategies.base import Plan, Share


@dataclasses.dataclass(frozen=True)
class AsyncPlan(Plan):
    """How the steps are divided: each is one worker's alone, with a whole global batch.

    Attributes:
        servers: number of servers.
        bytes_per_server: that a worker sends each server for an update, and as many it receives; what is not
            trained (moving statistics) included, envelopes of messages not.
        staleness: the bound, or None.
        mode: of the servers.
    """

    servers: int
    bytes_per_server: tuple[int, ...]
    staleness: int | None
    mode: str = "async"

    def share(self, rank: int) -> Share | None:
        """Nothing: server 0, which runs the loop, leaves reading to the workers."""
        return None

    def exchange(self) -> Exchange:
        """Return what one worker exchanges for its step: weights of all servers, then its gradients.

        Processes are the workers, then the servers; worker 0 stands for any. Others' messages, which share
        the servers' links at times that depend on the workers, are not in it.
        """
        held = self.bytes_per_server
        pull = tuple(Flow(self.world_size + server, 0, size) for server, size in enumerate(held))
        push = tuple(Flow(0, self.world_size + server, size) for server, size in enumerate(held))
        processes = self.world_size + len(held)
        return Exchange((pull, push), processes, parts=1, counted=sum(held), of_all=False)

    def evaluation_share(self, rank: int) -> Share:
        """Everything: server 0 evaluates alone."""
        return Share(0, 1)


def plan(config: RunConfig, server: ServerConfig, model: keras.Model, workers: int) -> AsyncPlan:
    """Give whole steps to workers and whole variables to servers.

    Raises:
        ConfigError: the batch cannot be divided, or there are more servers than variables.
    """
    train = config.train
    return AsyncPlan.of(
        model,
        "parameter-server",
        world_size=workers,
        parts=1,
        global_batch=train.global_batch,
        accumulation=train.accumulation,
        servers=server.count,
        bytes_per_server=Shares(model, server.count).bytes(model),
        staleness=server.staleness,
    )
