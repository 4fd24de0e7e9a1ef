"""`strategy: hypergraph`: who computes what follows from partitions of the network's hypergraph."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from trainer.config import HypergraphConfig, RunConfig
from trainer.strategies.base import Plan
from trainer.strategies.placed.strategy import PlacedStrategy

if TYPE_CHECKING:
    import keras

    from trainer.planning.hypergraph.planning import FoundPlan as Found
    from trainer.planning.placement.listing import Pipeline
    from trainer.planning.placement.operations import OperationGraph
    from trainer.planning.placement.ways import Layouts
    from trainer.ranks.world import World
    from trainer.strategies.placed.hypergraph_plan import Decided

# Of the configuration, what decides who computes what.
_KEYS = ("objective", "balance", "imbalance", "granularity", "micro_batches", "schedule", "replicas")


class HypergraphParallel(PlacedStrategy):
    """Hypergraph-partitioned model parallelism (Eserol, Bilkent University 2019).

    Tiles of layers, not layers, are divided, so that as few bytes as possible cross while ranks have as much
    to do (`objective: volume`), or so that an update is predicted to take least (`time`). Replicas take other
    samples.
    Without `profile` a plan goes by `hypergraph.reference`.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._decided: Decided | None = None
        self._layouts: Layouts = {}
        self._replicas = 1

    @property
    def _hypergraph(self) -> HypergraphConfig:
        return cast(HypergraphConfig, self.section)

    @property
    def micro_batches(self) -> int:
        """Parts of a replica's samples that its ranks pass on one after the other."""
        return self._hypergraph.micro_batches

    @property
    def replicas(self) -> int:
        """See `PlacedStrategy.replicas`; where that is open, what `settle` has found."""
        given = self._hypergraph.replicas
        return self._replicas if given == "auto" else given

    def settle(self, model: keras.Model, world_size: int) -> int:
        """Return the number of replicas; where it is open, that which is predicted to take least.

        Raises:
            ConfigError: ranks or samples cannot be divided so.
        """
        from trainer.errors import ConfigError
        from trainer.planning.hypergraph import replicas
        from trainer.strategies.placed.reading import read

        section = self._hypergraph
        if section.replicas == "auto":
            size = replicas.best_size(
                lambda samples: read(model, samples), world_size, self._shared(world_size),
                profile=self.profile, micro_batches=self.micro_batches,
            )  # fmt: skip
            self._replicas = world_size // size
        elif world_size % section.replicas:
            raise ConfigError(
                f"train.strategy.replicas: {world_size} rank(s) cannot be divided into {section.replicas} "
                "replicas.",
                cure=f"Launch a multiple of {section.replicas} ranks.",
                key="train.strategy.replicas",
            )
        return self.replicas

    def _shared(self, world_size: int) -> int:
        """Samples of a micro-batch of all replicas together, for which there are sizes of replicas.

        Raises:
            ConfigError: there is none.
        """
        from trainer.errors import ConfigError
        from trainer.planning.hypergraph import replicas

        train = self.config.train
        samples = train.global_batch // (train.accumulation * self.micro_batches)
        if not replicas.sizes(world_size, samples):
            least = -(-world_size // replicas.MOST_RANKS)
            raise ConfigError(
                f"train.strategy.replicas: {samples} sample(s) of a micro-batch cannot be divided over "
                f"groups of at most {replicas.MOST_RANKS} of {world_size} ranks.",
                cure=f"Set train.global_batch to a multiple of {least} times train.accumulation times "
                "train.strategy.micro_batches.",
                key="train.strategy.replicas",
            )
        return samples

    def calibrate(self, model: keras.Model, world: World, recorded: dict[str, Any] | None) -> None:
        """Decide on rank 0 who computes what, or take what was recorded; see `Strategy.calibrate`."""
        from trainer.planning.hypergraph import replicas
        from trainer.ranks import world as worlds
        from trainer.ranks.agreement import agree
        from trainer.strategies.placed import costs_of_run
        from trainer.strategies.placed.hypergraph_plan import decided_in

        super().calibrate(model, world, recorded)
        section, decided = self._hypergraph, decided_in(recorded)
        is_auto = section.replicas == "auto"
        if section.plan is not None or (not is_auto and world.size % self.replicas):
            return
        if is_auto:
            self._replicas = agree(world, lambda: self._most_replicas(world.size))
        if decided and agree(world, lambda: self._may_follow(decided, model, world.size)):
            self._decided = decided
            return
        if not is_auto:
            agree(world, lambda: replicas.check_listed(world.size // self.replicas))
        is_divided = world.size > (1 if is_auto else self.replicas)
        by_seconds = section.objective == "time" or section.profile is not None
        if self.profile is None and is_divided and by_seconds:
            self.profile = costs_of_run.profile(self.config, section.profile, model, world, self._samples)
        found = agree(world, lambda: self.decide(model, world.size) if world.is_main else None)
        self._decided = decided_in({"decided": world.broadcast_object(found and dataclasses.asdict(found))})
        if self._decided is not None:
            self._replicas = world.size // self._decided.divided.ranks
            for line in self._decided.missing() if world.is_main else ():
                worlds.report(f"warning: {line}")

    def _most_replicas(self, world_size: int) -> int:
        from trainer.planning.hypergraph import replicas

        return world_size // replicas.sizes(world_size, self._shared(world_size))[0]

    @property
    def _asked(self) -> dict[str, Any]:
        return {key: getattr(self._hypergraph, key) for key in _KEYS}

    def _may_follow(self, decided: Decided, model: keras.Model, world_size: int) -> bool:
        """Return whether `decided` is of this configuration, for this network and `world_size` ranks.

        If so, there are as many replicas as when it was recorded.
        """
        from trainer.errors import ConfigError
        from trainer.strategies.placed.reading import read

        before, ranks = self._replicas, decided.divided.ranks
        if decided.asked != self._asked or world_size % ranks:
            return False
        self._replicas = world_size // ranks
        try:
            decided.divided.layouts(read(model, self._samples))
        except ConfigError:
            self._replicas = before
            return False
        return self.replicas * ranks == world_size

    def find(self, model: keras.Model, ranks: int) -> Found:
        """Return what planning finds for the ranks of a replica.

        Raises:
            ConfigError: ranks are many, and no layer has as many tiles.
        """
        from trainer.planning.hypergraph import planning
        from trainer.planning.hypergraph.wanted import PartitionGoal
        from trainer.strategies.placed.reading import read

        section, network = self._hypergraph, read(model, self._samples)
        goal = PartitionGoal(
            section.objective,
            section.balance,
            section.imbalance,
            section.granularity,
            self.config.train.seed,
        )
        return planning.plan(
            network,
            ranks,
            goal,
            profile=self.profile,
            micro_batches=section.micro_batches,
            pipeline=lambda layouts: self.pipeline(network, layouts),
            show=self.show,
        )

    def decide(self, model: keras.Model, world_size: int) -> Decided:
        """Return what is found for each replica, also for more ranks than can train.

        Raises:
            ConfigError: see `settle` and `find`.
        """
        from trainer.planning.hypergraph import explaining
        from trainer.planning.placement.plan_file import PlanFile
        from trainer.strategies.placed.hypergraph_plan import Decided
        from trainer.strategies.placed.reading import read

        ranks = world_size // self.settle(model, world_size)
        network, search = read(model, self._samples), self.find(model, ranks)
        best = search.best
        self._layouts = best.layouts
        rows = explaining.rows(network, best.layouts, ranks, self.micro_batches)
        file = PlanFile.of_layouts(
            network, best.layouts, name=self.config.model.name, strategy=self.name, ranks=ranks
        )
        self._decided = Decided(
            asked=self._asked,
            label=best.label,
            by="reference" if self.profile is None else "profile",
            bytes={str(cause): size for cause, size in best.bytes.items()},
            step_s=best.step_s,
            imbalance=best.imbalance,
            layer_imbalance=best.layer_imbalance,
            uniform=[
                {
                    "label": one.label,
                    "bytes": dict(one.bytes),
                    "step_s": one.step_s,
                    "imbalance": one.imbalance,
                    "layer_imbalance": one.layer_imbalance,
                }
                for one in search.uniform
            ],
            hypergraphs=[dataclasses.asdict(one) for one in search.hypergraphs],
            rows=[dataclasses.asdict(one) for one in rows],
            file=file.model_dump_json(),
            left_out=list(search.left_out),
        )
        return self._decided

    def plan(self, model: keras.Model, optimizer: keras.Optimizer, world_size: int) -> Plan:
        """Divide an update as was decided, else by the reference or `profile`; see `PlacedStrategy.plan`.

        Raises:
            ConfigError: see there, and where a replica has more ranks than planning is made for.
            ModelError: see there.
        """
        from trainer.planning.hypergraph import replicas
        from trainer.strategies.placed.hypergraph_plan import HypergraphPlan
        from trainer.strategies.placed.plan import PlacedPlan
        from trainer.strategies.placed.reading import read

        if self._hypergraph.plan is None and not world_size % self.replicas:
            if self._decided is None:
                replicas.check_listed(world_size // self.settle(model, world_size))
            decided = self._decided or self.decide(model, world_size)
            self._layouts = decided.divided.layouts(read(model, self._samples))
        found = cast(PlacedPlan, super().plan(model, optimizer, world_size))
        return HypergraphPlan.from_placed(found, decided=self._decided)

    def layouts(self, network: OperationGraph, ranks: int) -> Layouts:
        """Return who computes what, for any number of samples."""
        from trainer.planning.placement import ways

        return ways.resampled(self._layouts, network)

    def replicated(self, network: OperationGraph, replicas: int, ranks: int) -> Layouts:
        """Lay out every replica alike: samples may be divided within one, too."""
        from trainer.planning.placement import ways

        return ways.copies(self._layouts, network, replicas, ranks)

    def pipeline(self, network: OperationGraph, layouts: Layouts) -> Pipeline | None:
        """Return in which order stages work on micro-batches; None: there is one micro-batch."""
        from trainer.planning.placement import staging

        section = self._hypergraph
        if section.micro_batches == 1:
            return None
        return staging.pipeline(network, layouts, section.micro_batches, section.schedule)

    def way(self, ranks: int) -> str:
        """Return what was found, and how much it sends."""
        decided = self._decided
        if decided is None:
            raise TypeError("nothing was decided")
        mebibytes = sum(decided.bytes.values()) / 2**20
        used = {rank for one in decided.divided.operations for rank, _ in one.pieces}
        idle = f" ({ranks - len(used)} with nothing to do)" if len(used) < ranks else ""
        return (
            f"least {self._hypergraph.objective} on {ranks} rank(s){idle}, {decided.label}: "
            f"{mebibytes:.3g} MiB of a replica cross in an update"
        )
