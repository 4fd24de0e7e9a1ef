"""What `cingulum doctor` runs on two ranks: `mpirun -np 2 python -m trainer.doctor_probe`.

Rank 0 prints one line, `probe {...}`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

from trainer.ranks import exchange, horovod_world, starting
from trainer.ranks.members import Members
from trainer.ranks.world import World

MEGABYTES = 8
REPEATS = 5
_TAG = 1


def weights_apart(world: World, wrap: Any) -> float:
    """Return largest difference of two ranks' weights after one step on different data.

    Args:
        world: two ranks.
        wrap: makes a distributed optimizer out of a plain one.
    """
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(wrap(keras.optimizers.SGD(0.1)), loss="mse", jit_compile=False)
    x = np.full((2, 4), 1.0 + world.rank, np.float32)
    model.fit(x, np.zeros((2, 3), np.float32), verbose=0)
    flat = np.concatenate([np.ravel(w) for w in model.get_weights()])
    highest = world.allreduce(flat, "max").numpy()
    lowest = world.allreduce(flat, "min").numpy()
    return float(np.max(highest - lowest))


def swap(world: World) -> dict[str, Any]:
    """Swap a block between two ranks, as divided networks do; returns how, and median seconds.

    Returns:
        `exchange`: `compiled`, or what keeps the compiled operation from being used; `swap_seconds`.
    """
    import tensorflow as tf

    moves = exchange.open_exchange(world)
    parcel = exchange.Parcel(1 - world.rank, _TAG, MEGABYTES * 2**18, tf.float32)
    block, durations = tf.ones(parcel.elements), []
    for _ in range(REPEATS):
        world.barrier()
        started = time.monotonic()
        moves.move([block], [parcel], [parcel])
        durations.append(time.monotonic() - started)
    moves.close()
    if isinstance(moves, exchange.Compiled):
        how = "compiled"
    elif os.environ.get("CINGULUM_EXCHANGE") == "python":
        how = "is switched off by CINGULUM_EXCHANGE=python"
    else:
        how = "cannot be loaded" if exchange.file().is_file() else "was not compiled"
    return {"exchange": how, "swap_seconds": sorted(durations)[REPEATS // 2]}


def main() -> int:
    """Measure, and let rank 0 tell."""
    world = starting.init(threads=1, members=Members(messages=True))
    from trainer.strategies.distributed_optimizer import DistributedOptimizer

    total = float(world.allreduce(np.float32(world.rank + 1), "sum"))
    block = np.ones(MEGABYTES * 2**18, np.float32)
    durations = []
    for _ in range(REPEATS):
        world.barrier()
        started = time.monotonic()
        world.allreduce(block, "sum", name="block")
        durations.append(time.monotonic() - started)
    ours = weights_apart(world, DistributedOptimizer)
    horovods = weights_apart(world, horovod_world.horovods_own_optimizer)
    swapped = swap(world)
    settings = horovod_world.mpi_settings()
    algorithm = {4: "ring", 5: "segmented ring"}.get(
        settings.get("coll_tuned_allreduce_algorithm", 0), "MPI's choice"
    )
    if world.is_main:
        result = {
            "sum": total,
            "megabytes": MEGABYTES,
            "seconds": sorted(durations)[REPEATS // 2],
            "algorithm": algorithm,
            "ours_differs": ours,
            "horovods_differs": horovods,
            **swapped,
        }
        sys.stdout.write(f"probe {json.dumps(result)}\n")
    world.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
