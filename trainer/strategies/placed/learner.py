"""A network divided over ranks, as the loop trains it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.planning.placement.boxes import Box
from trainer.planning.placement.tasks import Receive, Send
from trainer.planning.placement.units import Placement
from trainer.ranks.exchange import RankExchange, naming_who_is_late, open_exchange
from trainer.ranks.world import World
from trainer.strategies.base import Share
from trainer.strategies.compiled_update import Updated
from trainer.strategies.draws import Draws, SamplesOfPass
from trainer.strategies.learner import (
    Collected,
    Learner,
    PredictedRows,
    Setup,
    Sums,
    evaluated,
    sums_of,
)
from trainer.strategies.placed import custom_gradients, state
from trainer.strategies.placed.computing import Drawing
from trainer.strategies.placed.holdings import Holdings
from trainer.strategies.placed.owning import OwnedOptimizer
from trainer.strategies.placed.plan import PlacedPlan
from trainer.strategies.placed.player import Owned, Player
from trainer.strategies.placed.waiting import Waiting
from trainer.strategies.placed.wire import Wire
from trainer.tasks.losses import cross_entropy, hits
from trainer.telemetry.peak_memory import PeakMemory
from trainer.telemetry.timeline import Timeline


class PlacedModel(Learner):
    """One network on all ranks of a replica; see `strategy.Placed`.

    Attributes:
        model: the whole Keras network. Only rank 0 has its weights, from `gather` to the next update.
        optimizer: that of the whole network; its scalars are up to date, its slots are as the weights are.
        exchange: between this rank and the others; None without others.
        waiting: how much of its steps this rank waits for the others, where the plan may change.
    """

    def __init__(self, plan: PlacedPlan, setup: Setup) -> None:
        _merge_no_operations()
        self.world, self._draws = setup.world, Draws(setup.model, setup.seed)
        self.model, self.optimizer = setup.model, setup.optimizer
        self._loss, self._score = setup.loss or cross_entropy(), setup.score or hits
        self._timeline = setup.timeline or Timeline(enabled=False)
        self._peak = PeakMemory(state.bytes_beside(self.model, self.optimizer))
        # Of all ranks, as of the last `take_sums`.
        self._peaks: list[int | None] = []
        self._layers = {layer.name: layer for layer in self.model.layers}
        self.exchange: RankExchange | None = open_exchange(self.world) if self.world.size > 1 else None
        self._class_weights = setup.class_weights
        # Over this rank's samples since the last `take_sums`: see `Sums`.
        self._sums = tf.Variable(tf.zeros(4, tf.float64), trainable=False)
        self.waiting = Waiting()
        self._follow(plan)
        self._done = setup.micro_batches_done  # by the optimizer that all ranks have now

    def _follow(self, plan: PlacedPlan) -> None:
        """Take this rank's blocks of rank 0's network and optimizer as planned; a collective."""
        self.plan, self.waiting.traced_s = plan, 0.0
        self._share, self._evaluated = plan.share(self.world.rank), plan.evaluation_share(self.world.rank)
        self._wire = Wire(self.exchange, plan.lists, state.TAGS)
        self._forward_wire = Wire(self.exchange, plan.forwards, state.TAGS + len(self._wire.tags))
        self.holdings = Holdings(plan.placement, self.world.rank, self.model)
        self.owner = OwnedOptimizer(self.optimizer, self.model, self.holdings, self.world)
        self._is_whole = True
        self.spread(self.world)
        self._train = tf.function(self._train_step, reduce_retracing=True, autograph=False)
        self._forward = tf.function(self._forward_step, reduce_retracing=True, autograph=False)
        self._return = tf.function(self._return_step, autograph=False)

    def divide(self, plan: PlacedPlan) -> None:
        """Go on as another plan divides the network, with the state that it has; a collective.

        Between two updates. All messages of the old plan have been received by then, and those of the new one
        are received in the order in which they are sent, so that both use the same exchange and tags.

        Args:
            plan: over the same ranks, with the same `share` of each.
        """
        self.gather()
        del self.holdings, self.owner, self._train, self._forward, self._return
        del self._wire, self._forward_wire
        gc.collect()  # graphs refer to themselves, and to the blocks of the old plan
        self._follow(plan)

    def spread(self, world: World) -> None:
        """Give every rank its part of rank 0's network and optimizer."""
        state.spread(self.model, self.owner, self.holdings, world)
        if not world.is_main:
            self._let_go()

    def _let_go(self) -> None:
        """Free the memory of the whole network, where there still is one."""
        if self._is_whole:
            state.let_go(self.model, self.owner, self.plan.placement)
            self._is_whole = False

    def updated(self) -> Updated:
        """Return what this rank owns; an owner after a change of plan does as the whole one's optimizer."""
        return Updated((self.owner.optimizer, self.optimizer), tuple(self.owner.variables))

    def train_step(self, x: Any, y: Any, w: Any) -> Any:
        """Train on one micro-batch, this replica's samples; see `Learner.train_step`.

        Returns:
            The mean weighted loss of the samples whose loss this rank computes; 0 on other ranks.
        """
        self._let_go()
        self._peak.begin()
        with naming_who_is_late(self.world), self.waiting.step():
            mean, marks = self._train(x, y, w, tf.constant(self._done, tf.int64))
        self._done += 1
        self._timeline.add(marks)
        if self.exchange is not None and (self._timeline.enabled or self.plan.may_change):
            rows = self.exchange.arrivals()
            self._timeline.arrived(rows)
            self.waiting.arrived(rows)
        return mean

    def take_sums(self) -> Sums:
        """Return the sums over all samples since the last call; a collective."""
        self._peak.end()
        self._peaks = self.world.allgather_object(self._peak.most)
        sums = self.world.allreduce(self._sums.value(), "sum", name="metrics").numpy().tolist()
        self._sums.assign(tf.zeros(4, tf.float64))
        return Sums(*sums)

    def predict(self, x: Any) -> Any:
        """Return the network's outputs, float32 `(b, ...)`, on every rank; a collective."""
        given = x if isinstance(x, list | tuple) else [x]
        batch, count = self.plan.evaluated.network.inputs[0].shape[0], given[0].shape[0]
        batches = []
        for start in range(0, count, batch):
            # The placement is of `batch` samples: what is missing is filled up, and cut off again.
            some = [_filled(values[start : start + batch], batch) for values in given]
            outputs = np.asarray(self._first(self._outputs(some if len(some) > 1 else some[0])))
            batches.append(self.world.broadcast(outputs)[: count - start])
        return np.concatenate(batches)

    def evaluate(
        self,
        batches: Iterable[tuple[Any, Any, Any, Any]],
        collected: Collected | None = None,
        predict: Callable[[Any], Any] | None = None,
    ) -> PredictedRows:
        """Evaluate as `Learner.evaluate` says. Every rank has all batches; a collective for each."""
        return evaluated(batches, predict or self.predict, collected)

    def check(self) -> None:
        """Check that ranks that hold the same block hold the same values; a collective.

        Raises:
            DivergenceError: on every rank.
        """
        state.check(self.holdings, self.world)

    def gather(self) -> keras.Model:
        """Return the ordinary Keras model, whole on rank 0, whose optimizer gets all state; a collective."""
        self._peak.end()
        state.gather(self.model, self.owner, self.holdings, self.plan.placement, self.exchange, self.world)
        self._is_whole = self.world.is_main
        return self.model

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Return a context in which all blocks hold averaged weights, if the optimizer keeps them (EMA)."""
        if not getattr(self.optimizer, "inner_optimizer", self.optimizer).use_ema:
            yield
            return
        kept = [tf.identity(self.holdings.owned[key].value) for key in self.owner.keys]
        averages = self.owner.averages or []
        try:
            self._return([average.value for average in averages])
            yield
        finally:
            self._return(kept)

    def facts(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the most memory that each rank took in training, and what the plan tells; no collective."""
        return {"memory_bytes": self._peaks, **self.plan.result()}

    def close(self) -> None:
        """Send what is left to send."""
        if self.exchange is not None:
            self.exchange.close()

    def _player(self, placement: Placement, wire: Wire) -> Player:
        wire.begin()
        return Player(placement, self.world.rank, self._layers, self.holdings.blocks(), wire)

    def _drawing(self, done: Any) -> Callable[[int], Drawing]:
        """What layers draw in micro-batch number `done` of the run, by the part of it that is passed on."""
        plan = self.plan
        of_one = plan.micro_batch // plan.micro_batches
        first = (done % plan.accumulation) * (plan.micro_batch * plan.replicas)

        def of(micro: int) -> Drawing:
            def box(
                layer: Any, shape: tuple[int, ...], ranges: Sequence[tuple[int, int]]
            ) -> AbstractContextManager[None]:
                # Each replica has its own samples of a part, one after the other.
                runs, (start, stop) = [], ranges[0]
                while start < stop:
                    replica, row = divmod(start, of_one)
                    count = min(of_one - row, stop - start)
                    runs.append((first + replica * plan.micro_batch + micro * of_one + row, count))
                    start += count
                samples = SamplesOfPass(tuple(runs), whole=False)
                return self._draws.of_box(layer, done // plan.accumulation, samples, shape, ranges)

            return box

        return of

    def _inputs(
        self, x: Any, share: Share, micro_batches: int = 1
    ) -> Mapping[str, Callable[[Box, int], Any]]:
        """How units read the network's inputs, of which this rank has those of its share."""
        given = x if isinstance(x, list | tuple) else [x]
        names = [tensor._keras_history.operation.name for tensor in self.model.inputs]

        def reader(values: Any, whole: Sequence[int]) -> Callable[[Box, int], Any]:
            samples = values.shape[0] // micro_batches
            origin = [0 for _ in whole]
            if share.space is not None and tuple(values.shape[1:]) != tuple(whole[1:]):
                origin[1:4] = [start for start, _ in share.space]

            def read(box: Box, micro: int) -> Any:
                ends = zip(box.ranges, [(share.part - micro) * samples, *origin[1:]], strict=True)
                return values[tuple(slice(start - at, stop - at) for (start, stop), at in ends)]

            return read

        return {
            name: reader(values, tensor.shape)
            for name, values, tensor in zip(names, given, self.model.inputs, strict=True)
        }

    def _train_step(self, x: Any, y: Any, w: Any, done: Any) -> tuple[Any, Any]:
        with custom_gradients.forgotten(), self.waiting.tracing(), self._timeline.tracing():
            x = self._timeline.started(x)
            return self._update(x, y, w, done), self._timeline.marks()

    def _update(self, x: Any, y: Any, w: Any, done: Any) -> Any:
        plan = self.plan
        samples = plan.micro_batch * plan.replicas
        of_one = plan.micro_batch // plan.micro_batches
        means: list[Any] = []

        def of(box: Box, micro: int) -> slice:
            first = (self._share.part - micro) * of_one
            return slice(box.ranges[0][0] - first, box.ranges[0][1] - first)

        def mean(losses: Any, mine: slice) -> Any:
            # As Keras' sum_over_batch_size: divided by the number of samples, not by their weights.
            return tf.reduce_sum(losses * w[mine]) / samples

        def loss(box: Box, outputs: list[Any], micro: int) -> Any:
            rows, output = of(box, micro), self._first(outputs)
            losses = self._loss(y[rows], output)
            means.append(mean(losses, rows))
            scores = self._score(y[rows], output)
            self._sums.assign_add(sums_of(losses, scores, y[rows], w[rows], self._class_weights))
            return means[-1]

        def objective(box: Box, outputs: list[Any], micro: int) -> Any:
            mine = of(box, micro)
            losses = self._loss(y[mine], self._first(outputs))
            return self.owner.optimizer.scale_loss(mean(losses, mine))

        def update(gradients: Owned) -> Owned:
            ordered = [gradients[key] for key in self.owner.keys]
            self._timeline.backward_done(ordered)
            self.owner.apply(ordered)
            # What owners agree on by all-reduce comes before anybody waits for new values.
            self._wire.after([variable.value for variable in self.owner.variables])
            return {key: variable.value for key, variable in self.holdings.owned.items()}

        player = self._player(plan.placement, self._wire)
        # A rank without inputs of the network would not wait for the moment at which the step starts.
        self._wire.after(tf.nest.flatten(x)[:1])
        tasks = plan.lists.get(self.world.rank, ())
        inputs = self._inputs(x, self._share, plan.micro_batches)
        forward_done, chunk_done = self._timeline.forward_done, self._timeline.chunk_done
        drawing = self._drawing(done)
        for _ in player.play(tasks, inputs, loss, update, drawing, forward_done, objective, chunk_done):
            pass
        self.holdings.store(player.blocks, updated=True)
        if not tasks:  # nothing to compute, but part of what owners agree on
            self._timeline.forward_done([])
            update({})
        return tf.add_n(means) if means else tf.zeros(())

    def _outputs(self, x: Any) -> list[Any]:
        with naming_who_is_late(self.world):
            return list(self._forward(x))

    @staticmethod
    def _first(outputs: list[Any]) -> Any:
        return outputs[0] if len(outputs) == 1 else outputs

    def _forward_step(self, x: Any) -> list[Any]:
        predicted: list[Any] = []

        def loss(box: Box, outputs: list[Any], micro: int) -> Any:
            predicted.extend(tf.cast(one, tf.float32) for one in outputs)
            return tf.zeros(())

        plan = self.plan
        player = self._player(plan.evaluated, self._forward_wire)
        inputs = self._inputs(x, self._evaluated)
        with custom_gradients.forgotten():
            for _ in player.play(plan.forwards.get(self.world.rank, ()), inputs, loss):
                pass
        shapes = [one.shape for one in plan.evaluated.network.operations[-1].readings]
        return predicted or [tf.zeros(shape) for shape in shapes]

    def _return_step(self, values: list[Any]) -> None:
        plan = self.plan
        player = self._player(plan.placement, self._wire)
        moves = [
            task
            for task in plan.lists.get(self.world.rank, ())
            if isinstance(task, Send | Receive) and task.messages[0].content == "value"
        ]
        for _ in player.hand_out(moves, dict(zip(self.owner.keys, values, strict=True))):
            pass
        self.holdings.store(player.blocks, updated=False)


def _filled(values: Any, batch: int) -> Any:
    missing = batch - values.shape[0]
    return tf.pad(values, [[0, missing], *([0, 0] for _ in values.shape[1:])]) if missing else values


def _merge_no_operations() -> None:
    """Keep TensorFlow from making one operation of several, in this process.

    TensorFlow 2.21 makes padding a part of the convolution that follows. Where nothing crosses between ranks,
    it then computes others in float64, and takes outputs for smaller ones ("Can not squeeze"). A step that
    has gradients gains nothing by it.
    """
    tf.config.optimizer.set_experimental_options({"remapping": False})
