"""Seconds of a few all-reduces, one after the other, printed by rank 0; the first is not counted."""

import tensorflow_first  # noqa: F401  # isort: skip

import sys
import time

import trainer
from trainer.ranks import world as worlds

trainer.init(threads=1)
world = worlds.current()
world.allreduce(1.0, "sum", name="number")
began = time.monotonic()
sums = [float(world.allreduce(1.0, "sum", name="number")) for _ in range(4)]
if world.is_main:
    assert sums == [world.size] * 4
    sys.stdout.write(f"{time.monotonic() - began}\n")
world.shutdown()
