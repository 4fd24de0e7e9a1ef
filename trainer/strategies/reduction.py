"""How gradients are combined over ranks: when they leave, in which groups, and in which type.

A reduction is a function from this rank's gradients to their mean over all ranks. Every rank builds the
same one from the same list of variables, so all reach the same collectives whatever their data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

from trainer.errors import ConfigError
from trainer.ranks.world import World
from trainer.telemetry.timeline import Buckets

Kind = Literal["buckets", "per_tensor", "grouped"]
Wire = Literal["none", "float16", "bfloat16"]
Reduction = Callable[[Sequence[Any]], list[Any]]

MIB = 2**20
# Bytes: what TensorFlow's own memory is aligned to.
_ALIGNMENT = 64


def make(
    world: World, name: str, *, kind: Kind, bucket_mb: float, wire: Wire, gather: bool = False
) -> Reduction:
    """Return the reduction of one optimizer.

    Args:
        world: whose ranks take part.
        name: distinguishes the collectives of several optimizers.
        kind: `grouped`: all gradients leave at once, after the whole backward pass. `per_tensor`: each
            leaves as soon as it exists. `buckets`: as soon as a bucket of about `bucket_mb` MiB exists;
            filled in reverse layer order, which is the order of the backward pass.
        bucket_mb: size of a bucket, in MiB of gradients as computed.
        wire: type of the gradients on the way; they come back in their own type.
        gather: collect all ranks' gradients on rank 0, add them there and broadcast the mean, in place of an
            all-reduce: the naive way, to compare with.

    Raises:
        ConfigError: an unknown kind or type.
    """
    if wire not in _AVERAGES:
        raise ConfigError(f"compression: {wire!r} is unknown.", cure=f"One of {', '.join(_AVERAGES)}.")
    if kind not in ("buckets", "per_tensor", "grouped"):
        raise ConfigError(f"reduction: {kind!r} is unknown.", cure="One of buckets, per_tensor, grouped.")
    if bucket_mb <= 0:
        raise ConfigError(f"bucket_mb: {bucket_mb} is not a size: it must be > 0.", cure="Give more than 0.")
    limit = _limit(kind, bucket_mb)
    average = functools.partial(_mean_gathered, wire=wire) if gather else _AVERAGES[wire]

    def reduce(gradients: Sequence[Any]) -> list[Any]:
        import tensorflow as tf

        # The gradient of an embedding comes as slices; their rows differ from rank to rank.
        dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        sizes = [0 if g is None else g.shape.num_elements() * g.dtype.size for g in dense]
        present = [i for i, g in enumerate(dense) if g is not None]
        timed = Buckets()
        for number, bucket in enumerate(buckets([sizes[i] for i in present], limit)):
            members = [present[i] for i in bucket]
            leaving = [dense[i] for i in members]
            timed.leaves(leaving, _on_wire(leaving, wire))
            reduced = _unpacked(average(world, _packed(leaving), f"{name}.bucket_{number}"), leaving)
            timed.returns(reduced)
            for i, gradient in zip(members, reduced, strict=True):
                dense[i] = gradient
        timed.keep()
        return dense

    return reduce


def bytes_on_wire(
    sizes: Sequence[int], widths: Sequence[int], *, kind: Kind, bucket_mb: float, wire: Wire
) -> tuple[int, ...]:
    """Return the bytes that each bucket of `make` has on the way, in the order in which they leave. Pure.

    Args:
        sizes: elements of each gradient, in the order of the forward pass.
        widths: bytes per element of each.
        kind: see `make`.
        bucket_mb: see `make`.
        wire: see `make`.
    """
    as_computed = [size * width for size, width in zip(sizes, widths, strict=True)]
    return tuple(
        sum(sizes[i] for i in members) * (max(widths[i] for i in members) if wire == "none" else 2)
        for members in buckets(as_computed, _limit(kind, bucket_mb))
    )


def _limit(kind: Kind, bucket_mb: float) -> float:
    """Bytes at which a bucket is full; 0: each gradient is one."""
    return {"buckets": bucket_mb * MIB, "per_tensor": 0.0, "grouped": float("inf")}[kind]


def buckets(sizes: Sequence[int], limit: float) -> list[list[int]]:
    """Group tensors, last first, until a group reaches the limit.

    Args:
        sizes: bytes of each tensor, in the order of the forward pass.
        limit: bytes at which a group is full; 0 puts every tensor in a group of its own.

    Returns:
        Groups of positions, in the order in which the backward pass completes them.
    """
    groups: list[list[int]] = []
    filled = float("inf")
    for position in reversed(range(len(sizes))):
        # A group holds at least one tensor, and is closed rather than overfilled.
        if not groups or filled + sizes[position] > limit:
            groups.append([])
            filled = 0
        groups[-1].append(position)
        filled += sizes[position]
    return groups


def _on_wire(tensors: Sequence[Any], wire: Wire) -> int:
    """Bytes of these tensors on the way, without what fills up rows."""
    widest = max(int(t.dtype.size) for t in tensors)
    return sum(t.shape.num_elements() for t in tensors) * (widest if wire == "none" else 2)


def _packed(tensors: Sequence[Any]) -> Any:
    """One flat tensor that holds all of them: one message to negotiate, and no copy of Horovod's own.

    Each begins at a multiple of 64 bytes, zeros between them, so that `_unpacked` need not copy.
    """
    import tensorflow as tf

    if len(tensors) == 1:
        return tf.reshape(tensors[0], [-1])
    dtypes = {t.dtype for t in tensors}
    dtype = dtypes.pop() if len(dtypes) == 1 else tf.float64 if tf.float64 in dtypes else tf.float32
    rows = []
    for tensor in tensors:
        flat = tf.cast(tf.reshape(tensor, [-1]), dtype)
        if missing := -flat.shape[0] % _in_a_row(dtype):
            flat = tf.pad(flat, [[0, missing]])
        rows.append(tf.reshape(flat, [-1, _in_a_row(dtype)]))
    return tf.reshape(tf.concat(rows, 0), [-1])


def _unpacked(flat: Any, tensors: Sequence[Any]) -> list[Any]:
    """The parts of what `_packed` made, each in the shape and dtype of the one that it was made from."""
    import tensorflow as tf

    if len(tensors) == 1:
        return [tf.reshape(flat, tensors[0].shape)]
    width = _in_a_row(flat.dtype)
    sizes = [t.shape.num_elements() for t in tensors]
    # Whole rows of aligned memory: TensorFlow hands out parts of it, where it would copy others.
    pieces = tf.split(tf.reshape(flat, [-1, width]), [-(-size // width) for size in sizes])
    return [
        tf.cast(tf.reshape(tf.reshape(piece, [-1])[:size], t.shape), t.dtype)
        for piece, size, t in zip(pieces, sizes, tensors, strict=True)
    ]


def _in_a_row(dtype: Any) -> int:
    return _ALIGNMENT // int(dtype.size)


def _mean(world: World, flat: Any, name: str) -> Any:
    # TensorFlow divides in place and several numbers at once, Horovod's "mean" one by one.
    return world.grouped_allreduce([flat], "sum", name=name)[0] / world.size


def _mean_float16(world: World, flat: Any, name: str) -> Any:
    import tensorflow as tf

    # Divided first: a sum over many ranks could leave float16's range (65504).
    narrow = tf.cast(flat / world.size, tf.float16)
    return tf.cast(world.grouped_allreduce([narrow], "sum", name=name)[0], flat.dtype)


def _mean_bfloat16(world: World, flat: Any, name: str) -> Any:
    """Mean with bfloat16 on the wire, which Horovod's all-reduce does not know.

    A reduce-scatter made of an all-to-all of bits, summed in float32, then an all-gather of bits: the
    ring's 2(n-1)/n bytes per byte of gradient, and one rounding on each of the two ways only.
    """
    import tensorflow as tf

    length = flat.shape[0]
    part = -(-length // world.size)
    padded = tf.pad(tf.cast(flat, tf.bfloat16), [[0, part * world.size - length]])
    received = world.alltoall(tf.bitcast(padded, tf.uint16), name=f"{name}.scatter")
    parts = tf.bitcast(tf.reshape(received, [world.size, part]), tf.bfloat16)
    mine = tf.cast(tf.reduce_mean(tf.cast(parts, tf.float32), axis=0), tf.bfloat16)
    gathered = world.allgather(tf.bitcast(mine, tf.uint16), name=f"{name}.gather")
    whole = tf.bitcast(tf.reshape(gathered, [part * world.size]), tf.bfloat16)[:length]
    return tf.cast(whole, flat.dtype)


def _mean_gathered(world: World, flat: Any, name: str, *, wire: Wire) -> Any:
    """Mean at rank 0, which receives (n-1) and sends (n-1) times all gradients.

    Horovod has no gather: it is an all-to-all in which every rank has something for rank 0 only.
    """
    import tensorflow as tf

    kind = flat.dtype if wire == "none" else tf.as_dtype(wire)
    # Horovod's collectives do not know bfloat16; rank 0 adds in at least float32.
    bits = tf.uint16 if kind == tf.bfloat16 else kind
    sums = tf.float64 if kind == tf.float64 else tf.float32
    sent = tf.bitcast(tf.cast(flat, kind), bits)
    length = flat.shape[0]
    splits = [length] + [0] * (world.size - 1)
    received = world.alltoall(sent, splits=splits, name=f"{name}.gather")
    # Empty on the other ranks; without a use of it, TensorFlow would take the all-to-all out of the step.
    mean = tf.concat([sent, received], 0)
    if world.rank == 0:
        everyones = tf.bitcast(tf.reshape(received, [world.size, length]), kind)
        mean = tf.bitcast(tf.cast(tf.reduce_mean(tf.cast(everyones, sums), axis=0), kind), bits)
    whole = world.broadcast_tensor(tf.reshape(mean, [length]), name=f"{name}.broadcast")
    return tf.cast(tf.bitcast(whole, kind), flat.dtype)


_AVERAGES: dict[str, Callable[[World, Any, str], Any]] = {
    "none": _mean,
    "float16": _mean_float16,
    "bfloat16": _mean_bfloat16,
}
