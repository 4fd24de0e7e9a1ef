"""Data parallelism: every rank holds the whole network and takes its share of each micro-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.ranks.agreement import agree
from trainer.ranks.world import World
from trainer.strategies.compiled_passes import Passes, Way
from trainer.strategies.compiled_update import Updated
from trainer.strategies.distributed_optimizer import is_distributed, share_accumulated, trust
from trainer.strategies.draws import Draws, SamplesOfPass
from trainer.strategies.guards import average_statistics, check_divergence
from trainer.strategies.learner import (
    Collected,
    Learner,
    PredictedRows,
    Setup,
    Sums,
    evaluated,
    sums_of,
)
from trainer.tasks.losses import cross_entropy, hits
from trainer.telemetry.timeline import Timeline

# Of gradients, where nothing else was asked for: that of `DistributedOptimizer`.
BUCKET_MB = 4.0


def build(setup: Setup, *, bucket_mb: float = BUCKET_MB) -> DistributedModel:
    """Make a model ready to be trained by all ranks: same weights and optimizer state on every rank.

    Args:
        setup: its optimizer is distributed where there is more than one rank.
        bucket_mb: MiB of gradients that leave together, for `Learner.passes`.

    Raises:
        ConfigError: several ranks, but the optimizer reduces nothing.
    """
    model, optimizer, world = setup.model, setup.optimizer, setup.world
    if world.size > 1 and not is_distributed(optimizer):
        raise ConfigError(
            "The optimizer reduces nothing: every rank would train a network of its own.",
            cure="Wrap it: trainer.DistributedOptimizer(optimizer).",
        )
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    broadcast_state(model, optimizer, world)
    trust(optimizer)
    return DistributedModel(setup, bucket_mb=bucket_mb)


def broadcast_state(model: keras.Model, optimizer: keras.Optimizer | None, world: World) -> None:
    """Give every rank rank 0's weights and optimizer state; a collective."""
    broadcast_variables([*model.weights, *(optimizer.variables if optimizer is not None else [])], world)


def broadcast_variables(variables: Sequence[keras.Variable], world: World) -> None:
    """Give every rank rank 0's values of these; a collective."""
    for variable in variables if world.size > 1 else ():
        variable.assign(world.broadcast(np.asarray(variable.value)))


@contextlib.contextmanager
def averaged_weights(model: keras.Model, optimizer: keras.Optimizer) -> Iterator[None]:
    """Return a context in which the network holds averaged weights, if the optimizer keeps them (EMA)."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not inner.use_ema:
        yield
        return
    kept = [variable.numpy() for variable in model.trainable_variables]
    try:
        # Keras aligns these lists when the optimizer is built; there is no public way to read the average.
        for variable, average in zip(
            model.trainable_variables, inner._model_variables_moving_average, strict=True
        ):
            variable.assign(average)
        yield
    finally:
        for variable, value in zip(model.trainable_variables, kept, strict=True):
            variable.assign(value)


class DistributedModel(Learner):
    """One network on every rank; see `build`.

    Attributes:
        model: the Keras model of this rank.
        optimizer: its optimizer.
        world: all ranks.
    """

    def __init__(self, setup: Setup, *, bucket_mb: float = BUCKET_MB) -> None:
        self.model, self.optimizer, self.world = setup.model, setup.optimizer, setup.world
        self._loss, self._score = setup.loss or cross_entropy(), setup.score or hits
        self._timeline = setup.timeline or Timeline(enabled=False)
        self._class_weights = setup.class_weights
        self._draws, self._accumulation = Draws(setup.model, setup.seed), setup.accumulation
        self._done = setup.micro_batches_done
        self._bucket_mb = bucket_mb
        self._network = self._passes.network("none")
        if self.world.size * self._accumulation > 1:
            agree(self.world, self._draws.check)
        # Over this rank's samples since the last `take_sums`: see `Sums`.
        self._sums = tf.Variable(tf.zeros(4, tf.float64), trainable=False)
        self._train = tf.function(self._train_step, reduce_retracing=True, autograph=False)
        self._forward = tf.function(self._forward_step, reduce_retracing=True, autograph=False)

    def train_step(self, x: Any, y: Any, w: Any) -> tf.Tensor:
        """Train on this rank's part of one micro-batch.

        Gradients cross the ring once the optimizer's `gradient_accumulation_steps` are complete.

        Args:
            x: float32 `(b, D, H, W, C)`, or a pair of it and covariates `(b, k)`.
            y: `(b,)`, classes or numbers, or uint8 `(b, D, H, W)`, label maps.
            w: float32 `(b,)`, weights in the loss; 0 for samples that only fill up a batch.

        Returns:
            This rank's mean weighted loss, a scalar. Float32, or float64 where network, loss, inputs and
            weights are.
        """
        mean, marks = self._train(x, y, w, tf.constant(self._done, tf.int64))
        self._done += 1
        self._timeline.add(marks)
        return mean

    def updated(self) -> Updated | None:
        """Return the whole network's optimizer and weights."""
        return Updated((self.optimizer,), tuple(self.model.trainable_variables))

    def passes(self) -> Passes | None:
        """Return how the whole network's passes are computed."""
        return self._passes

    @property
    def _passes(self) -> Passes:
        reduce = getattr(self.optimizer, "reduce", list)
        ways: tuple[Way, ...] = ("none", "whole") if reduce is list else ("none", "whole", "buckets")
        ranks = self.world.size
        return Passes(self.model, ways, self._draws, ranks, self._bucket_mb, reduce, self._take)

    def _take(self, way: Way) -> None:
        self._network = self._passes.network(way)

    def take_sums(self) -> Sums:
        """Return the sums over all samples on all ranks since the last call; a collective.

        Sums and weights are added over ranks, not averages averaged. Samples of weight 0 do not count.
        """
        sums = self.world.allreduce(self._sums.value(), "sum", name="metrics").numpy().tolist()
        self._sums.assign(tf.zeros(4, tf.float64))
        return Sums(*sums)

    def predict(self, x: Any) -> tf.Tensor:
        """Return the network's outputs, float32 `(b, ...)`, for `x` as in `train_step`; no collective."""
        return self._forward(x)

    def evaluate(
        self,
        batches: Iterable[tuple[Any, Any, Any, Any]],
        collected: Collected | None = None,
        predict: Callable[[Any], Any] | None = None,
    ) -> PredictedRows:
        """Evaluate as `Learner.evaluate` says; a collective at its end."""
        return evaluated(
            batches,
            predict or self.predict,
            collected,
            lambda part, name: self.world.allgather(part, name=name).numpy(),
        )

    def check(self) -> None:
        """Check that weights are the same on all ranks; a collective.

        Raises:
            DivergenceError: on every rank.
        """
        check_divergence(self.model, self.world)

    def settle(self) -> None:
        """Give every rank the mean of the ranks' own moving statistics of batch norms; a collective."""
        average_statistics(self.model, self.world)

    def gather(self) -> keras.Model:
        """Return the ordinary Keras model, the same on every rank; a collective.

        Moving statistics of batch norms that are not synchronous become the mean of the ranks' own, and so
        do gradients that wait for an update: call it before model or optimizer are saved.
        """
        average_statistics(self.model, self.world)
        share_accumulated(self.optimizer, self.world)
        return self.model

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the network holds averaged weights, if the optimizer keeps them (EMA)."""
        return averaged_weights(self.model, self.optimizer)

    def _train_step(self, x: Any, y: Any, w: Any, done: Any) -> tuple[tf.Tensor, tf.Tensor]:
        with self._timeline.tracing():
            return self._update(x, y, w, done), self._timeline.marks()

    def _samples(self, w: Any, done: Any) -> SamplesOfPass:
        """This rank's samples of micro-batch number `done`, as `order.micro_batch_positions` has them."""
        count = tf.shape(w)[0] if w.shape[0] is None else w.shape[0]
        part = (done % self._accumulation) * self.world.size + self.world.rank
        return SamplesOfPass(
            ((part * tf.cast(count, tf.int64), count),), whole=self.world.size * self._accumulation == 1
        )

    def _update(self, x: Any, y: Any, w: Any, done: Any) -> tf.Tensor:
        x = self._timeline.started(x)
        drawn = self._draws.of_pass(x, done // self._accumulation, self._samples(w, done))
        with drawn as passing, tf.GradientTape() as tape:
            outputs = self._network(x)
            losses = self._loss(y, outputs)
            # As Keras' sum_over_batch_size: divided by the number of samples, not by their weights.
            mean = tf.reduce_mean(losses * w)
            if self.model.losses:
                mean += tf.add_n([tf.cast(extra, mean.dtype) for extra in self.model.losses])
            scaled = self.optimizer.scale_loss(mean)
        variables = self.model.trainable_variables
        seed = self._timeline.forward_done(scaled)
        with passing.backward():
            gradients = tape.gradient(scaled, [v.value for v in variables], seed)
        self._timeline.backward_done(gradients)
        self.optimizer.apply(gradients, variables)
        self._sums.assign_add(sums_of(losses, self._score(y, outputs), y, w, self._class_weights))
        return mean

    def _forward_step(self, x: Any) -> tf.Tensor:
        return tf.cast(self.model(x, training=False), tf.float32)
