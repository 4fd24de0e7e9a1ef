"""From shards to batches: micro-batches for training, and every volume once for evaluation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from trainer.config import RunConfig, micro_batch
from trainer.data import augment as augmentation
from trainer.data.augment import boxed
from trainer.data.augment.drawing import Drawn
from trainer.data.loading import order
from trainer.data.loading.batch_reader import Arrange, Batches, Fill, Part, signature
from trainer.data.loading.patches import Patches
from trainer.data.loading.reader_time import ReaderTime
from trainer.data.loading.slabs import Slab, Space
from trainer.data.shards.shards import Origin, ShardSet
from trainer.data.shards.thread_memory import scratch
from trainer.errors import ConfigError

# Samples per thread that are announced to the kernel before they are read, so that a disk works while threads
# decode: with one read per thread it would wait for them.
ANNOUNCED_AHEAD = 2
# Past the page cache nothing is read ahead for us: so many more threads wait for a disk while others decode.
WAITING = 2

# Micro-batches of which the samples are remembered: more than are begun, or announced to the kernel, at once.
_KEPT = 64


@dataclass(frozen=True)
class Samples:
    """Samples of a split: the volumes to read, and what belongs to each.

    Attributes:
        shards: the shard set.
        rows: of `shards.volumes`; a row may come several times in training, and is augmented differently each
            time.
        targets: int32 or float32 (len(rows),), the class or the number of each row; None for label maps.
        covariates: float32 (len(rows), k), non-image inputs of each row; None without them.
        class_weights: float32 (classes,), multiplies the weight of each training sample of that class. With
            `balanced_weights` the mean weight over the training list stays 1.
        patches: the patch of each volume to train on; None for the whole volume.
    """

    shards: ShardSet
    rows: Sequence[int]
    targets: np.ndarray | None
    covariates: np.ndarray | None = None
    class_weights: np.ndarray | None = None
    patches: Patches | None = None

    def parts(self, shape: tuple[int, ...], slab: Slab | None = None) -> list[Part]:
        """Return shape and type of input (and covariates), target and weight of a sample of this shape.

        Of a slab only the input has the shape: a label map is whole.
        """
        extra: list[Part] = [] if self.covariates is None else [(self.covariates.shape[1:], np.float32)]
        target: Part = shape[:3], np.uint8
        if self.targets is not None:
            target = (), np.float32 if self.targets.dtype == np.float32 else np.int32
        return [(shape if slab is None else slab.shape, np.float32), *extra, target, ((), np.float32)]

    def read_into(
        self,
        position: int,
        x: np.ndarray,
        y: np.ndarray,
        origin: Origin | None = None,
        slab: Slab | None = None,
    ) -> None:
        """Read volume and target at a position of the list, or the part of both that begins at `origin`.

        Of a slab, `x` is filled with the slab alone.
        """
        row = self.rows[position]
        if slab is None:
            self.shards.read_into(row, x, origin)
        elif not slab.is_empty:
            self.shards.read_into(row, x, slab.origin(origin))
        if self.targets is None:
            self.shards.read_map_into(row, y, origin)
        else:
            y[...] = self.targets[position]


class _MicroBatch(NamedTuple):
    """Epoch of a micro-batch on one rank, and position and weight of each of its samples."""

    epoch: int
    positions: list[int]
    weights: list[float]


def training_batches(
    samples: Samples,
    config: RunConfig,
    steps: range,
    *,
    rank: int = 0,
    world_size: int = 1,
    space: Space | None = None,
    spent: ReaderTime | None = None,
    step_of: Callable[[int], int] | None = None,
) -> Batches:
    """Return the micro-batches of one rank for some steps of a run.

    Steps count over the whole run: step s is step s % steps_per_epoch of epoch s // steps_per_epoch. The
    elements are the same whatever `data.reader_threads`, `data.prefetch` and `data.read_ahead`, and over all
    ranks whatever the world size.

    Args:
        samples: what is read; positions of `order` are places in its rows.
        config: of the run: `train.seed`, `global_batch` and `accumulation`, and the reading keys of `data`.
        steps: first step to one after the last.
        rank: this rank.
        world_size: number of ranks.
        space: box of each volume, or patch, that is read; None for all of it. x is then bit for bit this box
            of what it is without; label maps stay whole.
        spent: counts the seconds of the threads.
        step_of: from 0, 1, ... to the steps to take instead of those in `steps`; called in reading threads,
            and may wait.

    Returns:
        len(steps) * accumulation times (x, y, w): x float32 (b, D, H, W, C), or a pair of it
        and float32 (b, k) with covariates; y (b,) as `targets`, or uint8 (b, D, H, W); w float32 (b,) with 0
        for the fill of an epoch's last step, where b is global_batch / (world_size * accumulation). With
        patches, D, H and W are theirs; with `space`, those of x are its own.

    Raises:
        ConfigError: the global batch cannot be cut into equal micro-batches, or is larger than the training
            list; or the box does not lie in the input. Iterating raises ShardError where a volume is damaged.
    """
    n, shards, patches = len(samples.rows), samples.shards, samples.patches
    seed, global_batch, accumulation = config.train.seed, config.train.global_batch, config.train.accumulation
    batch = _micro_batch_size(global_batch, world_size, accumulation, n)
    per_epoch = order.steps_per_epoch(n, global_batch)
    keys = _distinct(samples.rows, len(shards))
    shape = shards.shape if patches is None else patches.shape
    slab = Slab.of(space, shape)
    spent = spent or ReaderTime()
    reads_volumes = slab is None or not slab.is_empty
    is_changed = not config.data.augment.is_idle and (reads_volumes or samples.targets is None)
    changes = config.data.augment if is_changed else None
    batches = len(steps) * accumulation
    # Where steps may have to be waited for, later ones are not announced.
    is_announced = step_of is None and patches is None and reads_volumes
    soon = ANNOUNCED_AHEAD * config.data.reader_threads

    # Computed once for all samples of it: threads hold Python's lock meanwhile, one after the other.
    @functools.lru_cache(maxsize=_KEPT)
    def samples_of(micro_batch: int) -> _MicroBatch:
        number, micro = divmod(micro_batch, accumulation)
        epoch, step = divmod(steps[number] if step_of is None else step_of(number), per_epoch)
        mine = order.micro_batch_positions(global_batch, rank, world_size, accumulation, micro)
        positions = order.order(seed, epoch, step, global_batch, n, shuffle=config.data.shuffle)[mine]
        return _MicroBatch(epoch, positions.tolist(), order.weights(step, global_batch, n)[mine].tolist())

    def fill(number: int, places: Sequence[np.ndarray]) -> None:
        began = spent.now()
        if is_announced and number + soon < batches * batch:
            later, place = divmod(number + soon, batch)
            row = samples.rows[samples_of(later).positions[place]]
            shards.will_read(row, with_map=samples.targets is None)
        x, *extra, y, w = places
        micro_batch, place = divmod(number, batch)
        epoch, positions, weights = samples_of(micro_batch)
        position, weight = positions[place], weights[place]
        if samples.class_weights is not None and samples.targets is not None:
            weight = weight * samples.class_weights[samples.targets[position]]
        key = keys[position]
        origin = None if patches is None else patches.origin(seed, epoch, key, samples.rows[position])

        def read(volume: np.ndarray, box: Slab | None) -> None:
            samples.read_into(position, volume, y, origin, box)

        starts = spent.now()
        if changes is None:
            read(x, slab)
            reading_s = spent.now() - starts
        else:
            drawn = augmentation.draw(changes, seed, epoch, key, shape, shards.voxel_size)
            reading_s = read_changed(read, drawn, x, y if samples.targets is None else None, slab)
        ended = spent.now()
        spent.add(ended - began, ended - starts - reading_s)
        _fill_covariates(extra, samples.covariates, position)
        w[...] = weight

    spec = signature(batch, *samples.parts(shape, slab))
    return _batches(samples, config, fill, batches, spec, ahead=config.data.prefetch, before=0)


def evaluation_batches(
    samples: Samples, config: RunConfig, *, rank: int = 0, world_size: int = 1, space: Space | None = None
) -> Batches:
    """Return batches with each row once over all ranks, equally many on every rank.

    Args:
        samples: what is read, each row once and whole.
        config: of the run: `data.evaluation_batch`, and all of `data` that is about reading.
        rank: this rank.
        world_size: number of ranks.
        space: as of `training_batches`; not heeded with patches, whose volumes are evaluated whole.

    Returns:
        Batches (row, x, y, w): row int64 (batch,), and x, y, w as those of `training_batches`. The last ones
        are filled up with empty volumes of row -1, target 0 and weight 0.

    Raises:
        ConfigError: the box does not lie in the volumes.
    """
    rows, batch = samples.rows, config.data.evaluation_batch
    slab = None if samples.patches is not None else Slab.of(space, samples.shards.shape)
    steps = order.steps_per_epoch(len(rows), world_size * batch)

    def fill(number: int, places: Sequence[np.ndarray]) -> None:
        row, x, *extra, y, w = places
        step, place = divmod(number, batch)
        position = (step * world_size + rank) * batch + place
        if position >= len(rows):
            for part, nothing in ((row, -1), (x, 0), (y, 0), (w, 0), *((part, 0) for part in extra)):
                part[...] = nothing
            return
        row[...] = rows[position]
        samples.read_into(position, x, y, slab=slab)
        _fill_covariates(extra, samples.covariates, position)
        w[...] = 1

    spec = signature(batch, ((), np.int64), *samples.parts(samples.shards.shape, slab))
    return _batches(samples, config, fill, steps, spec, ahead=2, before=1)


def _batches(
    samples: Samples,
    config: RunConfig,
    fill: Fill,
    batches: int,
    spec: Sequence[tf.TensorSpec],
    *,
    ahead: int,
    before: int,
) -> Batches:
    """Return batches of the samples that `fill` makes; `before` parts come before volume and covariates."""
    shards = samples.shards
    return Batches(
        fill,
        batches,
        spec,
        threads=config.data.reader_threads + (WAITING if shards.past_cache else 0),
        ahead=ahead,
        ahead_bytes=config.data.read_ahead << 20,
        overdue=functools.partial(shards.overdue, config.data.read_timeout),
        arrange=_paired(samples.covariates, before=before),
    )


def _fill_covariates(extra: Sequence[np.ndarray], covariates: np.ndarray | None, position: int) -> None:
    if covariates is not None:
        extra[0][...] = covariates[position]


def _paired(covariates: np.ndarray | None, *, before: int) -> Arrange:
    """Return how to pair volume and covariates to one input; `before` parts come before them."""
    if covariates is None:
        return tuple
    return lambda parts: (*parts[:before], (parts[before], parts[before + 1]), *parts[before + 2 :])


def _distinct(rows: Sequence[int], volumes: int) -> list[int]:
    """Return a number for each position of the list: the row, or another one where a row comes again."""
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
            cure=f"Set it to at most {n}, or give training a larger share (data.split).",
        )
    return size


# Read a training sample and change it at random: the whole of it, or as much as a slab needs.


# Fills an array with a box of a volume, or with all of it, and reads its target.
Read = Callable[[np.ndarray, Slab | None], None]


def read_changed(
    read: Read, drawn: Drawn, x: np.ndarray, label_map: np.ndarray | None, slab: Slab | None
) -> float:
    """Fill `x` with a volume, or with its slab, as changed, and move the label map with it.

    The slab is bit for bit that of the whole changed volume. Where the changes need the whole volume, all of
    it is read, changed and cropped.

    Args:
        read: reads the volume, and its label map into `label_map`.
        drawn: the changes.
        x: float32 (D, H, W, C), or the shape of the slab; filled.
        label_map: uint8 (D, H, W), or None.
        slab: what is wanted; None for all.

    Returns:
        Seconds of it that were spent reading.
    """
    box = None if slab is None else boxed.source(drawn, slab.ranges)
    volume, taken = x, None
    if slab is not None:
        taken = None if box is None else Slab(box, slab.whole)
        volume = _memory(slab.whole if taken is None else taken.shape)
    began = ReaderTime.now()
    read(volume, taken)
    reading_s = ReaderTime.now() - began
    if slab is None or box is None:
        changed, moved = drawn.applied(volume, label_map)
        changed = changed if slab is None else changed[slab.part]
    else:
        changed = boxed.changed(drawn, volume, slab.ranges)
        moved = None if label_map is None else boxed.moved(drawn, label_map)
    if changed is not x:
        x[...] = changed
    if label_map is not None and moved is not label_map:
        label_map[...] = moved
    return reading_s


def _memory(shape: tuple[int, ...]) -> np.ndarray:
    """Return uninitialised float32 memory of this shape, valid until the thread asks again."""
    return scratch("unchanged", prod(shape) * 4).view(np.float32).reshape(shape)
