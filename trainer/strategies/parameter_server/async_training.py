"""The loop of asynchronous training, on server 0: the ordinary one, whose steps other processes compute.

Epochs, evaluation, early stopping, checkpoints and guards are those of `trainer.loop`. At an epoch's end, and
where a checkpoint is due, workers wait for each other and for it: exactly the steps before it are done then.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from trainer.loop import Training
from trainer.strategies.data import DistributedModel
from trainer.strategies.parameter_server.async_coordinator import Coordinator
from trainer.strategies.parameter_server.async_server import Held, Shard
from trainer.strategies.parameter_server.async_state import Shares
from trainer.strategies.parameter_server.staleness import Histogram
from trainer.tasks.base import PerSample
from trainer.world import World

_LOOK_S = 0.2


class ServedModel(DistributedModel):
    """The network as server 0 has it: evaluates; others train it.

    Attributes:
        shard: what server 0 itself holds.
        held: of each further server, where its part is in our network and optimizer.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.Optimizer,
        world: World,
        loss: PerSample,
        score: PerSample,
        servers: int,
    ) -> None:
        super().__init__(model, optimizer, world, loss, score)
        shares = Shares(model, servers)
        self.shard = Shard(model, optimizer, shares, 0)
        self.held = {server: Held(model, optimizer, shares, server) for server in range(1, servers)}

    def add(self, sums: tuple[float, float, float]) -> None:
        """Count what a worker has seen: sums of losses, scores and samples."""
        self._sums.assign_add(tf.constant(sums, tf.float64))


@dataclass
class AsyncTraining(Training):
    """See above.

    Attributes:
        coordinator: of the workers.
    """

    coordinator: Coordinator = None  # type: ignore[assignment]  # follows fields with defaults

    def __post_init__(self) -> None:
        super().__post_init__()
        self._is_collected = True

    def run(self, batches: Any) -> None:
        """As `Training.run`; `batches` is not used."""
        for server, held in self._served.held.items():
            self.coordinator.give_state(server, held.save())
        if self.lease is not None:
            self.coordinator.tell_staging(self.lease.staging)
        self.coordinator.begin(self._served.shard, self.cursor.step, self.last_step)
        super().run(())

    def facts(self) -> dict[str, Any]:
        """Adds staleness, over the whole run's epochs, and the workers of this session."""
        whole = Histogram()
        for row in self.cursor.rows:
            whole.merge(Histogram(row.get("staleness", {}).get("updates")))
        found = self.coordinator.facts()
        return {
            "strategy": "parameter-server",
            "mode": "async",
            "servers": self.config.train.server.count,
            "world_size": len(found["updates_per_worker"]),
            "staleness": whole.to_json(),
            **found,
        }

    def save(self) -> None:
        """As `Training.save`, of what all servers hold."""
        self._collect()
        super().save()

    def _step(self, source: Any) -> float:
        """Serve until the next update."""
        if self.coordinator.is_in_step:
            self.coordinator.allow(self._next_limit())
        began, update = self.clock.now(), None
        while update is None:
            if self.stop.requested or self.coordinator.stop_asked:
                self.coordinator.allow(self.coordinator.nearest_limit)
                if self.coordinator.is_in_step:
                    self._end_early()
            # Workers that hang end themselves, and lifelines tell who is gone.
            self.watchdog.beat("waiting for workers")
            update = self.coordinator.next_update(_LOOK_S)
        self._is_collected = False
        self._losses.extend([update.loss] * self.config.train.accumulation)
        self._served.add(update.sums)
        self.cursor = dataclasses.replace(self.cursor, step=self.cursor.step + 1)
        seconds = self.clock.now() - began
        self.clock.add_step(int(update.sums[2]), seconds)
        epoch = (self.cursor.step - 1) // self.cursor.steps_per_epoch
        self.reporter.step(self.cursor.step, epoch + 1, self.clock.epoch_speed)
        return seconds

    def _next_limit(self) -> int:
        step, every = self.cursor.step, self.config.checkpoint.every_steps
        periods = [self.cursor.steps_per_epoch, *([every] if every else [])]
        return min(self.last_step, *((step // period + 1) * period for period in periods))

    def _talk(self, seconds: float) -> tuple[bool, int]:
        """Look for NaN; a request to stop is followed when all workers are in step."""
        _, steps = super()._talk(seconds)
        return False, steps

    def _close_epoch(self) -> None:
        self._collect()
        super()._close_epoch()

    def _more_columns(self) -> dict[str, Any]:
        return {"staleness": self.coordinator.take_histogram().to_json()}

    def _collect(self) -> None:
        """Bring what the further servers hold into our network and optimizer."""
        if self._is_collected:
            return
        self.watchdog.beat("collecting the servers' state")
        for server, vector in self.coordinator.collect().items():
            self._served.held[server].restore(vector)
        self._is_collected = True

    @property
    def _served(self) -> ServedModel:
        if not isinstance(self.learner, ServedModel):
            raise TypeError("asynchronous training needs a ServedModel")
        return self.learner
