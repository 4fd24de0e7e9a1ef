"""What the loop of trainer/runs/loop.py trains: the network on one rank, made by a strategy."""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras

    from trainer.ranks.world import World
    from trainer.strategies.compiled_passes import Passes
    from trainer.strategies.compiled_update import Updated
    from trainer.tasks.base import PerSample
    from trainer.telemetry.timeline import Timeline


@dataclass(frozen=True)
class Setup:
    """What a learner is made of.

    Attributes:
        model: a built network with the weights to start from, on rank 0 at least; its graph is left alone.
        optimizer: of `Strategy.divided`, with its state.
        world: all ranks.
        loss: per-sample loss `(B,)` from targets and outputs; default: cross-entropy of classes and logits.
        score: a figure per sample `(B,)` for people; default: whether the largest logit is right.
        timeline: times the parts of each step; default: nothing is timed.
        class_weights: float32 (classes,), what a sample of each class counts in the mean of the epoch's loss,
            as it does in the weights of `train_step`; default: 1.
        seed: of the run, for what layers draw at random.
        step: updates done before; default: as many as the optimizer counts.
    """

    model: keras.Model
    optimizer: keras.Optimizer
    world: World
    loss: PerSample | None = None
    score: PerSample | None = None
    timeline: Timeline | None = None
    class_weights: np.ndarray | None = None
    seed: int = 0
    step: int | None = None

    @property
    def accumulation(self) -> int:
        """Micro-batches per update."""
        inner: Any = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        return inner.gradient_accumulation_steps or 1

    @property
    def micro_batches_done(self) -> int:
        """Micro-batches before the first one to come."""
        # An optimizer does not count the updates that its loss scale skips.
        return int(self.optimizer.iterations) if self.step is None else self.step * self.accumulation


@dataclass(frozen=True)
class Sums:
    """What an epoch's loss and score are the means of, over real samples of all ranks.

    Attributes:
        loss: sum of losses, each times its sample's weight.
        weight: sum of these weights.
        score: sum of scores, of the samples that have one.
        scored: how many have one.
    """

    loss: float = 0.0
    weight: float = 0.0
    score: float = 0.0
    scored: float = 0.0

    def __add__(self, other: Sums) -> Sums:
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Sums(*(one + more for one, more in zip(mine, theirs, strict=True)))

    @property
    def mean_loss(self) -> float | None:
        """The weighted mean, divided by the sum of the weights; None without samples."""
        return self.loss / self.weight if self.weight else None

    @property
    def mean_score(self) -> float | None:
        """The mean over the samples that have one; None where none has."""
        return self.score / self.scored if self.scored else None


@dataclass(frozen=True)
class TrainingStart:
    """Where and with what the loop starts; given to `Learner.begin`.

    Attributes:
        step: updates done before.
        last_step: updates in the whole run.
        saves_every: steps between two checkpoints or ends of epochs, each of which all must have reached.
        staging: folder into which processes of this start may write files of the run; None but on rank 0.
        beat: tells the watchdog what this process does now.
        is_stopping: whether this process was told to stop.
    """

    step: int
    last_step: int
    saves_every: tuple[int, ...]
    staging: str | None
    beat: Callable[[str], None]
    is_stopping: Callable[[], bool]


@dataclass(frozen=True)
class Update:
    """One update of the weights.

    Attributes:
        losses: of its micro-batches, as seen by this rank.
        samples: in it, where another process has computed it; None where this rank did.
    """

    losses: Sequence[Any]
    samples: int | None = None


class Learner(ABC):
    """The network on one rank, and how all ranks train it together.

    Every method is a collective unless it says otherwise: all ranks call it in the same order.

    Attributes:
        model: the Keras model of this rank; on rank 0 the whole network, up to date after `gather`.
        optimizer: its optimizer.
    """

    model: keras.Model
    optimizer: keras.Optimizer

    def begin(self, start: TrainingStart) -> None:
        """Prepare for the first update of this start."""

    def update(self, batches: Iterator[tuple[Any, Any, Any]]) -> Update | None:
        """Do one update.

        Args:
            batches: this rank's micro-batches of it, each read when it is asked for: inputs, targets and
                weights as `train_step` takes them.

        Returns:
            The update; None where there will be none, since a process was asked to stop.
        """
        return Update([self.train_step(*batch) for batch in batches])

    @property
    def is_in_step(self) -> bool:
        """Whether all processes have done the same updates, so that training may stop; no collective."""
        return True

    @abstractmethod
    def train_step(self, x: Any, y: Any, w: Any) -> Any:
        """Train on this rank's part of one micro-batch; returns its mean weighted loss, a scalar.

        Args:
            x: float32 `(b, D, H, W, C)`, or a pair of it and covariates `(b, k)`.
            y: `(b,)`, classes or numbers, or uint8 `(b, D, H, W)`, label maps.
            w: float32 `(b,)`, weights in the loss; 0 for samples that only fill up a batch.
        """

    @abstractmethod
    def take_sums(self) -> Sums:
        """Return the sums over all samples on all ranks since the last call."""

    @abstractmethod
    def predict(self, x: Any) -> Any:
        """Return the network's outputs, float32 `(b, ...)`, for `x` as in `train_step`."""

    @abstractmethod
    def evaluate(
        self,
        batches: Iterable[tuple[Any, Any, Any, Any]],
        collected: Collected | None = None,
        predict: Callable[[Any], Any] | None = None,
    ) -> PredictedRows:
        """Return the outputs for all ranks' batches together, the same on every rank.

        Args:
            batches: this rank's batches of rows int64 `(b,)`, inputs, targets, weights; those of weight 0
                are left out.
            collected: from targets and outputs of a batch to what is kept of them, `(b,)` and `(b, m)`, so
                that whole label maps need not cross the network; default: both as they are.
            predict: from inputs to outputs, where the network itself takes only parts of them.
        """

    @abstractmethod
    def check(self) -> None:
        """Check that what the ranks must agree on is the same everywhere.

        Raises:
            DivergenceError: it is not; on every rank.
        """

    def settle(self) -> None:
        """Bring the network on this rank up to date for evaluation, where others hold parts of it."""

    @abstractmethod
    def gather(self) -> keras.Model:
        """Return the ordinary Keras model, the same on every rank; rank 0 has all optimizer state, too."""

    def spread(self, world: World) -> None:
        """Give every rank what it needs of rank 0's network, whose weights were changed.

        Args:
            world: all ranks.
        """
        for variable in self.model.weights:
            variable.assign(world.broadcast(variable.numpy()))

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the network holds averaged weights, if the optimizer keeps them (EMA)."""
        return contextlib.nullcontext()

    def updated(self) -> Updated | None:
        """Return what this rank updates by an optimizer within its step; None where others do; no collective.

        The same on every rank: something or None. Default: None.
        """
        return None

    def passes(self) -> Passes | None:
        """Return how this rank computes forward and backward passes; None where it has no choice.

        No collective; the same on every rank: something or None. Default: None.
        """
        return None

    def server_steps(self) -> list[list[dict[str, Any]]]:
        """Return per-server timings since the last call; empty without servers; no collective."""
        return []

    def columns(self) -> dict[str, Any]:
        """Return further columns for the epoch's row of metrics.jsonl; no collective."""
        return {}

    def facts(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return further keys for result.json, from the rows of all epochs; no collective."""
        return {}

    def close(self) -> None:
        """Release what the learner holds, such as connections; no collective."""


@dataclass(frozen=True)
class PredictedRows:
    """Outputs for some volumes, in the order of their row numbers.

    Attributes:
        rows: int64 `(n,)`, row numbers in the shard set.
        targets: `(n,)`, true classes or numbers.
        outputs: float32 `(n, m)`: logits, or what the task keeps of an output.
    """

    rows: np.ndarray
    targets: np.ndarray
    outputs: np.ndarray


# From targets and outputs of a batch to what evaluation keeps.
Collected = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def evaluated(
    batches: Iterable[tuple[Any, Any, Any, Any]],
    predict: Callable[[Any], Any],
    collected: Collected | None = None,
    gathered: Callable[[np.ndarray, str], np.ndarray] = lambda part, name: part,
) -> PredictedRows:
    """Return the outputs for all batches, in the order of their rows; see `Learner.evaluate`.

    Args:
        batches: this rank's.
        predict: from inputs to outputs.
        collected: from targets and outputs of a batch to what is kept of them.
        gathered: from this rank's part of rows, targets or outputs, and its name, to that of all ranks
            whose batches differ; default: all ranks have the same batches.
    """
    rows, targets, outputs = [], [], []
    for row, x, y, w in batches:
        real = np.asarray(w) > 0
        kept = np.asarray(y), np.asarray(predict(x))
        if collected is not None:
            kept = collected(*kept)
        rows.append(np.asarray(row)[real])
        targets.append(kept[0][real])
        outputs.append(kept[1][real])
    parts = (rows, targets, outputs)
    joined = [gathered(np.concatenate(part), f"evaluation_{i}") for i, part in enumerate(parts)]
    order = np.argsort(joined[0], kind="stable")
    return PredictedRows(*(part[order] for part in joined))


def sums_of(losses: Any, scores: Any, targets: Any, weights: Any, class_weights: Any) -> Any:
    """Return what a batch adds to an epoch's `Sums`, float64 `(4,)`, in their order; TensorFlow.

    Args:
        losses: `(b,)`.
        scores: `(b,)`, NaN for a sample that has none.
        targets: `(b,)`, or label maps.
        weights: `(b,)`, of `train_step`; 0 for samples that only fill up a batch. Those of an epoch's last
            step are larger, so that its mean is that of the real samples: here each counts once.
        class_weights: `(classes,)`, or None.
    """
    import tensorflow as tf

    losses, scores = tf.cast(losses, tf.float64), tf.cast(scores, tf.float64)
    real = tf.cast(weights > 0, tf.float64)
    counted = real if class_weights is None else real * tf.gather(tf.cast(class_weights, tf.float64), targets)
    has_score = real * tf.cast(~tf.math.is_nan(scores), tf.float64)
    score = tf.where(has_score > 0, scores, 0.0)
    return tf.stack([tf.reduce_sum(v) for v in (losses * counted, counted, score, has_score)])
