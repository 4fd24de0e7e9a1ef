"""`strategy: hypergraph`: who computes what follows from partitions of the network's hypergraph."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from trainer.config import HypergraphConfig, RunConfig
from trainer.strategies.base import Plan
from trainer.strategies.placed.strategy import Placed

if TYPE_CHECKING:
    import keras

    from trainer.planning.hypergraph.planning import Plan as Found
    from trainer.planning.placement.listing import Pipeline
    from trainer.planning.placement.operations import Network
    from trainer.planning.placement.ways import Layouts
    from trainer.planning.profile import Profile
    from trainer.ranks.world import World
    from trainer.strategies.placed.hypergraph_plan import Decided

# Of the configuration, what decides who computes what.
_KEYS = ("objective", "balance", "imbalance", "granularity", "micro_batches", "schedule", "replicas")


class Hypergraph(Placed):
    """Hypergraph-partitioned model parallelism (Eserol, Bilkent University 2019).

    Tiles of layers, not layers, are divided, so that as few bytes as possible cross while ranks have as much
    to do (`objective: volume`), or so that an update is predicted to take least (`time`). Replicas take other
    samples.

    Attributes:
        profile: seconds and links that a plan goes by; None: see `hypergraph.reference`.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.profile: Profile | None = None
        self._decided: Decided | None = None
        self._layouts: Layouts = {}

    @property
    def _hypergraph(self) -> HypergraphConfig:
        return cast(HypergraphConfig, self.section)

    @property
    def micro_batches(self) -> int:
        """Parts of a replica's samples that its ranks pass on one after the other."""
        return self._hypergraph.micro_batches

    def calibrate(self, model: keras.Model, world: World, recorded: dict[str, Any] | None) -> None:
        """Decide on rank 0 who computes what, or take what was recorded; see `Strategy.calibrate`."""
        from trainer.ranks.agreement import agree
        from trainer.strategies.placed import costs_of_run
        from trainer.strategies.placed.hypergraph_plan import decided_in

        super().calibrate(model, world, recorded)
        section = self._hypergraph
        if section.plan is not None or world.size % section.replicas:
            return
        ranks, known = world.size // section.replicas, decided_in(recorded)
        if known and agree(world, lambda: self._may_follow(known, model, ranks)):
            self._decided = known
            return
        if ranks > 1 and (section.objective == "time" or section.profile is not None):
            self.profile = costs_of_run.profile(self.config, section.profile, model, world, self._samples)
        found = agree(world, lambda: self._found(model, ranks) if world.is_main else None)
        self._decided = decided_in({"decided": world.broadcast_object(found and dataclasses.asdict(found))})

    @property
    def _asked(self) -> dict[str, Any]:
        return {key: getattr(self._hypergraph, key) for key in _KEYS}

    def _may_follow(self, known: Decided, model: keras.Model, ranks: int) -> bool:
        """Whether what was recorded is of this configuration, for this network and so many ranks."""
        from trainer.errors import ConfigError
        from trainer.strategies.placed.reading import read

        try:
            known.divided.layouts(read(model, self._samples))
        except ConfigError:
            return False
        return known.asked == self._asked and known.divided.ranks == ranks

    def find(self, model: keras.Model, ranks: int) -> Found:
        """Return what planning finds for the ranks of a replica.

        Raises:
            ConfigError: there are more ranks than it is made for.
        """
        from trainer.errors import ConfigError
        from trainer.planning.hypergraph import planning
        from trainer.planning.hypergraph.wanted import Wanted
        from trainer.strategies.placed.reading import read

        if ranks > planning.MOST_RANKS:
            raise ConfigError(
                f"train.strategy.replicas: a hypergraph is divided over {planning.MOST_RANKS} ranks at most, "
                f"and a replica has {ranks}.",
                cure="Set train.strategy.replicas, so that each replica has fewer ranks.",
                key="train.strategy.replicas",
            )
        section, network = self._hypergraph, read(model, self._samples)
        wanted = Wanted(
            section.objective,
            section.balance,
            section.imbalance,
            section.granularity,
            self.config.train.seed,
        )
        return planning.plan(
            network,
            ranks,
            wanted,
            profile=self.profile,
            micro_batches=section.micro_batches,
            pipeline=lambda layouts: self.pipeline(network, layouts),
        )

    def _found(self, model: keras.Model, ranks: int) -> Decided:
        from trainer.planning.hypergraph import explaining
        from trainer.planning.placement.plan_file import PlanFile
        from trainer.planning.placement.units import place
        from trainer.strategies.placed.hypergraph_plan import Decided
        from trainer.strategies.placed.reading import read

        network, found = read(model, self._samples), self.find(model, ranks)
        best = found.best
        rows = explaining.rows(network, best.layouts, ranks, self.micro_batches)
        file = PlanFile.of(
            place(network, best.layouts), name=self.config.model.name, strategy=self.name, ranks=ranks
        )
        return Decided(
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
                for one in found.uniform
            ],
            hypergraphs=[dataclasses.asdict(one) for one in found.hypergraphs],
            rows=[dataclasses.asdict(one) for one in rows],
            file=file.model_dump_json(),
        )

    def plan(self, model: keras.Model, optimizer: keras.Optimizer, world_size: int) -> Plan:
        """Divide an update as was decided, else by the reference or `profile`; see `Placed.plan`.

        Raises:
            ConfigError: see there, and where a replica has more ranks than planning is made for.
            ModelError: see there.
        """
        from trainer.strategies.placed.hypergraph_plan import HypergraphPlan
        from trainer.strategies.placed.plan import PlacedPlan
        from trainer.strategies.placed.reading import read

        replicas = self._hypergraph.replicas
        if self._hypergraph.plan is None and not world_size % replicas:
            if self._decided is None:
                self._decided = self._found(model, world_size // replicas)
            self._layouts = self._decided.divided.layouts(read(model, self._samples))
        found = cast(PlacedPlan, super().plan(model, optimizer, world_size))
        return HypergraphPlan.from_placed(found, decided=self._decided)

    def layouts(self, network: Network, ranks: int) -> Layouts:
        """Return who computes what, for any number of samples."""
        from trainer.planning.placement import ways

        return ways.resampled(self._layouts, network)

    def replicated(self, network: Network, replicas: int, ranks: int) -> Layouts:
        """Lay out every replica alike: samples may be divided within one, too."""
        from trainer.planning.placement import ways

        return ways.copies(self._layouts, network, replicas, ranks)

    def pipeline(self, network: Network, layouts: Layouts) -> Pipeline | None:
        """Return in which order stages work on micro-batches; None: there is one micro-batch."""
        from trainer.planning.placement import staging

        section = self._hypergraph
        if section.micro_batches == 1:
            return None
        return staging.pipeline(network, layouts, section.micro_batches, section.schedule)

    def way(self, ranks: int) -> str:
        """Return what was found, and how much it sends."""
        found = self._decided
        if found is None:
            raise TypeError("nothing was decided")
        mebibytes = sum(found.bytes.values()) / 2**20
        used = {rank for one in found.divided.operations for rank, _ in one.pieces}
        idle = f" ({ranks - len(used)} with nothing to do)" if len(used) < ranks else ""
        return (
            f"least {self._hypergraph.objective} on {ranks} rank(s){idle}, {found.label}: "
            f"{mebibytes:.3g} MiB of a replica cross in an update"
        )
