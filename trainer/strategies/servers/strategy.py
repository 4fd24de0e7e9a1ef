"""The strategy `parameter-server`, synchronous: what `trainer.strategies.data` is for the ring."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from trainer.config import ServerConfig
from trainer.errors import ConfigError
from trainer.planning.exchange import Exchange
from trainer.ranks.agreement import agree
from trainer.strategies import data as data_parallel
from trainer.strategies import slots as slots_
from trainer.strategies.base import Plan
from trainer.strategies.distributed_optimizer import share_accumulated
from trainer.strategies.guards import average_statistics
from trainer.strategies.learner import Setup
from trainer.strategies.servers import layout
from trainer.strategies.servers.client import Client
from trainer.strategies.servers.job import ServerJob, describe
from trainer.strategies.servers.layout import bytes_per_server
from trainer.strategies.servers.optimizer import leave_updates_to_servers


@dataclasses.dataclass(frozen=True)
class ServerPlan(Plan):
    """How an update is divided between workers, which are the ranks, and servers.

    Bytes are those of one update that cross between two processes: gradients and weights, not the messages'
    envelopes; a colocated server and its own worker exchange none.

    Attributes:
        servers: number of servers.
        placement: `separate` or `colocated`.
        messages: gradients that a worker sends per update, and weights that it gets.
        bytes_per_server: of weights that each server holds.
        worker_sent: bytes that each worker sends per update, and as many it receives.
        server_sent: bytes that each server sends per update, and as many it receives.
        job: what the servers do; too long for plan.json.
    """

    servers: int
    placement: str
    messages: int
    bytes_per_server: tuple[int, ...]
    worker_sent: tuple[int, ...]
    server_sent: tuple[int, ...]
    job: ServerJob = dataclasses.field(repr=False)

    def exchange(self) -> Exchange:
        """Return what one update moves; workers are processes 0 to n-1, separate servers the next."""
        return layout.exchange(
            self.bytes_per_server,
            self.world_size,
            colocated=self.placement == "colocated",
            piece=self.job.piece_bytes,
            messages=self.messages,
        )

    def __str__(self) -> str:
        busiest = max(self.server_sent) / 2**20
        return (
            f"parameter server: {self.global_batch} samples per update = {self.world_size} worker(s) x "
            f"{self.accumulation} micro-batch(es) x {self.micro_batch}; {self.parameters:,} parameters on "
            f"{self.servers} {self.placement} server(s), {busiest:.2f} MiB sent by the busiest per update"
        )


def plan(
    model: keras.Model,
    *,
    world_size: int,
    global_batch: int,
    server: ServerConfig,
    optimizer: keras.Optimizer,
    accumulation: int = 1,
    one_host: bool = False,
) -> ServerPlan:
    """Divide a global batch over workers and the weights over servers; `one_host`: all share one.

    Raises:
        ConfigError: the batch cannot be divided evenly, or servers cannot do what the optimizer does.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    job = describe(inner, model.trainable_variables, server, workers=world_size, one_host=one_host)
    held = bytes_per_server(job.pieces(), job.servers, [v.width for v in job.variables])
    own = held if server.placement == "colocated" else ()
    return ServerPlan.of(
        model,
        "parameter-server",
        world_size=world_size,
        global_batch=global_batch,
        accumulation=accumulation,
        servers=server.count,
        placement=server.placement,
        messages=len(job.bundles()),
        bytes_per_server=held,
        worker_sent=tuple(sum(held) - (own[rank] if rank < len(own) else 0) for rank in range(world_size)),
        server_sent=tuple(size * (world_size - (1 if own else 0)) for size in held),
        job=job,
    )


def build(plan: ServerPlan, setup: Setup) -> ServedModel:
    """Make a model ready to be trained by all workers; the servers get worker 0's weights and state.

    A collective of the workers, within `serving(world)`.

    Args:
        plan: of `plan`; where the world has more servers, the last ones hold nothing.
        setup: the world is that of the workers, with links to servers; the optimizer is a plain Keras one, or
            a `LossScaleOptimizer` around one, and is changed in place.

    Raises:
        ConfigError: the world has fewer servers.
        Agreed: servers cannot do what the optimizer does.
    """
    model, optimizer, world = setup.model, setup.optimizer, setup.world
    links = world.links
    found = 0 if links is None else len(links.servers)
    if links is None or found < plan.servers:
        raise ConfigError(
            f"The world has {found} parameter server(s), not {plan.servers}.",
            cure="Start the world with as many servers as the configuration has (Members.servers).",
        )
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    data_parallel.broadcast_state(model, optimizer, world)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    variables = model.trainable_variables
    slots = agree(world, lambda: slots_.of_built(inner, variables, whole=plan.job.whole))
    client = Client(links, plan.job)
    agree(world, lambda: client.put(variables, slots) if world.is_main else None)
    leave_updates_to_servers(optimizer, client, workers=world.size)
    return ServedModel(setup, client, slots)


class ServedModel(data_parallel.DistributedModel):
    """One network on every worker, whose weights are updated by servers; see `build`.

    Attributes:
        client: this worker's link to the servers.
    """

    def __init__(self, setup: Setup, client: Client, slots: slots_.Slots) -> None:
        super().__init__(setup)
        self.client = client
        self._slots = slots

    @property
    def job(self) -> ServerJob:
        """What the servers do."""
        return self.client.job

    def updated(self) -> None:
        """Return None. Servers update, each by itself."""

    def gather(self) -> keras.Model:
        """Return the ordinary Keras model, the same on every worker; a collective.

        Worker 0's optimizer gets the servers' state, so that its checkpoint is as that of any strategy.
        """
        average_statistics(self.model, self.world)
        share_accumulated(self.optimizer, self.world)
        if self.world.is_main:
            self.client.fetch(self.model.trainable_variables, self._slots)
        return self.model

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Return a context in which every worker's network holds averaged weights (EMA); a collective."""
        inner: Any = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        if inner.use_ema:
            if self.world.is_main:
                self.client.fetch(self.model.trainable_variables, self._slots)
            for average in inner._model_variables_moving_average:
                average.assign(self.world.broadcast(np.asarray(average.value)))
        with super().averaged_weights():
            yield

    def server_steps(self) -> list[list[dict[str, Any]]]:
        """Return per-server timings of the updates since the last call; empty but on worker 0."""
        return self.client.times_of_servers() if self.world.is_main else []

    def close(self) -> None:
        """Close the connection to the servers."""
        self.client.close()
