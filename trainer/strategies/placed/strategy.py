"""The strategies that divide the network itself: which operation, or which part of it, each rank computes.

What they have in common, and `Spatial`; `Filters` is in filters.py.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trainer.config import PlacedConfig, RingConfig, RunConfig, SpatialConfig, micro_batch
from trainer.errors import ConfigError
from trainer.planning.placement.plan_file import PlanFile
from trainer.ranks import launch
from trainer.ranks.agreement import Agreed, agree
from trainer.ranks.members import Members
from trainer.ranks.world import World
from trainer.strategies.base import Plan, Strategy
from trainer.strategies.learner import Learner, Setup

if TYPE_CHECKING:
    import keras

    from trainer.planning.placement.listing import Pipeline
    from trainer.planning.placement.operations import OperationGraph
    from trainer.planning.placement.tasks import TaskLists
    from trainer.planning.placement.units import Placement
    from trainer.planning.placement.ways import Layouts
    from trainer.planning.profile import Profile
    from trainer.planning.stages.planners import Assignment
    from trainer.ranks.world import World
    from trainer.strategies.placed.hypergraph_plan import Decided


def check_same_plan(world: World, path: Path) -> None:
    """See that what the file says is the same on all ranks; a collective.

    Raises:
        Agreed: a rank cannot read it, or reads another one than rank 0.
    """
    digests = world.allgather_object(agree(world, lambda: PlanFile.read(path).sha256))
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        reads = ", ".join(f"{world.name_of(rank)} reads {digests[rank][:12]}" for rank in (0, *others[:3]))
        more = f", and {len(others) - 3} more rank(s) another one" if len(others) > 3 else ""
        raise Agreed(
            ConfigError(
                f"{path}: is not the same plan on all ranks (SHA-256): {reads}{more}.",
                cure="Copy one of them to all hosts, or name a file on a disk that they share.",
                path=path,
                key="train.strategy.plan",
            )
        )


@dataclass(frozen=True)
class _Divided:
    """What a rule or a file makes of a network: see `PlacedPlan`."""

    placement: Placement
    lists: TaskLists
    evaluated: Placement
    way: str


class PlacedStrategy(Strategy):
    """What they have in common: a rule that divides the network over the ranks of a replica.

    Attributes:
        profile: seconds and links by which some of them plan; None: not known.
        show: is told how many of how many steps of planning are done.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.profile: Profile | None = None
        self.show: Callable[[int, int], None] = lambda done, total: None

    @property
    def section(self) -> PlacedConfig:
        """Its section."""
        return cast(PlacedConfig, self.config.train.strategy)

    @property
    def micro_batches(self) -> int:
        """Parts of a replica's samples that its ranks pass on one after the other; default: one."""
        return 1

    @property
    def replicas(self) -> int:
        """Groups of ranks that each take other samples."""
        return self.section.replicas

    def settle(self, model: keras.Model, world_size: int) -> int:
        """Return the number of replicas, which some find out by themselves.

        Raises:
            ConfigError: ranks or samples cannot be divided so.
        """
        return self.replicas

    def decide(self, model: keras.Model, world_size: int) -> Decided | None:
        """Return what is found for each replica, also for more ranks than can train; None: by a rule alone.

        Raises:
            ConfigError: it cannot be divided.
        """
        return None

    def planners(self, model: keras.Model, ranks: int) -> tuple[Assignment, ...]:
        """Return what each planner makes of the same partitions, for the ranks of a replica; default: ()."""
        return ()

    @property
    def _samples(self) -> int:
        """Samples that one replica takes of a micro-batch."""
        train = self.config.train
        parts = train.accumulation * self.replicas * self.micro_batches
        return max(1, train.global_batch // parts)

    def members(self, processes: int) -> Members:
        """Return that ranks send each other messages."""
        return Members(messages=processes > 1)

    def environment(self) -> dict[str, str]:
        """Return the variables of the all-reduce by which ranks agree on things."""
        return launch.ring_environment(RingConfig())

    def calibrate(self, model: keras.Model, world: World, recorded: dict[str, Any] | None) -> None:
        """See that all ranks divide by the same file, where one is given; see `Strategy.calibrate`."""
        if self.section.plan is not None:
            check_same_plan(world, self.section.plan)

    def keeps_slots(self, world: World) -> bool:
        """Return whether this is rank 0, which writes checkpoints: the others have those of their blocks."""
        return world.is_main

    def plan(self, model: keras.Model, optimizer: keras.Optimizer, world_size: int) -> Plan:
        """Divide an update.

        Raises:
            ConfigError: ranks, replicas and samples do not fit together.
            ModelError: a layer cannot be divided.
        """
        from trainer.planning.placement.listing import forward_lists
        from trainer.strategies.placed.plan import PlacedPlan, check_sizes, facts
        from trainer.strategies.placed.reading import read
        from trainer.strategies.slots import per_parameter

        train, replicas = self.config.train, self.replicas
        if world_size % replicas:
            raise ConfigError(
                f"train.strategy.replicas: {world_size} rank(s) cannot be divided into {replicas} replicas.",
                cure=f"Launch a multiple of {replicas} ranks.",
                key="train.strategy.replicas",
            )
        samples = micro_batch(train.global_batch, world_size=replicas, accumulation=train.accumulation)
        if samples % self.micro_batches:
            raise ConfigError(
                f"train.strategy.micro_batches: {samples} sample(s) of a replica cannot be divided into "
                f"{self.micro_batches} micro-batches.",
                cure=f"Set train.global_batch to a multiple of {self.micro_batches} times the replicas times "
                "train.accumulation, or take fewer micro-batches.",
                key="train.strategy.micro_batches",
            )
        samples = replicas * samples // self.micro_batches
        # Evaluation takes a volume at a time.
        networks = read(model, samples), read(model, self.config.data.evaluation_batch, training=False)
        divide = self._by_rule if self.section.plan is None else self._by_file
        divided = divide(*networks, world_size)
        forwards = forward_lists(divided.evaluated)
        for lists in (divided.lists, forwards):
            check_sizes(lists)
        return PlacedPlan.of(
            model,
            self.name,
            world_size=world_size,
            global_batch=train.global_batch,
            accumulation=train.accumulation,
            parts=replicas,
            replicas=replicas,
            way=divided.way,
            evaluated=divided.evaluated,
            forwards=forwards,
            slots=per_parameter(optimizer, model.trainable_variables),
            micro_batches=self.micro_batches,
            **facts(divided.placement, divided.lists, world_size, train.accumulation),
        )

    def _by_rule(self, network: OperationGraph, evaluated: OperationGraph, world_size: int) -> _Divided:
        """Divide by the strategy's own rule; what is evaluated, over the ranks of the first replica."""
        from trainer.planning.placement.checking import check
        from trainer.planning.placement.layouts import replicated
        from trainer.planning.placement.listing import task_lists
        from trainer.planning.placement.units import place

        replicas = self.replicas
        ranks = world_size // replicas
        layouts = self.replicated(network, replicas, ranks)
        placement = place(network, layouts)
        lists = task_lists(placement, self.pipeline(network, layouts))
        check(placement, lists)
        # Outputs of what is evaluated are gathered on rank 0.
        loss = evaluated.operations[-1]
        layouts = self.layouts(evaluated, ranks) | {loss.name: replicated(loss.shape, [0])}
        return _Divided(placement, lists, place(evaluated, layouts), self.way(ranks))

    def replicated(self, network: OperationGraph, replicas: int, ranks: int) -> Layouts:
        """Divide a network, whose samples are those of all replicas, over the ranks of all of them."""
        from trainer.planning.placement import ways

        return ways.replicas(network, replicas, ranks, lambda one: self.layouts(one, ranks))

    def _by_file(self, network: OperationGraph, evaluated: OperationGraph, world_size: int) -> _Divided:
        """Divide as `train.strategy.plan` says; what is evaluated, too, where the weights are."""
        from trainer.planning.placement import plan_file
        from trainer.planning.placement.units import place

        path, replicas = self.section.plan, self.replicas
        if path is None:
            raise TypeError("no file to divide by")
        planned = plan_file.read(
            path,
            network,
            name=self.config.model.name,
            ranks=world_size,
            replicas=replicas,
            pipeline=functools.partial(self.pipeline, network),
        )
        layouts = plan_file.to_evaluate(planned.layouts, evaluated)
        way = f"divided as {path} says (SHA-256 {planned.sha256[:12]})"
        return _Divided(planned.placement, planned.lists, place(evaluated, layouts), way)

    def build(self, plan: Plan, setup: Setup) -> Learner:
        """Make the learner: see `placed.learner`."""
        from trainer.strategies.placed.learner import PlacedModel
        from trainer.strategies.placed.plan import PlacedPlan

        if not isinstance(plan, PlacedPlan):
            raise TypeError("build follows a plan of this strategy")
        return PlacedModel(plan, setup)

    def pipeline(self, network: OperationGraph, layouts: Layouts) -> Pipeline | None:
        """Return in which order stages work on micro-batches; None: there is one micro-batch."""
        return None

    @abstractmethod
    def layouts(self, network: OperationGraph, ranks: int) -> Layouts:
        """Divide a network over the ranks of a replica.

        Raises:
            ConfigError: it cannot be.
        """

    @abstractmethod
    def way(self, ranks: int) -> str:
        """Return how, for people."""


class Spatial(PlacedStrategy):
    """Depth, height and width of every feature map are cut over ranks, which swap halos."""

    def parts(self, ranks: int) -> tuple[int, ...]:
        """Return how many parts each axis is cut into.

        Raises:
            ConfigError: these are not as many as there are ranks.
        """
        section = cast(SpatialConfig, self.section)
        parts = tuple(section.parts or (ranks, 1, 1))
        count = parts[0] * parts[1] * parts[2]
        if count != ranks:
            raise ConfigError(
                f"train.strategy.parts: {'x'.join(map(str, parts))} are {count} parts, and a replica has "
                f"{ranks} rank(s).",
                cure=f"Launch {count * section.replicas} rank(s), or choose parts whose product is {ranks}.",
                key="train.strategy.parts",
            )
        return parts

    def layouts(self, network: OperationGraph, ranks: int) -> Layouts:
        """Cut space."""
        from trainer.planning.placement import ways

        parts = self.parts(ranks)
        volume = network.inputs[0].shape[1:-1]
        for axis, length, count in zip(("depth", "height", "width"), volume, parts, strict=True):
            if count > length:
                raise ConfigError(
                    f"train.strategy.parts: a {axis} of {length} voxels cannot be cut into {count} parts.",
                    cure="Choose fewer parts along this axis.",
                    key="train.strategy.parts",
                )
        small = cast(SpatialConfig, self.section).small_maps == "channels"
        return ways.spatial(network, parts, range(ranks), samples=self._samples if small else None)

    def way(self, ranks: int) -> str:
        """Return the parts."""
        return "cut into " + "x".join(map(str, self.parts(ranks))) + " parts of depth, height and width"
