"""Messages between all pairs of ranks beside Horovod's all-reduces; prints what each rank found as JSON.

`python messages.py`: every rank sends every other COUNT small messages on each of two tags and one LARGE one.
"""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import json
import os
import time
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.ranks import exchange
from trainer.ranks.members import MESSAGES, Members
from trainer.ranks.messages import Mailbox
from trainer.ranks.starting import init

COUNT, SMALL, LARGE = 40, 1000, 3_000_001
TAGS = (5, 2**30)
world = init(threads=1, members=Members(messages=True))
assert world.links is not None
others = [process for process in world.links.workers if process != world.rank]


def numbers(source: int, target: int, tag: int, count: int) -> np.ndarray:
    """What a rank sends another under a tag: message by message, another seed."""
    seed = [source, target, tag, count]
    return np.random.default_rng(seed).integers(0, 256, LARGE if count == COUNT else SMALL, np.uint8)


def count_looks(box: Mailbox) -> list[bool]:
    """Return a list that grows with each look of the mailbox's thread for messages."""
    looks, turn = [], box._turn

    def counted(listens: bool) -> bool:
        looks.append(listens)
        return turn(listens)

    box._turn = counted
    return looks


released: list[int] = []
box = world.links.mailbox(MESSAGES)
sums = []
for count in range(COUNT):
    for process in others:
        for tag in TAGS:
            array = numbers(world.rank, process, tag, count)
            box.send(process, tag, array.reshape(10, -1), lambda: released.append(1))
    # In the midst of it, what ranks do anyway.
    sums.append(float(world.allreduce(np.float64(count + world.rank), "sum").numpy()))
for process in others:
    box.send(process, TAGS[0], numbers(world.rank, process, TAGS[0], COUNT).view(np.uint8))
expected = len(others) * (len(TAGS) * COUNT + 1)
got: dict[tuple[int, int], list[np.ndarray]] = {}
for _ in range(expected):
    message = box.next(60)
    assert message is not None
    got.setdefault((message.source, message.tag), []).append(message.array)
wrong = [
    [source, tag, count]
    for (source, tag), arrays in got.items()
    for count, array in enumerate(arrays)
    if not np.array_equal(array, numbers(source, world.rank, tag, count))
]
world.barrier()
looks = count_looks(box)
began = time.monotonic()
time.sleep(1.0)
looks_per_s = len(looks) / (time.monotonic() - began)
box.close()

# What is larger than MPI sends without being asked comes while the receiver does something else.
ahead = exchange.open_exchange(world)
before, after = (world.rank - 1) % world.size, (world.rank + 1) % world.size
ahead.move(
    [tf.zeros([1])], [exchange.Parcel(after, 8, 1, tf.float32)], [exchange.Parcel(before, 8, 1, tf.float32)]
)
came_early = []
for far in (ahead._far, others):  # as between hosts, where it comes in pieces
    ahead._far = far
    ahead.move([tf.range(2**20 - 5) + world.rank], [exchange.Parcel(after, 9, 2**20 - 5, tf.int32)], [])
    limit = time.monotonic() + 30
    while ahead.early() < 2**22 - 20 and time.monotonic() < limit:
        time.sleep(0.001)
    early = ahead.early()
    (come,), _ = ahead.move([], [], [exchange.Parcel(before, 9, 2**20 - 5, tf.int32)])
    in_order = bool(tf.reduce_all(come == tf.range(2**20 - 5) + come[0]))
    came_early.append([type(ahead).__name__, early, ahead.early(), int(come[0]), in_order])
    world.barrier()
    # Some pieces are there before they are asked for, and some are not.
    two = [exchange.Parcel(rank, 10, 2**22, tf.float32) for rank in (after, before)]
    (both,), _ = ahead.move([tf.fill([2**22], float(world.rank))], two[:1], two[1:])
    assert set(both.numpy()) == {float(before)}
world.barrier()
ahead.close()

# The last rank has no compiled operation: all take the slower way, and do what it does.
if world.rank == world.size - 1:
    os.environ["CINGULUM_EXCHANGE"] = "python"
moves = exchange.open_exchange(world)
wanted, leaving = (exchange.Parcel((world.rank + step) % world.size, 7, 10, tf.float32) for step in (-1, 1))
(swapped,), _ = moves.move([tf.fill([10], float(world.rank))], [leaving], [wanted])
moves.close()

found: dict[str, Any] = {
    "early": came_early,
    "exchange": [type(moves).__name__, float(swapped[9])],
    "messages": {f"{source} {tag}": len(arrays) for (source, tag), arrays in got.items()},
    "wrong": wrong,
    "sums": sums == [sum(count + rank for rank in range(world.size)) for count in range(COUNT)],
    "released": len(released),
    "sent": box.sent,
    "received": box.received,
    "traffic": box.traffic(),
    "nothing_left": box.next(0.1) is None,
    "idle_looks_per_s": looks_per_s,
}
everyones = world.allgather_object(found)
if world.is_main:
    print(json.dumps(everyones))
world.shutdown()
