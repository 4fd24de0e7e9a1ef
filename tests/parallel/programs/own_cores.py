"""The cores of each rank before and after `trainer.init`, and those of the threads that it starts."""

import tensorflow_first  # noqa: F401  # isort: skip

import json
import os
import sys
from pathlib import Path

import numpy  # noqa: F401  its BLAS is loaded before the number of threads is known
from threadpoolctl import threadpool_info

import trainer
from trainer.ranks import world as worlds

TASKS = Path("/proc/self/task")
before = sorted(os.sched_getaffinity(0))
earlier = {path.name for path in TASKS.iterdir()}
trainer.init()
later = sorted({path.name for path in TASKS.iterdir()} - earlier)
world = worlds.current()
mine = {
    "before": before,
    "after": sorted(os.sched_getaffinity(0)),
    "blas_threads": [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"],
    "later_threads": [sorted(os.sched_getaffinity(int(thread))) for thread in later],
}
found = world.allgather_object(mine)
if world.is_main:
    sys.stdout.write(json.dumps(found) + "\n")
world.shutdown()
