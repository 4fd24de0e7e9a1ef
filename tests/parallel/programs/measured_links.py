"""Prints the link from rank 0 to rank 1 as a profile has it: seconds of latency, and bytes per second."""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import json

from trainer.ranks.members import Members
from trainer.ranks.starting import init
from trainer.strategies.placed.profiling import links

world = init(threads=1, members=Members(messages=True))
found = links.measure(world, lambda done, total: None)
if world.is_main:
    print(json.dumps(found[0][1]))
