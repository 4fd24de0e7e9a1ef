"""From shards to batches: micro-batches for training, and every volume once for evaluation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from trainer.config import AugmentConfig, micro_batch
from trainer.data import augment as augmentation
from trainer.data import order
from trainer.data.batch_reader import Arrange, Batches, Overdue, Part, signature
from trainer.data.patches import Patches
from trainer.data.reader_time import ReaderTime
from trainer.data.shards import Origin, ShardSet
from trainer.errors import ConfigError

# The kernel is told of so many samples per thread before they are read, so that a disk works while threads
# decode: with one read per thread it would wait for them.
TOLD_AHEAD = 2
# Past the page cache nothing is read ahead for us: so many more threads wait for a disk while others decode.
WAITING = 2

# Micro-batches of which the samples are remembered: more than are begun, or told to the kernel, at once.
_KEPT = 64


class _Samples(NamedTuple):
    """Of one micro-batch on one rank: the epoch, and position and weight of each sample."""

    epoch: int
    positions: list[int]
    weights: list[float]


def training_batches(
    shards: ShardSet,
    rows: Sequence[int],
    targets: np.ndarray | None,
    *,
    config_seed: int,
    start_step: int,
    stop_step: int,
    global_batch: int,
    rank: int = 0,
    world_size: int = 1,
    accumulation: int = 1,
    augment: AugmentConfig | None = None,
    voxel_mm: tuple[float, float, float] = (1.0, 1.0, 1.0),
    spent: ReaderTime | None = None,
    class_weights: np.ndarray | None = None,
    covariates: np.ndarray | None = None,
    shuffle: order.Shuffle = "auto",
    patches: Patches | None = None,
    prefetch: int = 2,
    read_ahead: int | None = None,
    threads: int = 2,
    overdue: Overdue | None = None,
    steps: Callable[[int], int] | None = None,
) -> Batches:
    """The micro-batches of one rank for the steps `start_step` to `stop_step` of a run.

    Steps count over the whole run: step s is step s % steps_per_epoch of epoch s // steps_per_epoch. The
    elements are the same whatever `threads` and `prefetch`, and over all ranks whatever the world size.

    Args:
        shards: the shard set.
        rows: training rows of `shards.volumes`; positions in `order` count in this list. A row may come
            several times, and is augmented differently each time.
        targets: int32 or float32 (len(rows),), the class or the number of each row; None for label maps.
        config_seed: seed of order and augmentation.
        start_step: first step.
        stop_step: one after the last step.
        global_batch: samples per step, over all ranks and micro-batches.
        rank: this rank.
        world_size: number of ranks.
        accumulation: micro-batches per step.
        augment: random changes; none by default.
        voxel_mm: edges of a voxel along D, H, W, in mm, for `augment`.
        spent: counts the seconds of the threads.
        class_weights: float32 (classes,), multiplies the weight of each sample of that class, as it is. With
            `balanced_weights` the mean weight over the training list stays 1.
        covariates: float32 (len(rows), k), what belongs to each row besides its volume; None for nothing.
        shuffle: see `order.order`.
        patches: what is taken of each volume; None for all of it.
        prefetch: micro-batches made ahead.
        read_ahead: bytes that these may take at most; None for any number.
        threads: that read, decode and augment.
        overdue: see `batch_reader.Batches`.
        steps: from 0, 1, ... to the steps to take instead of `start_step`, `start_step` + 1, ...; called in
            reading threads, and may wait.

    Returns:
        (stop_step - start_step) * accumulation times (x, y, w): x float32 (b, D, H, W, C), or a pair of it
        and float32 (b, k) with covariates; y (b,) as `targets`, or uint8 (b, D, H, W); w float32 (b,) with 0
        for the fill of an epoch's last step, where b is global_batch / (world_size * accumulation). With
        patches, D, H and W are theirs.

    Raises:
        ConfigError: the global batch cannot be cut into equal micro-batches, or is larger than the training
            list. Iterating raises ShardError where a volume is damaged.
    """
    n = len(rows)
    batch = _micro_batch_size(global_batch, world_size, accumulation, n)
    per_epoch = order.steps_per_epoch(n, global_batch)
    keys = _distinct(rows, len(shards))
    spent = spent or ReaderTime()
    changes = None if augment is None or augment.is_idle else augment
    shape = shards.shape if patches is None else patches.shape
    batches = max(0, stop_step - start_step) * accumulation
    samples = batches * batch
    soon = TOLD_AHEAD * threads

    # Computed once for all samples of it: threads hold Python's lock meanwhile, one after the other.
    @functools.lru_cache(maxsize=_KEPT)
    def samples_of(micro_batch: int) -> _Samples:
        step, micro = divmod(micro_batch, accumulation)
        epoch, step = divmod(start_step + step if steps is None else steps(step), per_epoch)
        mine = order.micro_batch_positions(global_batch, rank, world_size, accumulation, micro)
        positions = order.order(config_seed, epoch, step, global_batch, n, shuffle=shuffle)[mine]
        return _Samples(epoch, positions.tolist(), order.weights(step, global_batch, n)[mine].tolist())

    def fill(number: int, places: Sequence[np.ndarray]) -> None:
        began = spent.now()
        # Where steps may have to be waited for, the kernel is not told of later ones.
        if steps is None and patches is None and number + soon < samples:
            later, place = divmod(number + soon, batch)
            shards.will_read(rows[samples_of(later).positions[place]], with_map=targets is None)
        x, *told, y, w = places
        micro_batch, place = divmod(number, batch)
        epoch, positions, weights = samples_of(micro_batch)
        position, weight = positions[place], weights[place]
        if class_weights is not None and targets is not None:
            weight = weight * class_weights[targets[position]]
        row, key = rows[position], keys[position]
        origin = None if patches is None else patches.origin(config_seed, epoch, key, row)
        _read(shards, row, None if targets is None else targets[position], x, y, origin)
        read = spent.now()
        if changes is not None:
            changed, label_map = augmentation.augment(
                x,
                changes,
                config_seed,
                epoch,
                key,
                y if targets is None else None,
                voxel_mm=voxel_mm,
            )
            if changed is not x:
                x[...] = changed
            if label_map is not None and label_map is not y:
                y[...] = label_map
        ended = spent.now()
        spent.add(ended - began, ended - read)
        _tell(told, covariates, position)
        w[...] = weight

    spec = signature(batch, *_input_parts(shape, covariates), _target_part(shape, targets), _WEIGHT)
    return Batches(
        fill,
        batches,
        spec,
        threads=_threads(shards, threads),
        ahead=prefetch,
        ahead_bytes=read_ahead,
        overdue=overdue,
        arrange=_paired(covariates, before=0),
    )


def evaluation_batches(
    shards: ShardSet,
    rows: Sequence[int],
    targets: np.ndarray | None,
    *,
    rank: int = 0,
    world_size: int = 1,
    batch: int = 1,
    covariates: np.ndarray | None = None,
    read_ahead: int | None = None,
    threads: int = 2,
    overdue: Overdue | None = None,
) -> Batches:
    """Each of `rows` exactly once over all ranks, in as many batches on one rank as on any other.

    Args:
        shards: the shard set.
        rows: rows of `shards.volumes`, each once.
        targets: int32 or float32 (len(rows),), the class or the number of each row; None for label maps.
        rank: this rank.
        world_size: number of ranks.
        batch: volumes per batch and rank.
        covariates: float32 (len(rows), k), what belongs to each row besides its volume; None for nothing.
        read_ahead: bytes that batches made ahead may take at most; None for any number.
        threads: that read and decode.
        overdue: see `batch_reader.Batches`.

    Returns:
        Batches (row, x, y, w): row int64 (batch,), and x, y, w as those of `training_batches`. The last ones
        are filled up with empty volumes of row -1, target 0 and weight 0.
    """
    steps = order.steps_per_epoch(len(rows), world_size * batch)

    target = _target_part(shards.shape, targets)

    def fill(number: int, places: Sequence[np.ndarray]) -> None:
        row, x, *told, y, w = places
        step, place = divmod(number, batch)
        position = (step * world_size + rank) * batch + place
        if position >= len(rows):
            for part, nothing in ((row, -1), (x, 0), (y, 0), (w, 0), *((part, 0) for part in told)):
                part[...] = nothing
            return
        row[...] = rows[position]
        _read(shards, rows[position], None if targets is None else targets[position], x, y)
        _tell(told, covariates, position)
        w[...] = 1

    spec = signature(batch, ((), np.int64), *_input_parts(shards.shape, covariates), target, _WEIGHT)
    return Batches(
        fill,
        steps,
        spec,
        threads=_threads(shards, threads),
        ahead=2,
        ahead_bytes=read_ahead,
        overdue=overdue,
        arrange=_paired(covariates, before=1),
    )


_WEIGHT: Part = ((), np.float32)


def _threads(shards: ShardSet, wanted: int) -> int:
    return wanted + (WAITING if shards.past_cache else 0)


def _input_parts(shape: tuple[int, ...], covariates: np.ndarray | None) -> list[Part]:
    volume: Part = (shape, np.float32)
    return [volume] if covariates is None else [volume, (covariates.shape[1:], np.float32)]


def _target_part(shape: tuple[int, ...], targets: np.ndarray | None) -> Part:
    if targets is None:
        return shape[:3], np.uint8
    return (), np.float32 if targets.dtype == np.float32 else np.int32


def _read(
    shards: ShardSet,
    row: int,
    target: np.generic | None,
    x: np.ndarray,
    y: np.ndarray,
    origin: Origin | None = None,
) -> None:
    shards.read_into(row, x, origin)
    if target is None:
        shards.read_map_into(row, y, origin)
    else:
        y[...] = target


def _tell(told: Sequence[np.ndarray], covariates: np.ndarray | None, position: int) -> None:
    if covariates is not None:
        told[0][...] = covariates[position]


def _paired(covariates: np.ndarray | None, *, before: int) -> Arrange:
    """Volume and covariates as one input; `before` parts come before them."""
    if covariates is None:
        return tuple
    return lambda parts: (*parts[:before], (parts[before], parts[before + 1]), *parts[before + 2 :])


def _distinct(rows: Sequence[int], volumes: int) -> list[int]:
    """A number for each place of the list: the row, and another one each time it comes again."""
    times: dict[int, int] = {}
    numbers = []
    for row in rows:
        numbers.append(row + volumes * times.get(row, 0))
        times[row] = times.get(row, 0) + 1
    return numbers


def _micro_batch_size(global_batch: int, world_size: int, accumulation: int, n: int) -> int:
    size = micro_batch(global_batch, world_size=world_size, accumulation=accumulation)
    if global_batch > n:
        raise ConfigError(
            f"train.global_batch: {global_batch} is more than the {n} training volumes.",
            cure="Set it lower, or give training a larger share (data.split).",
        )
    return size
