"""Weights and optimizer state between one whole network, on rank 0, and the blocks of all ranks."""

from __future__ import annotations

import hashlib
from itertools import groupby
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import DivergenceError
from trainer.planning.placement.boxes import Box, whole
from trainer.planning.placement.units import Placement
from trainer.ranks.exchange import Parcel, RankExchange
from trainer.ranks.world import World
from trainer.strategies.placed.holdings import Holdings
from trainer.strategies.placed.owning import OwnedOptimizer
from trainer.telemetry import peak_memory

# Tags of what is gathered; those of a step come after them.
_GATHERED = 0
TAGS = 1


def let_go(model: keras.Model, owner: OwnedOptimizer, placement: Placement) -> None:
    """Free the memory of the whole network's weights and of the whole optimizer's slots.

    Names, shapes and types stay; the variables hold empty arrays until `gather` gives them values again.
    """
    weights = [variable for variable in model.weights if variable.path in placement.holders]
    for variable in (*weights, *(one for one in owner.whole.variables if len(one.shape))):
        _give(variable, np.zeros(0, _dtype(variable)))


def bytes_beside(model: keras.Model, optimizer: keras.Optimizer) -> int | None:
    """Return what this process has in memory beside a whole network and its optimizer's state, in bytes."""
    here = peak_memory.resident()
    whole = (variable.value for variable in (*model.weights, *optimizer.variables))
    return None if here is None else here - sum(np.asarray(values).nbytes for values in whole)


def _give(variable: Any, values: np.ndarray) -> None:
    """Assign values of any shape, which a variable's own `assign` would compare with those that it has."""
    tf.raw_ops.AssignVariableOp(
        resource=variable.handle, value=tf.convert_to_tensor(values), validate_shape=False
    )


def spread(model: keras.Model, owner: OwnedOptimizer, holdings: Holdings, world: World) -> None:
    """Give every rank its blocks of rank 0's weights and optimizer state; a collective."""

    def of_main(variable: Any, like: Any) -> np.ndarray:
        mine = variable.value if world.is_main else np.empty(like.shape, _dtype(like))
        return world.broadcast(np.asarray(mine))

    for variable in model.weights:
        holdings.put(variable.path, of_main(variable, variable))
    whole_slots, own_slots = owner.slots()
    places: dict[str, list[int]] = {}
    for number, (path, _) in enumerate(owner.keys):
        places.setdefault(path, []).append(number)
    for variable, slots in zip(model.trainable_variables, whole_slots.of, strict=True):
        for kind, slot in enumerate(slots):
            values = of_main(slot, variable)
            for number in places.get(variable.path, ()):
                box = owner.keys[number][1]
                own_slots.of[number][kind].assign(values[box.slices_in(whole(values.shape))])
    for theirs, mine in owner.common():
        values = world.broadcast(np.asarray(theirs.value))
        for one in (theirs, mine):
            one.assign(values)


def gather(
    model: keras.Model,
    owner: OwnedOptimizer,
    holdings: Holdings,
    placement: Placement,
    exchange: RankExchange | None,
    world: World,
) -> None:
    """Put all ranks' blocks and optimizer state into rank 0's network and optimizer; a collective."""
    slots, own_slots = owner.slots()
    slots_of = {v.path: of for v, of in zip(model.trainable_variables, slots.of, strict=True)}
    number_of = {key: number for number, key in enumerate(owner.keys)}

    def mine(path: str, box: Box) -> list[np.ndarray]:
        if path not in placement.reductions:
            return [np.asarray(holdings.held[path][box].value)]
        own = own_slots.of[number_of[path, box]]
        return [np.asarray(v.value) for v in (holdings.owned[path, box], *own)]

    if not world.is_main:
        for path, box in _kept(placement, world.rank):
            joined = b"".join(np.ascontiguousarray(array).tobytes() for array in mine(path, box))
            data = np.frombuffer(joined, np.uint8)
            _given(exchange).move([data], [Parcel(0, _GATHERED, data.size, tf.uint8)], [])
        return
    variables = {variable.path: variable for variable in model.weights}
    sources = sorted((path, rank, box) for rank in placement.ranks for path, box in _kept(placement, rank))
    # One variable after the other, in the order in which the others send.
    for path, those in groupby(sources, key=lambda source: source[0]):
        targets = [variables[path], *slots_of.get(path, ())]
        arrays = [np.zeros(variables[path].shape, _dtype(target)) for target in targets]
        for _, rank, box in those:
            parts = mine(path, box) if rank == 0 else _received(exchange, rank, box, arrays)
            for into, part in zip(arrays, parts, strict=True):
                into[box.slices_in(whole(into.shape))] = part
        for target, values in zip(targets, arrays, strict=True):
            _give(target, values)
    given = {id(slot) for of in slots.of for slot in of}
    for variable in owner.whole.variables:
        if len(variable.shape) and id(variable) not in given:  # accumulated gradients: none between updates
            _give(variable, np.zeros(variable.shape, _dtype(variable)))


def _kept(placement: Placement, rank: int) -> list[tuple[str, Box]]:
    """What rank 0 gets of a rank: what it owns, and what nobody owns and no lower rank holds."""
    owned = [(path, box) for path, flow in placement.reductions.items() for box in flow.need.of(rank)]
    lowest: dict[tuple[str, Box], int] = {}
    for path, held in placement.holders.items():
        if path not in placement.reductions:
            for piece in held.pieces:
                lowest.setdefault((path, piece.box), piece.rank)
    return sorted([*owned, *(key for key, first in lowest.items() if first == rank)])


def _given(exchange: RankExchange | None) -> RankExchange:
    if exchange is None:
        raise RuntimeError("several ranks send each other messages")
    return exchange


def _received(exchange: RankExchange | None, rank: int, box: Box, like: list[np.ndarray]) -> list[np.ndarray]:
    size = sum(box.size * array.itemsize for array in like)
    received, _ = _given(exchange).move([], [], [Parcel(rank, _GATHERED, size, tf.uint8)])
    data = received[0].numpy()
    arrays, start = [], 0
    for array in like:
        size = box.size * array.itemsize
        arrays.append(data[start : start + size].view(array.dtype).reshape(box.shape))
        start += size
    return arrays


def check(holdings: Holdings, world: World) -> None:
    """Compare blocks that several ranks hold; a collective.

    Raises:
        DivergenceError: on every rank, with the first block that differs.
    """
    digests = {
        f"{path}{box}": hashlib.sha256(np.ascontiguousarray(np.asarray(v.value)).tobytes()).hexdigest()
        for path, blocks in holdings.held.items()
        for box, v in blocks.items()
    }
    first: dict[str, tuple[int, str]] = {}
    for rank, told in enumerate(world.allgather_object(digests)):
        for name, digest in told.items():
            other, known = first.setdefault(name, (rank, digest))
            if digest != known:
                raise DivergenceError(
                    f"Ranks {other} and {rank} hold different values of {name}.",
                    cure="Resume from the last checkpoint. If it happens again, the hardware of one of the "
                    f"hosts ({world.hosts[other]}, {world.hosts[rank]}) may be at fault.",
                )


def _dtype(variable: Any) -> Any:
    return tf.as_dtype(variable.dtype).as_numpy_dtype
