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

from trainer.strategies.async_servers.async_coordinator import Coordinator
from trainer.strategies.async_servers.async_server import Held, Shard
from trainer.strategies.async_servers.async_state import Shares
from trainer.strategies.async_servers.staleness import Histogram
from trainer.strategies.data import DistributedModel
from trainer.strategies.learner import Setup, Start, Update

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
        shares = Shares(model, servers)
        self.shard = Shard(model, optimizer, shares, 0)
        self.held = {server: Held(model, optimizer, shares, server) for server in range(1, servers)}
        self._coordinator, self._accumulation, self._servers = coordinator, accumulation, servers
        self._start: Start | None = None
        self._step = 0
        self._is_collected = True

    def begin(self, start: Start) -> None:
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
        found = None
        while found is None:
            if start.is_stopping() or coordinator.stop_asked:
                coordinator.allow(coordinator.nearest_limit)
                if coordinator.is_in_step:
                    return None
            # Workers that hang end themselves, and lifelines tell who is gone.
            start.beat("waiting for workers")
            found = coordinator.next_update(_LOOK_S)
        self._is_collected = False
        self._step += 1
        self._sums.assign_add(tf.constant(found.sums, tf.float64))
        return Update([found.loss] * self._accumulation, found.samples)

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

    def updated(self) -> None:
        """Return None. Each server updates what it holds."""

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
        found = self._coordinator.facts()
        return {
            "mode": "async",
            "servers": self._servers,
            "world_size": len(found["updates_per_worker"]),
            "staleness": whole.to_json(),
            **found,
        }
