"""Kinds of messages between workers and servers. A tag is a kind and the number of a bundle."""

from __future__ import annotations

ORDER = 1  # worker 0 -> server: uint8, JSON: what to do next
REPLY = 2  # server -> worker 0: uint8, JSON
NORM = 3  # server -> server: float64, (1,)
STATE = 4  # uint8: everything a server holds of a bundle, in either direction
GRADIENTS = 5  # worker -> server: a bundle's gradients
WEIGHTS = 6  # server -> worker: a bundle's weights
FREE = 7  # from here on: of the asynchronous strategy


def of(kind: int, number: int = 0) -> int:
    """Return the tag of a kind of message about bundle `number`."""
    return kind << 16 | number


def parts(tag: int) -> tuple[int, int]:
    """Return kind and number of a tag."""
    return tag >> 16, tag & 0xFFFF


def is_counted(tag: int) -> bool:
    """Return whether a message is part of an update: gradients, weights, and asynchronous messages."""
    return tag >> 16 >= GRADIENTS
