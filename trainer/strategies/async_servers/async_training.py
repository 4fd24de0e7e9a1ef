"""Asynchronous training as server 0 sees it: workers send updates; this process evaluates and saves.

At an epoch's end, and where a checkpoint is due, workers wait for each other and for server 0: exactly the
steps before it are done then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.config import RunConfig, ServerConfig
from trainer.planning.communication import Flow
from trainer.planning.exchange import Exchange
from trainer.strategies.async_servers.async_coordinator import Coordinator
from trainer.strategies.async_servers.async_server import Held, Shard
from trainer.strategies.async_servers.async_state import VariableShares
from trainer.strategies.async_servers.staleness import Histogram
from trainer.strategies.base import Plan, Share
from trainer.strategies.compiled_update import Updated
from trainer.strategies.data import DistributedModel
from trainer.strategies.learner import Setup, TrainingStart, Update

_LOOK_S = 0.2


class AsyncLearner(DistributedModel):
    """The network on server 0, which applies updates that others compute.

    Args:
        setup: its world is that of server 0 alone.
        coordinator: of the workers.
        servers: how many there are.
        accumulation: micro-batches per update.

    Attributes:
        shard: what server 0 itself holds.
        held: of each further server, where its part is in our network and optimizer.
    """

    def __init__(self, setup: Setup, coordinator: Coordinator, *, servers: int, accumulation: int) -> None:
        # No step is computed here that could be timed.
        super().__init__(dataclasses.replace(setup, timeline=None))
        model, optimizer = setup.model, setup.optimizer
        shares = VariableShares(model, servers)
        self.shard = Shard(model, optimizer, shares, 0)
        self.held = {server: Held(model, optimizer, shares, server) for server in range(1, servers)}
        self._coordinator, self._accumulation, self._servers = coordinator, accumulation, servers
        self._start: TrainingStart | None = None
        self._step = 0
        self._is_collected = True

    def begin(self, start: TrainingStart) -> None:
        """Give further servers their state, and let workers go."""
        self._start, self._step = start, start.step
        for server, held in self.held.items():
            self._coordinator.give_state(server, held.save())
        if start.staging is not None:
            self._coordinator.send_staging(start.staging)
        self._coordinator.begin(self.shard, start.step, start.last_step)

    def update(self, batches: Iterator[tuple[Any, Any, Any]]) -> Update | None:
        """Serve until the next update; `batches` is not used."""
        start, coordinator = self._start, self._coordinator
        if start is None:
            raise RuntimeError("begin was not called")
        if coordinator.is_in_step:
            nearest = [(self._step // period + 1) * period for period in start.saves_every]
            coordinator.allow(min(start.last_step, *nearest))
        applied = None
        while applied is None:
            if start.is_stopping() or coordinator.stop_asked:
                coordinator.allow(coordinator.nearest_limit)
                if coordinator.is_in_step:
                    return None
            # Workers that hang end themselves, and lifelines tell who is gone.
            start.beat("waiting for workers")
            applied = coordinator.next_update(_LOOK_S)
        self._is_collected = False
        self._step += 1
        self._sums.assign_add(tf.constant(applied.sums, tf.float64))
        return Update([applied.loss] * self._accumulation, applied.samples)

    @property
    def is_in_step(self) -> bool:
        """Whether no worker computes a step that others have not seen."""
        return self._coordinator.is_in_step

    def settle(self) -> None:
        """Bring what further servers hold into our network and optimizer."""
        if self._is_collected:
            return
        if self._start is not None:
            self._start.beat("collecting the servers' state")
        for server, vector in self._coordinator.collect().items():
            self.held[server].restore(vector)
        self._is_collected = True

    def updated(self) -> Updated:
        """Return what server 0 holds; the others update as it does."""
        return self.shard.updated()

    def passes(self) -> None:
        """Return None. Workers compute them."""

    def gather(self) -> keras.Model:
        """Return the ordinary Keras model with all servers' parts."""
        self.settle()
        return self.model

    def columns(self) -> dict[str, Any]:
        """Return the epoch's staleness."""
        return {"staleness": self._coordinator.take_histogram().to_json()}

    def facts(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the staleness over the whole run's epochs, and facts about this session's workers."""
        whole = Histogram()
        for row in rows:
            whole.merge(Histogram(row.get("staleness", {}).get("updates")))
        facts = self._coordinator.facts()
        return {
            "mode": "async",
            "servers": self._servers,
            "world_size": len(facts["updates_per_worker"]),
            "staleness": whole.to_json(),
            **facts,
        }


# How asynchronous training is divided.


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
        bytes_per_server=VariableShares(model, server.count).bytes(model),
        staleness=server.staleness,
    )
