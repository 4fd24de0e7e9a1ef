"""What asynchronous workers and servers send each other, and how it is laid out in a message.

A message is a uint8 array: a header of 16 float64 numbers, then the values. Server s holds whole variables
(`layout` with `whole`); server 0 also the weights that are not trained, such as moving statistics of batch
norms, which workers send back as differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from trainer.errors import ConfigError
from trainer.strategies.servers import tags
from trainer.strategies.servers.layout import layout

HEADER = 16
_HEADER_BYTES = HEADER * 8


class Tag:
    """Tags of messages, all of them counted (see `tags.is_counted`)."""

    # worker -> server 0: I am ready. header: 1 if I hold a batch, else 0 (only tickets are wanted)
    ASK = tags.of(tags.FREE)
    # server 0 -> worker: header: step (-1: none, only tickets), 1 if it is extra, tickets ...
    GO = tags.of(tags.FREE + 1)
    # worker -> server: your weights, please
    PULL = tags.of(tags.FREE + 2)
    # server -> worker: header: version; weights
    TAKE = tags.of(tags.FREE + 3)
    # worker -> server: header: version, loss, the numbers of `Sums`, samples; gradients, differences
    PUSH = tags.of(tags.FREE + 4)
    # server 0 -> server: int64 per worker: updates to have; give your state then
    COLLECT = tags.of(tags.FREE + 5)
    # server -> server, either way: header: 1 if updates are compiled; weights and slots
    STATE = tags.of(tags.FREE + 6)


def message(header: Sequence[float], values: np.ndarray | None = None) -> np.ndarray:
    """Return header, filled up with -1, and values as one message."""
    head = np.full(HEADER, -1.0)
    head[: len(header)] = header
    if values is None:
        return head.view(np.uint8)
    return np.concatenate([head.view(np.uint8), np.ascontiguousarray(values).view(np.uint8)])


def header(array: np.ndarray) -> np.ndarray:
    """Return the header of a message, float64 `(16,)`."""
    return array[:_HEADER_BYTES].view(np.float64)


def values(array: np.ndarray) -> np.ndarray:
    """Return what follows the header, as float32."""
    return array[_HEADER_BYTES:].view(np.float32)


class VariableShares:
    """Which variables each server holds, and their places in a flat float32 vector.

    Args:
        model: built.
        servers: how many there are.

    Attributes:
        trained: of each server, positions in `model.trainable_variables`, ascending.

    Raises:
        ConfigError: a weight has another type than float32, or there are more servers than variables.
    """

    def __init__(self, model: keras.Model, servers: int) -> None:
        odd = [v.path for v in model.weights if v.dtype != "float32"]
        if odd:
            raise ConfigError(
                f"{odd[0]}: has another type than float32, which asynchronous servers need.",
                cure="Use another network, or train.strategy.mode=sync.",
            )
        sizes = [int(np.prod(v.shape)) for v in model.trainable_variables]
        if servers > len(sizes):
            raise ConfigError(
                f"train.strategy.count: {servers} servers for {len(sizes)} variables, of which asynchronous "
                "servers hold whole ones.",
                cure=f"Set train.strategy.count={len(sizes)} or less.",
            )
        pieces = layout(sizes, servers, piece_bytes=1 << 62, whole=True)
        self.trained = tuple(
            tuple(sorted(p.variable for p in pieces if p.server == server)) for server in range(servers)
        )

    def variables(self, model: keras.Model, server: int) -> list[Any]:
        """Return the trained variables of a server, in the order of their values in a message."""
        return [model.trainable_variables[i] for i in self.trained[server]]

    def bytes(self, model: keras.Model) -> tuple[int, ...]:
        """Return the bytes of weights that each server sends for one update, statistics included."""
        extra = [flat(model.non_trainable_weights).nbytes, *[0] * (len(self.trained) - 1)]
        held = [flat(self.variables(model, server)).nbytes for server in range(len(self.trained))]
        return tuple(sum(pair) for pair in zip(held, extra, strict=True))


def flat(variables: Sequence[Any]) -> np.ndarray:
    """Return all values one after the other, float32."""
    parts = [np.asarray(v.value, np.float32).ravel() for v in variables]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def assign(variables: Sequence[Any], vector: np.ndarray) -> None:
    """Put a flat vector into variables."""
    place = 0
    for variable in variables:
        size = int(np.prod(variable.shape))
        variable.assign(vector[place : place + size].reshape(variable.shape))
        place += size
    if place != vector.size:
        raise ValueError(f"{vector.size} values for variables of {place}")


def slots(optimizer: keras.Optimizer, positions: Sequence[int]) -> list[Any]:
    """Return the optimizer's variables of the trained variables at these positions, in a fixed order.

    Keras keeps one list per kind of slot, aligned with the variables it was built for.
    """
    count = len(optimizer._trainable_variables)
    known = {id(variable) for variable in optimizer.variables}
    kinds = [
        found
        for _, found in sorted(vars(optimizer).items())
        if isinstance(found, list) and len(found) == count and any(id(v) in known for v in found)
    ]
    return [kind[i] for kind in kinds for i in positions if kind[i] is not None]
