"""From shards to tf.data: micro-batches for training, and every volume once for evaluation."""

from __future__ import annotations

import contextlib
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

    def sample(number: np.int64) -> tuple[np.ndarray, np.int32, np.float32]:
        micro_batch, place = divmod(int(number), batch)
        step, micro = divmod(micro_batch, accumulation)
        epoch, step = divmod(start_step + step, per_epoch)
        first = order.micro_batch_positions(global_batch, rank, world_size, accumulation, micro).start
        position = order.order(config_seed, epoch, step, global_batch, n)[first + place]
        weight = order.weights(step, global_batch, n)[first + place]
        if class_weights is not None:
            weight = weight * class_weights[targets[position]]
        x = shards.read(rows[position]).astype(np.float32)
        if augment is not None:
            x = augmentation.augment(x, augment, config_seed, epoch, rows[position])
        return x, np.int32(targets[position]), np.float32(weight)

    samples = max(0, stop_step - start_step) * accumulation * batch
    kinds = (tf.float32, tf.int32, tf.float32)
    return _batches(sample, samples, kinds, (shards.shape, (), ()), batch, threads, prefetch)


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

    def sample(number: np.int64) -> tuple[np.int64, np.ndarray, np.int32, np.float32]:
        step, place = divmod(int(number), batch)
        position = (step * world_size + rank) * batch + place
        if position >= len(rows):
            return np.int64(-1), np.zeros(shards.shape, np.float32), np.int32(0), np.float32(0)
        x = shards.read(rows[position]).astype(np.float32)
        return np.int64(rows[position]), x, np.int32(targets[position]), np.float32(1)

    kinds = (tf.int64, tf.float32, tf.int32, tf.float32)
    dataset = _batches(sample, steps * batch, kinds, ((), shards.shape, (), ()), batch, threads, prefetch=2)
    return dataset, steps


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


def _batches(
    sample: Callable[..., tuple[Any, ...]],
    samples: int,
    kinds: tuple[tf.DType, ...],
    shapes: tuple[tuple[int, ...], ...],
    batch: int,
    threads: int,
    prefetch: int,
) -> tf.data.Dataset:
    """Batches of `sample(0)`, `sample(1)`, ..., made in threads and handed out in this order."""

    def guarded(number: np.int64) -> tuple[Any, ...]:
        try:
            return sample(number)
        except CingulumError as error:
            _failures.append(error)
            raise

    def parts(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
        tensors = tf.numpy_function(guarded, [number], kinds)
        return tuple(tf.ensure_shape(t, shape) for t, shape in zip(tensors, shapes, strict=True))

    options = tf.data.Options()
    options.deterministic = True
    # Threads of our own: the rank's compute threads, often one, stay with the network.
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    # Tuning would start more threads than a rank has cores.
    options.autotune.enabled = False
    dataset = tf.data.Dataset.range(samples)
    dataset = dataset.map(parts, num_parallel_calls=threads, deterministic=True)
    return dataset.batch(batch, drop_remainder=True).prefetch(prefetch).with_options(options)


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
