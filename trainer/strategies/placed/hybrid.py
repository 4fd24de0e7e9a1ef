"""`strategy: hybrid`: stages of a network on the ranks of a replica, and replicas of all of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from trainer.config import HybridConfig, RunConfig
from trainer.errors import ConfigError
from trainer.strategies.base import Plan
from trainer.strategies.placed.strategy import PlacedStrategy

if TYPE_CHECKING:
    import keras

    from trainer.planning.placement.listing import Pipeline
    from trainer.planning.placement.operations import OperationGraph
    from trainer.planning.placement.staging import Group
    from trainer.planning.placement.ways import Layouts
    from trainer.planning.profile import Profile
    from trainer.planning.stages.planners import Assignment
    from trainer.planning.stages.problem import StageProblem
    from trainer.ranks.world import World
    from trainer.strategies.placed.hybrid_plan import Division


class Hybrid(PlacedStrategy):
    """Hybrid data and model parallelism (Akintoye, Han et al., arXiv 2104.05035).

    The network is cut into partitions, which a planner gives to the ranks of a replica; micro-batches follow
    each other through the stages (GPipe, arXiv 1811.06965; 1F1B, arXiv 2006.09503); replicas of all stages
    take other samples, and the gradients of a stage are added up over its replicas.
    Its planner goes by `profile`, measured in `calibrate` if not known before; without one, by FLOPs.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._memory: list[float] | None = None
        self._division: Division | None = None

    @property
    def _hybrid(self) -> HybridConfig:
        return cast(HybridConfig, self.section)

    @property
    def micro_batches(self) -> int:
        """Parts of a replica's samples that its ranks pass on one after the other."""
        return self._hybrid.micro_batches

    def calibrate(self, model: keras.Model, world: World, recorded: dict[str, Any] | None) -> None:
        """Decide on rank 0 who computes what, or take what was recorded; see `Strategy.calibrate`."""
        from trainer.ranks.agreement import agree
        from trainer.strategies.placed import costs_of_run
        from trainer.strategies.placed.hybrid_plan import division_in

        super().calibrate(model, world, recorded)
        replicas = self._hybrid.replicas
        if self._hybrid.plan is not None or world.size % replicas:
            return
        ranks, known = world.size // replicas, division_in(recorded)
        if known and recorded and agree(world, lambda: self._may_follow(known, recorded, model, ranks)):
            self._division = known
            return
        if self.profile is None and (ranks > 1 or self._hybrid.profile is not None):
            self.profile = costs_of_run.profile(
                self.config, self._hybrid.profile, model, world, self._samples
            )
        if self.profile is not None:
            self._memory = costs_of_run.memory_bytes(world, ranks)
        found = agree(world, lambda: self._decided(model, ranks) if world.is_main else None)
        told = world.broadcast_object(found and dataclasses.asdict(found))
        self._division = division_in({"division": told})

    def _may_follow(
        self, division: Division, recorded: dict[str, Any], model: keras.Model, ranks: int
    ) -> bool:
        """Return whether a recorded division is of this configuration, for this network and `ranks` ranks."""
        from trainer.planning.placement import staging
        from trainer.strategies.placed.reading import read

        section, network = self._hybrid, read(model, self._samples)
        count = min(self._partitions(ranks), len(staging.groups(network)))
        asked = (section.planner, section.schedule, section.micro_batches, section.recompute)
        return (
            asked == (division.planner, division.schedule, division.micro_batches, division.recompute)
            and recorded.get("replicas") == section.replicas
            and recorded.get("world_size") == ranks * section.replicas
            and count == len(division.partitions)
            and division.fits_network(network, ranks)
        )

    def _partitions(self, ranks: int) -> int:
        return self._hybrid.partitions or 4 * ranks

    def problem(self, model: keras.Model, ranks: int) -> tuple[list[Group], StageProblem]:
        """Return the partitions, and what the planner decides by, for the ranks of a replica."""
        from trainer.planning.placement import partitioning
        from trainer.strategies import optimizers, slots
        from trainer.strategies.placed.reading import read

        section, network = self._hybrid, read(model, self._samples)
        parts = partitioning.partitions(network, self.profile, ranks, self._partitions(ranks))
        optimizer = optimizers.build(self.config.train, 1, model)
        return parts, partitioning.problem(
            network,
            parts,
            self.profile,
            devices=ranks,
            replicas=section.replicas,
            micro_batches=section.micro_batches,
            schedule=section.schedule,
            slots=slots.per_parameter(optimizer, model.trainable_variables),
            memory_bytes=self._memory,
            recompute=section.recompute,
        )

    def planners(self, model: keras.Model, ranks: int) -> tuple[Assignment, ...]:
        """Return what each planner makes of the partitions; see `PlacedStrategy.planners`."""
        from trainer.planning.stages import planners

        if self._hybrid.plan is not None:
            return ()
        return tuple(planners.compare(self.problem(model, ranks)[1], self.config.train.seed))

    def _decided(self, model: keras.Model, ranks: int) -> Division:
        """What the planner decides. Whether it fits into memory is checked of the plan.

        Raises:
            ConfigError: there are more ranks than the planner takes.
        """
        from trainer.planning.stages import planners
        from trainer.strategies.placed.hybrid_plan import Division
        from trainer.strategies.placed.reading import read

        section, network = self._hybrid, read(model, self._samples)
        parts, problem = self.problem(model, ranks)
        try:
            assignment = planners.plan(problem, section.planner, self.config.train.seed)
        except planners.NoneFits:
            self._memory = None
            return dataclasses.replace(self._decided(model, ranks), fits=False)
        except ValueError as error:
            raise ConfigError(
                f"train.strategy.planner: {error}.",
                cure="Take train.strategy.planner=gabra, or more replicas.",
                key="train.strategy.planner",
            ) from None
        division = Division(
            section.planner,
            section.schedule,
            section.micro_batches,
            tuple(network[names[0]].layer or names[0] for names in parts),
            assignment.devices,
            "FLOPs" if self.profile is None else "profile",
            None if self.profile is None else assignment.step_s,
            assignment.gap,
            assignment.fits,
            recompute=section.recompute,
        )
        return division if self.profile is None else self._predicted(model, division, self.profile, ranks)

    def _predicted(self, model: keras.Model, division: Division, profile: Profile, ranks: int) -> Division:
        """The division, with the step that its task lists are predicted to take."""
        from trainer.planning.placement import staging, ways
        from trainer.planning.placement.listing import task_lists
        from trainer.planning.placement.units import place
        from trainer.planning.simulation import steady
        from trainer.strategies.placed.reading import read

        replicas = self._hybrid.replicas

        def one(network: OperationGraph) -> Layouts:
            return staging.on_ranks(network, division.parts(network), division.ranks)

        network = read(model, self._samples * replicas)
        layouts = ways.replicas(network, replicas, ranks, one)
        placement = place(network, layouts)
        lists = task_lists(placement, self.pipeline(network, layouts))
        cost = steady.predict(placement, lists, profile, ranks * replicas)
        return dataclasses.replace(division, step_s=cost.step_s, played=tuple(map(tuple, cost.played)))

    def plan(self, model: keras.Model, optimizer: keras.Optimizer, world_size: int) -> Plan:
        """Divide an update as was decided, else by FLOPs or `profile`; see `PlacedStrategy.plan`.

        Raises:
            ConfigError: see there, and where there are more ranks than the planner takes.
            ModelError: see there.
        """
        from trainer.strategies.placed.hybrid_plan import HybridPlan
        from trainer.strategies.placed.plan import PlacedPlan

        replicas = self._hybrid.replicas
        if self._hybrid.plan is None and self._division is None and not world_size % replicas:
            self._division = self._decided(model, world_size // replicas)
        found = cast(PlacedPlan, super().plan(model, optimizer, world_size))
        return HybridPlan.of_stages(found, self._division)

    def layouts(self, network: OperationGraph, ranks: int) -> Layouts:
        """Give partitions to ranks."""
        from trainer.planning.placement import staging

        division = self._division
        if division is None:
            raise TypeError("nothing was decided")
        return staging.on_ranks(network, division.parts(network), division.ranks)

    def pipeline(self, network: OperationGraph, layouts: Layouts) -> Pipeline | None:
        """Return in which order stages work on micro-batches."""
        from trainer.planning.placement import staging

        section = self._hybrid
        return staging.pipeline(
            network, layouts, section.micro_batches, section.schedule, recompute=section.recompute
        )

    def way(self, ranks: int) -> str:
        """Return stages and schedule."""
        from trainer.planning.stages.schedule import stages

        division = self._division
        if division is None:
            raise TypeError("nothing was decided")
        used, count = len(set(division.ranks)), len(stages(division.ranks))
        again = ", computed again backwards" if division.recompute else ""
        idle = f" ({ranks - used} without any)" if used < ranks else ""
        return (
            f"{count} stage(s) on {ranks} rank(s){idle} by {division.planner}, {division.schedule}{again}, "
            f"at most {division.gap:.1%} from the best"
        )
