"""What a rank's part of an update needs of whatever carries its messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from trainer.planning.placement.tasks import Message

# Messages that were sent as one, their shapes, and their type.
Wanted = tuple[tuple[Message, ...], list[tuple[int, ...]], Any]


class Mover(Protocol):
    """What carries messages between ranks."""

    def send(self, messages: Sequence[Message], values: Sequence[Any]) -> None:
        """Hand over arrays of the shapes of the messages' boxes, which travel as one; does not wait."""

    def receive(self, wanted: Sequence[Wanted]) -> list[list[Any]]:
        """Return the arrays of each bundle of messages."""

    def flush(self) -> None:
        """Let everything leave that was handed over, before something else is computed."""

    def meanwhile(self, compute: Callable[[], list[Any]]) -> list[Any]:
        """Compute tensors after what was flushed has left, and before anything else is received."""

    def after(self, tensors: Sequence[Any]) -> None:
        """Let what is moved, or computed `meanwhile`, from now on wait for these."""
