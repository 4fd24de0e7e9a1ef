"""Messages of a placed network between real ranks, from inside a compiled step.

What lies between two tasks that compute is one call from the graph into Python: it hands over what is sent
and waits for what is received. Calls are made in the order of the task list, whatever TensorFlow would do.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.planning.placement.tasks import Message, Send, TaskLists
from trainer.ranks.links import Links
from trainer.ranks.members import MESSAGES
from trainer.ranks.messages import Message as Arrived

# A message that is waited for is looked for without a pause for so long, then with pauses.
_AT_ONCE_S = 0.005
_PAUSE_S = 0.0002
Bundle = tuple[Message, ...]


class Post:
    """This rank's mailbox, and what has arrived in it by sender and tag.

    Args:
        links: of the world.
    """

    def __init__(self, links: Links) -> None:
        self._there: dict[tuple[int, int], deque[np.ndarray]] = {}
        self._process = links.workers
        self._rank_of = {process: rank for rank, process in enumerate(links.workers)}
        self._taken = 0
        self.waited_s = 0.0
        self.mailbox = links.mailbox(MESSAGES, listens=False, arrived=self._arrived)

    def _arrived(self, message: Arrived) -> bool:
        source = self._rank_of[message.source]
        self._there.setdefault((source, message.tag), deque()).append(message.array)
        return True

    def send(self, rank: int, tag: int, array: np.ndarray) -> None:
        """Send an array, which must not change any more; it leaves at the next `take` or `flush`."""
        self.mailbox.send(self._process[rank], tag, array, wake=False)

    def flush(self) -> None:
        """Let everything leave that was handed over."""
        self.mailbox.turn()
        self.mailbox.leave()

    def take(self, wanted: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """Return the next message, uint8 `(bytes,)`, of each sender and tag; waits until all are there."""
        began = time.monotonic()
        found: list[np.ndarray] = []
        for key in wanted:
            while not self._there.get(key):
                if not self.mailbox.turn():
                    if time.monotonic() - began < _AT_ONCE_S:
                        os.sched_yield()
                    else:
                        time.sleep(_PAUSE_S)
            found.append(self._there[key].popleft())
        self.mailbox.leave()
        self.waited_s += time.monotonic() - began
        return found

    def close(self) -> None:
        """Send what is left to send, and end the mailbox's thread."""
        self.mailbox.close()


class Wire:
    """Moves messages while a step is traced: a `player.Mover`.

    Args:
        post: of this rank.
        lists: of all ranks: a tag for each bundle.
        first: number of the first tag.
    """

    def __init__(self, post: Post | None, lists: TaskLists, first: int) -> None:
        self._post = post
        bundles = sorted(
            {task.messages for tasks in lists.values() for task in tasks if isinstance(task, Send)},
            key=lambda messages: [(m.content, m.name, m.number, m.source, m.target) for m in messages],
        )
        self.tags = {messages: first + number for number, messages in enumerate(bundles)}
        self._leaving: list[tuple[Bundle, Any]] = []
        self._waiting: list[Any] = []
        self._before: list[Any] = []

    def begin(self) -> None:
        """Forget the graph that was traced before."""
        self._leaving, self._before = [], []

    def send(self, messages: Sequence[Message], values: Sequence[Any]) -> None:
        """Hand over arrays, which travel as one; they leave with the next `receive` or `flush`."""
        self._leaving.append((tuple(messages), _joined(values)))

    def receive(
        self, wanted: Sequence[tuple[Sequence[Message], Sequence[Sequence[int]], Any]]
    ) -> list[list[Any]]:
        """Return, of each bundle, its arrays in these shapes and this type."""
        types = [dtype for _, _, dtype in wanted]
        flat = self._call([tuple(messages) for messages, _, _ in wanted], types)
        return [_parted(one, shapes) for one, (_, shapes, _) in zip(flat, wanted, strict=True)]

    def flush(self) -> None:
        """Let everything leave that was handed over."""
        if self._leaving:
            self._call([], [])

    def _call(self, wanted: Sequence[Bundle], types: Sequence[Any]) -> list[Any]:
        post = self._post
        if post is None:
            raise RuntimeError("one rank has nobody to send messages to")
        leaving, self._leaving = self._leaving, []
        keys = [(messages[0].source, self.tags[messages]) for messages in wanted]
        call = _calling(
            post, [(messages[0].target, self.tags[messages]) for messages, _ in leaving], keys, types
        )
        with tf.control_dependencies(self._before):
            found = tf.numpy_function(call, [values for _, values in leaving], [*types, tf.int32])
        self._before = [found[-1]]
        return list(found[:-1])


def _calling(
    post: Post,
    leaving: Sequence[tuple[int, int]],
    wanted: Sequence[tuple[int, int]],
    types: Sequence[Any],
) -> Callable[..., list[Any]]:
    kinds = [dtype.as_numpy_dtype for dtype in types]
    done = np.int32(0)

    def call(*arrays: np.ndarray) -> list[Any]:
        for (rank, tag), array in zip(leaving, arrays, strict=True):
            # TensorFlow may use the memory again as soon as this call returns.
            post.send(rank, tag, np.array(array))
        if not wanted:
            post.flush()
            return [done]
        return [*(one.view(kind) for one, kind in zip(post.take(wanted), kinds, strict=True)), done]

    return call


def _joined(values: Sequence[Any]) -> Any:
    flat = [tf.reshape(one, [-1]) for one in values]
    return flat[0] if len(flat) == 1 else tf.concat(flat, 0)


def _parted(flat: Any, shapes: Sequence[Sequence[int]]) -> list[Any]:
    sizes = [int(np.prod(shape)) for shape in shapes]
    parts = [flat] if len(sizes) == 1 else tf.split(tf.ensure_shape(flat, [sum(sizes)]), sizes)
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
