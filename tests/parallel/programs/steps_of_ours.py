"""Our own training on the batches that a peer is given: JOB (a PeerJob as JSON), folder for what it leaves.

Leaves first.npz (the weights before), ranks.npz (after the job's steps, on all ranks) and one.npz (after the
same steps of one process on rank 0's batches). Each holds rank 0's own moving statistics.
"""

import json
import sys
from pathlib import Path

from benchmarks.peers import work
from benchmarks.peers.job import PeerJob
from trainer.ranks import starting
from trainer.ranks.world import World


def steps(job, world, folder, name):
    import trainer
    from trainer.strategies import data
    from trainer.strategies.learner import Setup

    model, optimizer = work.network(job)
    if world.is_main:
        work.save(model, folder / "first.npz")
    if world.size > 1:
        optimizer = trainer.DistributedOptimizer(optimizer)
    distributed = data.build(Setup(model, optimizer, world))
    for number in range(job.warm_up + job.steps):
        x, y = work.batch(job, number, world.rank)
        distributed.train_step(x, y, 1.0 + 0 * x[:, 0, 0, 0, 0])
    if world.is_main:
        work.save(model, folder / f"{name}.npz")


def main():
    job, folder = PeerJob(**json.loads(sys.argv[1])), Path(sys.argv[2])
    world = starting.init(threads=1)
    steps(job, world, folder, "ranks")
    if world.is_main:
        steps(job, World(), folder, "one")
    world.barrier()


main()
