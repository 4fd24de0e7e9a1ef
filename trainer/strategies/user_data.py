"""A rank's share of data that a user's own script brings: arrays or a `tf.data.Dataset`.

Every rank gets equally many samples, always: ranks that take different numbers of steps wait for each
other for ever. Where the data do not divide evenly, the first samples fill up the last ranks' shares.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer import world as worlds
from trainer.errors import ConfigError, InputError


def shard(*data: Any, batched: bool | None = None) -> Any:
    """This rank's share.

    Arrays: sample i goes to rank i mod n. With the global batch divided by `trainer.size()` as `batch_size`
    and without shuffling, step s then sees the same samples as one process does. Up to n-1 of the first
    samples are repeated at the end, so that all shares are equally long.

    Dataset of samples: element i goes to rank i mod n; up to n-1 elements at the end are dropped, since their
    number is not known beforehand. Dataset of batches: every batch is split into n equal parts, so the
    global batch stays what it was; a last batch that does not divide is filled up with its own first
    samples. Every rank reads what comes before `shard`, in the same order only if a shuffle before it has a
    seed (`keras.utils.set_random_seed` gives one). Best is `shard` first, then shuffle, decode and batch.

    Args:
        *data: arrays with a common first axis, or one dataset. None is handed back as None.
        batched: whether the dataset's elements are batches. Default: they are if all parts of an element
            have the same first dimension.

    Returns:
        The share, in the form given: one thing, or a tuple.

    Raises:
        InputError: arrays of different length, fewer samples than ranks, or something else than data.
        WorldError: `trainer.init` was not called.
    """
    import tensorflow as tf

    world = worlds.current()
    if len(data) == 1 and isinstance(data[0], tf.data.Dataset):
        return _dataset_share(data[0], world, _is_batched(data[0]) if batched is None else batched)
    shares = _array_shares(data, world)
    return shares[0] if len(shares) == 1 else tuple(shares)


def share_of(n: int, rank: int, size: int) -> np.ndarray:
    """Positions of a rank's samples among n, int64 `(ceil(n / size),)`; pure."""
    return (np.arange(-(-n // size), dtype=np.int64) * size + rank) % n


def _array_shares(data: tuple[Any, ...], world: worlds.World) -> list[Any]:
    for number, part in enumerate(data):
        if part is not None and not hasattr(part, "__getitem__"):
            raise InputError(
                f"trainer.shard: argument {number + 1} ({type(part).__name__}) cannot be shared out.",
                cure="Give arrays, or one tf.data.Dataset.",
            )
    lengths = {len(part) for part in data if part is not None}
    if len(lengths) != 1:
        raise InputError(f"trainer.shard: the arrays have different numbers of samples: {sorted(lengths)}.")
    n = lengths.pop()
    if n < world.size:
        raise InputError(f"trainer.shard: {n} samples are too few for {world.size} ranks.")
    if world.size == 1:
        return list(data)
    mine = share_of(n, world.rank, world.size)
    return [None if part is None else np.asarray(part)[mine] for part in data]


def _is_batched(dataset: Any) -> bool:
    import tensorflow as tf

    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    if any(shape.rank is None or shape.rank == 0 for shape in shapes):
        return False
    return len({shape[0] for shape in shapes}) == 1


def _dataset_share(dataset: Any, world: worlds.World, batched: bool) -> Any:
    import tensorflow as tf

    if world.size == 1:
        return dataset
    if batched:
        return dataset.map(lambda *batch: _unwrapped([_part(b, world) for b in batch]))
    known = int(dataset.cardinality())
    if 0 <= known < world.size:
        raise ConfigError(f"trainer.shard: {known} elements are too few for {world.size} ranks.")
    if known > 0:
        return dataset.shard(world.size, world.rank).take(known // world.size)
    if known == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(world.size, world.rank)
    # Unknown number: a window of one element per rank is taken whole or not at all.
    windows = dataset.batch(world.size, drop_remainder=True)
    return windows.map(lambda *window: _unwrapped([_pick(w, world.rank) for w in window]))


def _part(batch: Any, world: worlds.World) -> Any:
    """This rank's part of a batch, or of each tensor of a nested one."""
    import tensorflow as tf

    def part(tensor: Any) -> Any:
        length = tf.shape(tensor)[0]
        share = -(-length // world.size)
        mine = (world.rank * share + tf.range(share)) % length
        taken = tf.gather(tensor, mine)
        fixed = tensor.shape[0]
        return (
            taken if fixed is None else tf.ensure_shape(taken, [-(-fixed // world.size), *tensor.shape[1:]])
        )

    return tf.nest.map_structure(part, batch)


def _pick(window: Any, rank: int) -> Any:
    import tensorflow as tf

    return tf.nest.map_structure(lambda tensor: tensor[rank], window)


def _unwrapped(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tuple(parts)
