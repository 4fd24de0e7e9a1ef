"""Groups of ranks: two rows and two columns of four ranks. `python groups.py [alone]`."""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import json
import sys
from typing import Any

import numpy as np

from trainer.ranks.members import Members
from trainer.ranks.starting import init

if sys.argv[1:] == ["alone"]:
    world = init(members=Members(groups=True))
    assert world.group([0]) is world
    try:
        world.group([1])
    except ValueError:
        sys.exit(0)
    sys.exit("a rank that does not exist was taken into a group")

world = init(threads=1, members=Members(groups=True))

import tensorflow as tf  # noqa: E402  # after the world: it knows the threads


def tried(group: Any) -> dict[str, Any]:
    rank = world.rank
    pair = [tf.constant(float(rank)), tf.constant(2.0 * rank)]
    compiled = tf.function(lambda x: group.allreduce(x, "sum", name="compiled"), autograph=False)
    return {
        "rank": group.rank,
        "size": group.size,
        "name": group.name,
        "objects": group.allgather_object(rank),
        "eager": float(group.allreduce(10.0**rank, "sum").numpy()),
        "compiled": float(compiled(tf.constant(10.0**rank, tf.float32)).numpy()),
        "mean": float(group.allreduce(float(rank), "mean").numpy()),
        "grouped": [float(t.numpy()) for t in group.grouped_allreduce(pair, "sum", name="g")],
        "gathered": group.allgather(np.full(rank + 1, rank)).numpy().tolist(),
        "broadcast": group.broadcast(np.array([rank, rank])).tolist(),
        "exchanged": group.alltoall(tf.constant([10 * rank, 10 * rank + 1]), name="a").numpy().tolist(),
    }


rows = [world.group([0, 1]), world.group([2, 3])]
columns = [world.group([0, 2]), world.group([1, 3])]
three = world.group([0, 1, 2])
found = {
    # Rows of ranks work at the same time: neither waits for the other.
    "rows": tried(next(group for group in rows if group is not None)),
    "columns": tried(next(group for group in columns if group is not None)),
    "whole": float(world.allreduce(10.0**world.rank, "sum").numpy()),
    "everyone_is_world": world.group([0, 1, 2, 3]) is world,
    "again": world.group([0, 1]) is rows[0],
    "outside": three is not None,
}
everyones = world.allgather_object(found)
if world.is_main:
    print(json.dumps(everyones))
world.shutdown()
