"""What the main process of a run does otherwise where other processes compute its steps."""

from __future__ import annotations

from typing import Any, Protocol

import keras

from trainer.config import RunConfig
from trainer.loop import Training
from trainer.preparation import Data
from trainer.strategies.data import DistributedModel
from trainer.telemetry.timeline import Timeline
from trainer.world import World


class Serving(Protocol):
    """How the main process of asynchronous training takes part; see `parameter_server.async_run`."""

    def learner(
        self,
        config: RunConfig,
        data: Data,
        model: keras.Model,
        optimizer: keras.Optimizer,
        world: World,
        timeline: Timeline,
    ) -> DistributedModel:
        """As `preparation.learner`."""

    def plan(self, config: RunConfig, model: keras.Model, optimizer: keras.Optimizer, world: World) -> Any:
        """As `preparation.plan`."""

    def training(self, *parts: Any) -> Training:
        """The loop: as `Training`."""

    def facts(self) -> dict[str, Any]:
        """What run.json says of the other processes, by key."""
