"""From shards to tf.data: micro-batches for training, and every volume once for evaluation."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import AugmentConfig
from trainer.data import augment as augmentation
from trainer.data import order
from trainer.data.shards import ShardSet
from trainer.errors import CingulumError, ConfigError

# What went wrong in a reading thread, until `input_errors` raises it: TensorFlow passes on only its text.
_failures: list[CingulumError] = []


def training_dataset(
    shards: ShardSet,
    rows: Sequence[int],
    targets: np.ndarray,
    *,
    config_seed: int,
    start_step: int,
    stop_step: int,
    global_batch: int,
    rank: int = 0,
    world_size: int = 1,
    accumulation: int = 1,
    augment: AugmentConfig | None = None,
    class_weights: np.ndarray | None = None,
    prefetch: int = 2,
    threads: int = 2,
) -> tf.data.Dataset:
    """The micro-batches of one rank for the steps `start_step` to `stop_step` of a run.

    Steps count over the whole run: step s is step s % steps_per_epoch of epoch s // steps_per_epoch. The
    elements are the same whatever `threads` and `prefetch`, and over all ranks whatever the world size.
    Iterate inside `input_errors`, so that a damaged shard is reported as such.

    Args:
        shards: the shard set.
        rows: training rows of `shards.volumes`; positions in `order` count in this list.
        targets: int32 (len(rows),), the class of each row.
        config_seed: seed of order and augmentation.
        start_step: first step.
        stop_step: one after the last step.
        global_batch: samples per step, over all ranks and micro-batches.
        rank: this rank.
        world_size: number of ranks.
        accumulation: micro-batches per step.
        augment: random changes; none by default.
        class_weights: float32 (classes,), multiplies the weight of each sample of that class, as it is. With
            `balanced_weights` the mean weight over the training list stays 1.
        prefetch: micro-batches made ahead.
        threads: that read, decode and augment.

    Returns:
        (stop_step - start_step) * accumulation elements (x, y, w): x float32 (b, D, H, W, C), y int32 (b,),
        w float32 (b,) with 0 for the fill of an epoch's last step, where b is global_batch / (world_size *
        accumulation).

    Raises:
        ConfigError: the global batch cannot be cut into equal micro-batches, or is larger than the training
            list.
    """
    n = len(rows)
    batch = _micro_batch_size(global_batch, world_size, accumulation, n)
    per_epoch = order.steps_per_epoch(n, global_batch)

    def sample(number: int) -> tuple[np.ndarray, int, float]:
        micro_batch, place = divmod(number, batch)
        step, micro = divmod(micro_batch, accumulation)
        epoch, step = divmod(start_step + step, per_epoch)
        place += order.micro_batch_positions(global_batch, rank, world_size, accumulation, micro).start
        position = order.order(config_seed, epoch, step, global_batch, n)[place]
        weight = order.weights(step, global_batch, n)[place]
        if class_weights is not None:
            weight = weight * class_weights[targets[position]]
        x = shards.read(rows[position])
        if augment is not None:
            x = augmentation.augment(x.astype(np.float32), augment, config_seed, epoch, rows[position])
        return x, targets[position], weight

    batches = max(0, stop_step - start_step) * accumulation
    signature = _signature(batch, (shards.shape, np.float32), ((), np.int32), ((), np.float32))
    return _dataset(sample, batches, signature, threads, prefetch)


def evaluation_dataset(
    shards: ShardSet,
    rows: Sequence[int],
    targets: np.ndarray,
    *,
    rank: int = 0,
    world_size: int = 1,
    batch: int = 1,
    threads: int = 2,
) -> tuple[tf.data.Dataset, int]:
    """Each of `rows` exactly once over all ranks, in as many batches on one rank as on any other.

    Args:
        shards: the shard set.
        rows: rows of `shards.volumes`, each once.
        targets: int32 (len(rows),), the class of each row.
        rank: this rank.
        world_size: number of ranks.
        batch: volumes per batch and rank.
        threads: that read and decode.

    Returns:
        The dataset and its number of batches. Elements are (row, x, y, w): row int64 (batch,), x float32
        (batch, D, H, W, C), y int32 (batch,), w float32 (batch,). The last batches are filled up with empty
        volumes of row -1, class 0 and weight 0.
    """
    steps = order.steps_per_epoch(len(rows), world_size * batch)

    def sample(number: int) -> tuple[int, np.ndarray, int, float]:
        step, place = divmod(number, batch)
        position = (step * world_size + rank) * batch + place
        if position >= len(rows):
            return -1, np.zeros(shards.shape, np.float32), 0, 0.0
        return rows[position], shards.read(rows[position]), targets[position], 1.0

    signature = _signature(
        batch, ((), np.int64), (shards.shape, np.float32), ((), np.int32), ((), np.float32)
    )
    return _dataset(sample, steps, signature, threads, ahead=2), steps


def balanced_weights(targets: np.ndarray, classes: int) -> np.ndarray:
    """Class weights n / (classes * members of the class), float32 (classes,): their mean over `targets` is 1.

    Raises:
        ValueError: a class has no member.
    """
    members = np.bincount(targets, minlength=classes)
    if len(members) > classes or not members.all():
        raise ValueError(f"{classes} classes, but members {members.tolist()}")
    return (len(targets) / (classes * members)).astype(np.float32)


@contextlib.contextmanager
def input_errors() -> Iterator[None]:
    """A context to take batches in: a damaged shard raises its own ShardError, not TensorFlow's wrapping.

    Raises:
        ShardError: a volume that a dataset of this module reads is damaged.
    """
    try:
        yield
    except tf.errors.OpError:
        if _failures:
            failure = _failures[0]
            _failures.clear()
            raise failure from None
        raise


def _signature(batch: int, *parts: tuple[tuple[int, ...], type]) -> tuple[tf.TensorSpec, ...]:
    return tuple(tf.TensorSpec((batch, *shape), kind) for shape, kind in parts)


def _dataset(
    sample: Callable[[int], tuple[Any, ...]],
    batches: int,
    signature: tuple[tf.TensorSpec, ...],
    threads: int,
    ahead: int,
) -> tf.data.Dataset:
    """Batches of `sample(0)`, `sample(1)`, ..., made in threads and handed out in this order."""
    reader = _Reader(sample, batches, signature, threads, ahead)

    def batch(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
        tensors = tf.numpy_function(reader.batch, [number], [spec.dtype for spec in signature])
        return tuple(tf.ensure_shape(t, spec.shape) for t, spec in zip(tensors, signature, strict=True))

    options = tf.data.Options()
    # Tuning would start more threads than a rank has cores.
    options.autotune.enabled = False
    return tf.data.Dataset.range(batches).map(batch).with_options(options)


class _Reader:
    """Makes batches in threads of its own, some of them ahead of the one asked for.

    The threads are Python's, not tf.data's, with which a process that ends in the middle of an epoch may wait
    for ever: docs/decisions/0004-loader-threads.md.
    """

    def __init__(
        self,
        sample: Callable[[int], tuple[Any, ...]],
        batches: int,
        signature: tuple[tf.TensorSpec, ...],
        threads: int,
        ahead: int,
    ) -> None:
        self._sample = sample
        self._batches = batches
        self._signature = signature
        self._ahead = ahead
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "reader")
        self._lock = threading.Lock()
        self._begun: dict[int, tuple[list[np.ndarray], list[concurrent.futures.Future[None]]]] = {}

    def batch(self, number: np.int64) -> list[np.ndarray]:
        """Batch `number`; the ones after it are begun."""
        wanted = range(int(number), min(int(number) + self._ahead + 1, self._batches))
        with self._lock:
            # What an iteration that was given up had begun is of no use.
            self._begun = {key: begun for key, begun in self._begun.items() if key in wanted}
            for key in wanted:
                if key not in self._begun:
                    self._begun[key] = self._begin(key)
            arrays, samples = self._begun.pop(int(number))
        try:
            for made in samples:
                made.result()
        except CingulumError as error:
            _failures.append(error)
            raise
        return arrays

    def _begin(self, number: int) -> tuple[list[np.ndarray], list[concurrent.futures.Future[None]]]:
        size = self._signature[0].shape[0]
        arrays = [np.empty(spec.shape, spec.dtype.as_numpy_dtype) for spec in self._signature]

        def fill(place: int) -> None:
            for array, value in zip(arrays, self._sample(number * size + place), strict=True):
                array[place] = value

        return arrays, [self._pool.submit(fill, place) for place in range(size)]


def _micro_batch_size(global_batch: int, world_size: int, accumulation: int, n: int) -> int:
    size, rest = divmod(global_batch, world_size * accumulation)
    if rest or not size:
        parts = world_size * accumulation
        below = global_batch - rest
        choices = f"{below} or {below + parts}" if below else str(parts)
        raise ConfigError(
            f"train.global_batch: {global_batch} cannot be cut into {world_size} ranks x {accumulation} "
            "micro-batches.",
            cure=f"Set train.global_batch to a multiple of {parts}, such as {choices}.",
        )
    if global_batch > n:
        raise ConfigError(
            f"train.global_batch: {global_batch} is more than the {n} training volumes.",
            cure="Set it lower, or give training a larger share (data.split).",
        )
    return size
