"""A strategy of a user's own that needs messages, a group and a setting of MPI, which it is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from pydantic import Field

import trainer
from trainer.config import Section
from trainer.ranks import horovod_world
from trainer.ranks.members import MESSAGES, Members
from trainer.strategies import data
from trainer.strategies.base import Strategy


class Options(Section):
    note: str = Field(description="file that rank 0 writes what it received into")


class TalkingSgd(Strategy):
    Options = Options

    def members(self, processes):
        return Members(messages=True, groups=True)

    def environment(self):
        return {"OMPI_MCA_coll_tuned_allreduce_algorithm": "3"}

    def divided(self, optimizer, world):
        return trainer.DistributedOptimizer(optimizer)

    def build(self, plan, setup):
        world = setup.world
        other = 1 - world.rank
        box = world.links.mailbox(MESSAGES)
        box.send(other, 1, np.full(3, world.rank, np.uint8))
        received = box.wait()
        box.close()
        alone = world.group([0])
        if world.is_main:
            found = {"from": received.source, "values": received.array.tolist(), "group": alone.size}
            found["algorithm"] = horovod_world.mpi_settings()["coll_tuned_allreduce_algorithm"]
            Path(self.options.note).write_text(json.dumps(found))
        else:
            assert alone is None
        return data.build(setup)
