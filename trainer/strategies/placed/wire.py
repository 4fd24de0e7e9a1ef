"""Messages of a placed network between real ranks, from inside a compiled step: a `player.Mover`.

What lies between two tasks that compute is one call. Calls are made in the order of the task list, whatever
order TensorFlow would choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.planning.placement.tasks import Message, Send, TaskLists
from trainer.ranks.exchange import Parcel, RankExchange
from trainer.strategies.placed.mover import Wanted

Bundle = tuple[Message, ...]


class Wire:
    """Moves the messages of task lists while a step is traced.

    Args:
        exchange: of this rank; None where there is no other.
        lists: of all ranks: a tag for each bundle.
        first: number of the first tag.
    """

    def __init__(self, exchange: RankExchange | None, lists: TaskLists, first: int) -> None:
        self._exchange = exchange
        bundles = sorted(
            {task.messages for tasks in lists.values() for task in tasks if isinstance(task, Send)},
            key=lambda messages: [
                (m.content, m.name, m.number, m.source, m.target, m.micro) for m in messages
            ],
        )
        self.tags = {messages: first + number for number, messages in enumerate(bundles)}
        self._leaving: list[tuple[Bundle, Any]] = []
        self._before: list[Any] = []

    def begin(self) -> None:
        """Forget the graph that was traced before."""
        self._leaving, self._before = [], []

    def after(self, tensors: Sequence[Any]) -> None:
        """Let what follows wait for these, which a waiting move might keep from being computed."""
        self._before = [*self._before, *tensors]

    def send(self, messages: Sequence[Message], values: Sequence[Any]) -> None:
        """Hand over arrays, which travel as one; they leave with the next `receive` or `flush`."""
        flat = [tf.reshape(one, [-1]) for one in values]
        self._leaving.append((tuple(messages), flat[0] if len(flat) == 1 else tf.concat(flat, 0)))

    def receive(self, wanted: Sequence[Wanted]) -> list[list[Any]]:
        """Return the arrays of each bundle of messages."""
        flat = self._move(wanted)
        return [_parted(one, shapes) for one, (_, shapes, _) in zip(flat, wanted, strict=True)]

    def flush(self) -> None:
        """Let everything leave that was handed over."""
        if self._leaving:
            self._move([])

    def meanwhile(self, compute: Callable[[], list[Any]]) -> list[Any]:
        """Compute tensors after what was flushed has left, and before anything else is received."""
        with tf.control_dependencies(self._before):
            found = compute()
        self.after(found)
        return found

    def _move(self, wanted: Sequence[Wanted]) -> list[Any]:
        if self._exchange is None:
            raise RuntimeError("one rank has nobody to send messages to")
        leaving, self._leaving = self._leaving, []
        sends = [
            Parcel(messages[0].target, self.tags[messages], int(values.shape[0]), values.dtype)
            for messages, values in leaving
        ]
        receives = [
            Parcel(messages[0].source, self.tags[messages], sum(one.elements for one in messages), dtype)
            for messages, _, dtype in wanted
        ]
        with tf.control_dependencies(self._before):
            found, last = self._exchange.move([values for _, values in leaving], sends, receives)
        self._before = [last]
        return found


def _parted(flat: Any, shapes: Sequence[Sequence[int]]) -> list[Any]:
    sizes = [int(np.prod(shape)) for shape in shapes]
    parts = [flat] if len(sizes) == 1 else tf.split(flat, sizes)
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
