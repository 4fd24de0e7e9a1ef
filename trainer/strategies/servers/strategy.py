"""The strategy `parameter-server`, synchronous: what `trainer.strategies.data` is for the ring."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras.optimizers import LossScaleOptimizer

from trainer.config import ServerConfig
from trainer.errors import ConfigError
from trainer.planning.exchange import Exchange
from trainer.ranks.agreement import agree
from trainer.ranks.world import World
from trainer.strategies import data as data_parallel
from trainer.strategies import slots as slots_
from trainer.strategies.base import Plan
from trainer.strategies.compiled_update import Devices, Trial, Updated
from trainer.strategies.distributed_optimizer import AgreeingLossScale, share_accumulated
from trainer.strategies.guards import average_statistics
from trainer.strategies.learner import Setup
from trainer.strategies.saved_as import saved_as
from trainer.strategies.servers import layout
from trainer.strategies.servers.client import Client
from trainer.strategies.servers.job import ServerJob, describe, keras_dtype
from trainer.strategies.servers.layout import bytes_per_server
from trainer.telemetry.timeline import Buckets


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

    def updated(self) -> UpdatedByServers:
        """Return what servers update, each by itself."""
        return UpdatedByServers(client=self.client, is_main=self.world.is_main)

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdatedByServers(Updated):
    """What servers update, as a worker has it; worker 0 asks them.

    Attributes:
        client: of the worker.
        is_main: whether it is worker 0.
    """

    client: Client
    is_main: bool

    @property
    def weights(self) -> int:
        """How many numbers the server holds that holds most."""
        job = self.client.job
        held = bytes_per_server(job.pieces(), job.servers, [1 for _ in job.variables])
        return max(held)

    def devices(self, world: World) -> Devices:
        """Return processors. Each server's weights are its own: others need not compute the same bits."""
        return Devices(are_gpus=False)

    def trial(self) -> Trial:
        """Return what the slowest server found, on worker 0."""
        return self.client.trial() if self.is_main else Trial(0.0, 0.0)

    def compile(self, compiled: bool) -> None:
        """Let servers update so."""
        if self.is_main:
            self.client.compile(compiled)


# A worker's optimizer: it accumulates, scales and counts, and leaves the update to the servers.


def leave_updates_to_servers(optimizer: keras.Optimizer, client: Client, *, workers: int) -> None:
    """Change a built optimizer in place, so that an update is an exchange of gradients for weights.

    Its variables stay, and are those of a checkpoint; slots are filled when state is fetched.

    Args:
        optimizer: a Keras optimizer, or a `LossScaleOptimizer` around one.
        client: this worker's.
        workers: how many there are.
    """
    inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
    if not hasattr(inner, "exchange"):
        kind: Any = type(inner)
        inner.__class__ = _remote(kind)
    # Past Keras' tracking: it is no state.
    object.__setattr__(inner, "exchange", functools.partial(_exchange, client))
    if isinstance(optimizer, LossScaleOptimizer) and workers > 1:
        optimizer.__class__ = AgreeingLossScale


@functools.cache
def _remote(kind: Any) -> type:
    class Remote(kind):
        exchange: Any

        def _backend_update_step(self, grads: Sequence[Any], vars: Sequence[Any], learning_rate: Any) -> None:
            positions = [self._get_variable_index(v) for v in vars]
            if len(positions) < len(self._trainable_variables):
                without = next(
                    v.path for i, v in enumerate(self._trainable_variables) if i not in set(positions)
                )
                raise ConfigError(
                    f"The loss does not depend on {without!r}, so no server can update it.",
                    cure="Freeze its layer (train.transfer.freeze), or set train.strategy=data.",
                )
            self.exchange([grads[positions.index(i)] for i in range(len(positions))], vars)

        # What follows is done by the servers.

        def _clip_gradients(self, grads: Sequence[Any]) -> Any:
            return list(grads)

        def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
            pass

        def _update_model_variables_moving_average(self, trainable_variables: Sequence[Any]) -> None:
            pass

        def _overwrite_model_variables_with_average_value(self, trainable_variables: Any) -> None:
            pass

    return saved_as(Remote, kind)


def _exchange(client: Client, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Within a compiled step: send each bundle as soon as it exists, wait for all weights, assign them."""
    import tensorflow as tf

    flat = [tf.reshape(tf.convert_to_tensor(g), [-1]) for g in gradients]
    sent: list[Any] = []
    # From the first gradient that leaves to the last weights that are back.
    timed = Buckets("exchange")
    for bundle in client.bundles:
        parts = [flat[piece.variable][piece.start : piece.stop] for piece in bundle.pieces]
        if not sent:
            timed.leaves([flat[piece.variable] for piece in bundle.pieces], _there_and_back(client))
        sent.append(_push(client, bundle.number, tf.concat(parts, 0)))
    types = [tf.as_dtype(client.dtype_of(bundle)) for bundle in client.bundles]
    weights = tf.numpy_function(lambda *_: client.pull(), sent, types)
    timed.returns(weights)
    timed.keep()
    pieces: list[list[tuple[int, Any]]] = [[] for _ in variables]
    for bundle, values in zip(client.bundles, weights, strict=True):
        parts = tf.split(tf.ensure_shape(values, [bundle.size]), [piece.size for piece in bundle.pieces])
        for piece, part in zip(bundle.pieces, parts, strict=True):
            pieces[piece.variable].append((piece.start, part))
    for variable, parts in zip(variables, pieces, strict=True):
        ordered = [part for _, part in sorted(parts, key=lambda one: one[0])]
        variable.assign(tf.reshape(tf.concat(ordered, 0), variable.shape))


def _there_and_back(client: Client) -> int:
    """Bytes of gradients that a worker sends per update, and of weights that it gets."""
    return 2 * sum(bundle.size * client.dtype_of(bundle).itemsize for bundle in client.bundles)


def _push(client: Client, number: int, gradient: Any) -> Any:
    import tensorflow as tf

    dtype = client.dtype_of(client.bundles[number])

    def push(values: Any) -> Any:
        client.push(number, values)
        return keras_dtype("int32").type(number)

    return tf.numpy_function(push, [tf.cast(gradient, dtype)], tf.int32)
