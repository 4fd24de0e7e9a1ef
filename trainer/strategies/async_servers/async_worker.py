"""A worker of asynchronous training: takes weights, computes a gradient, sends it, until told to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.ranks.links import Links
from trainer.ranks.members import TO_SERVERS, TO_WORKERS
from trainer.ranks.messages import ReceivedMessage
from trainer.strategies.async_servers import async_state as state
from trainer.strategies.async_servers.async_state import Tag, VariableShares
from trainer.strategies.async_servers.worker_times import WorkerTimes
from trainer.strategies.draws import Draws, SamplesOfPass
from trainer.strategies.learner import sums_of
from trainer.tasks.base import PerSample
from trainer.telemetry.timeline import Timeline

_LOOK_S = 0.05

Batch = tuple[Any, Any, Any]


class Ended(BaseException):
    """Training has ended, for whatever reason; not an error of this process."""


class Steps:
    """The steps whose tickets this worker holds, in their order, for the threads that read ahead."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._taken = 0
        self._changed = threading.Condition()

    def add(self, steps: list[int]) -> None:
        """Add tickets."""
        with self._changed:
            self._steps.extend(steps)
            self._changed.notify_all()

    def __call__(self, number: int) -> int:
        """Return the step of ticket `number`, from 0; waits until we have it."""
        with self._changed:
            while number >= len(self._steps):
                self._changed.wait()
            return self._steps[number]

    @property
    def left(self) -> bool:
        """Whether there is one that was not taken."""
        return self._taken < len(self._steps)

    def take(self) -> int:
        """Return the next step."""
        self._taken += 1
        return self(self._taken - 1)


class Gradients:
    """Computes gradients as the strategy `data` would on one rank; see `DistributedModel`.

    Args:
        model: the network.
        loss: per-sample loss.
        score: per-sample score.
        global_clip_norm: of several servers, each sees a part of the gradient only: its worker clips it.
        timeline: times forward and backward.
        seed: of the run.
        class_weights: what a sample of each class counts in the mean loss of an epoch; None: 1.
    """

    def __init__(
        self,
        model: keras.Model,
        loss: PerSample,
        score: PerSample,
        global_clip_norm: float | None,
        timeline: Timeline,
        seed: int = 0,
        class_weights: np.ndarray | None = None,
    ) -> None:
        self._model, self._loss, self._score = model, loss, score
        self._class_weights = class_weights
        self._timeline = timeline
        self._clip, self._draws = global_clip_norm, Draws(model, seed)
        self._step = tf.function(self._timed, reduce_retracing=True, autograph=False)

    def of(self, batches: list[Batch], step: int = 0) -> tuple[list[np.ndarray], float, np.ndarray]:
        """Return mean gradients over micro-batches, mean loss, and the numbers of `Sums` and of samples.

        Args:
            batches: the micro-batches of an update.
            step: its number, from 0: layers draw for its samples as in any other strategy.
        """
        passes, whole = [], len(batches) == 1
        for micro, batch in enumerate(batches):
            at = tf.constant(step, tf.int64), tf.constant(micro, tf.int64)
            *computed, marks = self._step(*batch, at, whole)
            self._timeline.add(marks)
            passes.append(computed)
        same = zip(*(f[0] for f in passes), strict=True)
        gradients = [np.asarray(np.mean([g.numpy() for g in micro], axis=0), np.float32) for micro in same]
        if self._clip is not None:
            norm = float(np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in gradients)))
            if norm > self._clip:
                gradients = [np.asarray(g * (self._clip / norm), np.float32) for g in gradients]
        sums = np.sum([f[2].numpy() for f in passes], axis=0)
        return gradients, float(np.mean([float(f[1]) for f in passes])), sums

    def _timed(self, x: Any, y: Any, w: Any, at: Any, whole: bool) -> tuple[list[Any], Any, Any, Any]:
        with self._timeline.tracing():
            return *self._gradients(x, y, w, at, whole), self._timeline.marks()

    def _gradients(self, x: Any, y: Any, w: Any, at: Any, whole: bool) -> tuple[list[Any], Any, Any]:
        x = self._timeline.started(x)
        (step, micro), count = at, w.shape[0]
        drawn = self._draws.of_pass(x, step, SamplesOfPass(((micro * count, count),), whole))
        with drawn as passing, tf.GradientTape() as tape:
            outputs = self._model(x, training=True)
            losses = self._loss(y, outputs)
            mean = tf.reduce_mean(losses * w)
            if self._model.losses:
                mean += tf.add_n([tf.cast(extra, tf.float32) for extra in self._model.losses])
        variables = [v.value for v in self._model.trainable_variables]
        seed = self._timeline.forward_done(mean)
        zero = tf.UnconnectedGradients.ZERO
        with passing.backward():
            gradients = tape.gradient(mean, variables, seed, unconnected_gradients=zero)
        self._timeline.backward_done(gradients)
        samples = tf.reduce_sum(tf.cast(w > 0, tf.float64))
        sums = sums_of(losses, self._score(y, outputs), y, w, self._class_weights)
        return [tf.convert_to_tensor(g) for g in gradients], mean, tf.concat([sums, [samples]], 0)


class Worker:
    """See above.

    Args:
        model: the network.
        gradients: computes them.
        shares: which server holds what.
        links: of the world.
        steps: gets our tickets.
        source: batches of those steps, micro-batch by micro-batch.
        single: batches of one step that we hold no ticket of: a dead worker's.
        micro_batches: per step.
        steps_per_epoch: after which server 0 evaluates, while we wait.
        ended: set when training has ended.
        beat: says what we do.
        times: writes down where the time goes.

    Attributes:
        post: its mailbox.
    """

    def __init__(
        self,
        model: keras.Model,
        gradients: Gradients,
        shares: VariableShares,
        links: Links,
        *,
        steps: Steps,
        source: Callable[[], Iterator[Batch]],
        single: Callable[[int], Iterator[Batch]],
        micro_batches: int,
        steps_per_epoch: int,
        ended: threading.Event,
        beat: Callable[..., None],
        times: WorkerTimes,
    ) -> None:
        self._times, self._steps_per_epoch = times, steps_per_epoch
        self._model, self._gradients, self._shares, self._links = model, gradients, shares, links
        self._steps, self._source, self._single = steps, source, single
        self._micro_batches, self._ended, self._beat = micro_batches, ended, beat
        self.post = links.mailbox(TO_WORKERS, says=TO_SERVERS, listens=False)
        self._untrained = list(model.non_trainable_weights)
        self._early: list[ReceivedMessage] = []

    def run(self) -> None:
        """Work until training ends.

        Raises:
            Ended: it has.
        """
        self._ask(holding=False)
        self._receive_go()
        source = self._source()
        ready: list[Batch] = []
        now, epoch = time.perf_counter, -1
        record, size = self._times.timeline.record, sum(self._shares.bytes(self._model))
        while True:
            began = now()
            if not ready and self._steps.left:
                self._steps.take()
                ready = self._read(source)
            asked_at = now()
            self._ask(holding=True)
            step, is_extra = self._receive_go()
            waited = now() - asked_at
            if step // self._steps_per_epoch == epoch:
                record("wait", waited, peer=self._links.servers[0])
            else:
                # Between two epochs server 0 evaluates and saves; that is no part of a step.
                epoch, began = step // self._steps_per_epoch, began + waited
            if is_extra:
                batches = self._read(self._single(step))
            else:
                batches, ready = ready, []
            asked_at = now()
            versions = self._take_weights()
            record("receive", now() - asked_at, size=size)
            before = state.flat(self._untrained)
            self._beat("computing a training step")
            gradients, loss, sums = self._gradients.of(batches, step)
            self._push(gradients, before, versions, [loss, *sums.tolist()])
            self._times.step(step, now() - began)

    def _read(self, source: Iterator[Batch]) -> list[Batch]:
        self._beat("reading the next batch")
        asked = time.perf_counter()
        batches = [next(source) for _ in range(self._micro_batches)]
        self._times.timeline.record("input", time.perf_counter() - asked)
        return batches

    def _ask(self, *, holding: bool) -> None:
        self.post.expect(2 if holding else 1)
        self.post.send(self._links.servers[0], Tag.ASK, state.message([float(holding)]))

    def _receive_go(self) -> tuple[int, bool]:
        told = state.header(self._receive(Tag.GO).array)
        self._steps.add([int(step) for step in told[2:] if step >= 0])
        return int(told[0]), bool(told[1])

    def _receive(self, tag: int) -> ReceivedMessage:
        # Messages of one sender may be complete in another order than they were sent.
        kept = next((early for early in self._early if early.tag == tag), None)
        if kept is not None:
            self._early.remove(kept)
            return kept
        while not self._ended.is_set():
            # Server 0 evaluates, saves, or waits for others; our lifeline tells when it is gone.
            self._beat("waiting for the servers", collective=True)
            arrived = self.post.next(_LOOK_S)
            if arrived is not None and arrived.tag == tag:
                return arrived
            if arrived is not None:
                self._early.append(arrived)
        raise Ended

    def _take_weights(self) -> list[int]:
        """Put all servers' weights into the network; returns their versions."""
        servers = self._links.servers
        self.post.expect(len(servers) - 1)
        for process in servers[1:]:
            self.post.send(process, Tag.PULL, state.message([]))
        versions = [0] * len(servers)
        for _ in servers:
            arrived = self._receive(Tag.TAKE)
            server = servers.index(arrived.source)
            versions[server] = int(state.header(arrived.array)[0])
            variables = self._shares.variables(self._model, server)
            state.assign([*variables, *(self._untrained if server == 0 else [])], state.values(arrived.array))
        return versions

    def _push(
        self, gradients: list[np.ndarray], before: np.ndarray, versions: list[int], figures: list[float]
    ) -> None:
        """Send gradients, to server 0 last: what it has applied, the others have got."""
        servers = self._links.servers
        left = threading.Semaphore(0)
        for server in reversed(range(len(servers))):
            parts = [gradients[i].ravel() for i in self._shares.trained[server]]
            if server == 0:
                for _ in servers[1:]:
                    self._wait_for(left)
                parts.append(state.flat(self._untrained) - before)
            array = state.message([versions[server], *figures], np.concatenate(parts))
            self.post.send(servers[server], Tag.PUSH, array, left.release)

    def _wait_for(self, left: threading.Semaphore) -> None:
        while not left.acquire(timeout=_LOOK_S):
            if self._ended.is_set():
                raise Ended
