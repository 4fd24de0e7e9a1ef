"""The strategy `data`: every rank holds the whole network and takes its share of the batch."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from trainer.config import RingConfig, micro_batch
from trainer.planning.communication import reduction, repeated
from trainer.planning.exchange import equal
from trainer.planning.simulation import collectives, stepping
from trainer.planning.simulation.collectives import Way, WholeUpdate, all_reduce
from trainer.planning.simulation.fabric import ClusterFabric, Fabric
from trainer.ranks import launch
from trainer.strategies.base import Plan, Strategy, sizes_of
from trainer.strategies.learner import Learner, Setup

if TYPE_CHECKING:
    import keras

    from trainer.planning.profile import Profile
    from trainer.ranks.world import World

MIB = 2**20


class DataParallel(Strategy):
    """Gradients are combined over ranks, which all make the same update; docs/explanation/ring.md."""

    needs_network = False

    @property
    def ring(self) -> RingConfig:
        """Its section."""
        return cast(RingConfig, self.config.train.strategy)

    def environment(self) -> dict[str, str]:
        """Return MPI's algorithm and Horovod's settings as variables."""
        return launch.ring_environment(self.ring)

    def divided(self, optimizer: keras.Optimizer, world: World) -> keras.Optimizer:
        """Return a `DistributedOptimizer` where there is more than one rank."""
        from trainer.strategies.distributed_optimizer import DistributedOptimizer
        from trainer.strategies.optimizers import ring_options

        return optimizer if world.size == 1 else DistributedOptimizer(optimizer, **ring_options(self.ring))

    def plan(self, model: keras.Model, optimizer: keras.Optimizer, world_size: int) -> Plan:
        """Divide an update: see `data_plan.plan`."""
        from trainer.strategies import data_plan

        train = self.config.train
        return data_plan.plan(
            model,
            world_size=world_size,
            global_batch=train.global_batch,
            accumulation=train.accumulation,
            ring=self.ring,
        )

    def rows(self, fabric: ClusterFabric) -> tuple[str, ...]:
        """Return a row, and where hosts have several devices one of sums within each host first."""
        several = fabric.hosts > 1 and fabric.kind(0).devices > 1
        return self.ring.labels[: 2 if several else 1]

    def on_cluster(self, label: str, model: keras.Model, fabric: ClusterFabric) -> WholeUpdate:
        """Return an all-reduce of each bucket; see `Strategy.on_cluster`."""
        from trainer.strategies.reduction import bytes_on_wire

        train, ring = self.config.train, self.ring
        each = micro_batch(train.global_batch, world_size=fabric.ranks, accumulation=train.accumulation)
        buckets = bytes_on_wire(
            *sizes_of(model), kind=ring.reduction, bucket_mb=ring.bucket_mb, wire=ring.compression
        )
        way: Way = ring.algorithm if label == self.ring.labels[0] else "by-host"
        one_byte = all_reduce(way, fabric)
        return WholeUpdate(
            f"{each} sample(s) of each micro-batch on every rank; {way}",
            workers=fabric.ranks,
            micro_batch=each,
            exchanged=one_byte.of(sum(buckets), len(buckets)),
            parts=buckets,
            sum_s=one_byte.latency_s,
        )

    def step_of_profile(self, profile: Profile, fabric: Fabric, ranks: int) -> float:
        """Return the seconds of an update, with as many buckets of one size as there are."""
        train, ring, times = self.config.train, self.ring, self.config.train.accumulation
        samples = micro_batch(train.global_batch, world_size=ranks, accumulation=times)
        work = stepping.slowest(profile, samples, times)
        of_operations = [one.parameter_bytes for one in profile.operations if one.parameter_bytes]
        size = sum(of_operations)
        count = {
            "buckets": math.ceil(size / (ring.bucket_mb * MIB)),
            "per_tensor": len(of_operations),
            "grouped": 1,
        }[ring.reduction]
        parts = equal(max(1, count))
        rounds = repeated(reduction(ring.algorithm, 1.0, ranks)) if ranks > 1 else []
        one_byte = collectives.cost(rounds, fabric)
        wire = 1.0 if ring.compression == "none" else 0.5
        sums = sum(one.kind == "batch_moments" for one in profile.operations) if train.sync_batch_norm else 0
        statistics_s = 2 * sums * times * one_byte.latency_s
        exchanged = one_byte.of(wire * size, len(parts))
        return stepping.whole_network(work, exchanged, parts, ranks, 0.0, rounds_s=statistics_s).step_s

    def check(self, world: World) -> None:
        """Check that MPI took the algorithm."""
        from trainer.strategies import ring

        ring.check(self.ring, world)

    def build(self, plan: Plan, setup: Setup) -> Learner:
        """Make the learner: see `data.build`."""
        from trainer.strategies import data

        return data.build(setup, bucket_mb=self.ring.bucket_mb)

    def recording(self, world: World, folder: Path, step: int) -> AbstractContextManager[None]:
        """Record Horovod's own files, where they were asked for."""
        from trainer.strategies import ring

        return ring.recorded(self.ring, world, folder, step)
