"""The contract of a strategy: one way to divide training over processes.

A strategy is a subclass of `Strategy`, found by `registry.of(config)`; nobody else asks which one it is. It
says what each launched process does (`members`, `take_part`), measures ranks (`calibrate`), divides an update
(`plan`, and later `replan`), and makes the `Learner` (learner.py) that the loop of trainer/runs/loop.py
trains. Importing this file loads neither TensorFlow nor MPI: `members` and `environment` are asked before MPI
starts. A strategy of a user's own is asked after TensorFlow is imported, since its file imports it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from trainer.config import RunConfig, Section, micro_batch
from trainer.errors import ConfigError
from trainer.planning.communication import repeated
from trainer.planning.exchange import Exchange
from trainer.planning.placement.memory import Memory
from trainer.planning.simulation.collectives import MOST_FLOWS, WholeUpdate, cost, ring
from trainer.planning.simulation.fabric import ClusterFabric, Fabric
from trainer.ranks.members import Members
from trainer.strategies.learner import Learner, Setup

if TYPE_CHECKING:
    import keras
    import numpy as np
    from typing_extensions import Self

    from trainer.planning.profile import Profile
    from trainer.ranks.world import World
    from trainer.tasks.base import PerSample


@dataclass(frozen=True)
class Share:
    """What a process reads of each micro-batch: which of its samples, and which box of each.

    Attributes:
        part: number of its part, from 0.
        parts: equal parts of the micro-batch.
        space: (start, stop) along depth, height and width of what the network takes, a volume or a patch of
            one; None for all of it. Then x of a batch is that box, (b, d, h, w, C), and label maps are whole.
            An empty range: only targets are read. A network of patches is evaluated on whole volumes, of
            which each process is given all.
    """

    part: int
    parts: int
    space: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class Plan:
    """How an update is divided. Printable, and JSON with `json()`; what `Strategy.build` follows.

    Attributes:
        world_size: number of ranks that train.
        global_batch: samples per update, over all ranks.
        accumulation: micro-batches per update.
        micro_batch: samples that a rank takes of each micro-batch.
        parameters: trainable numbers of the network.
        strategy: name of the strategy.
    """

    world_size: int
    global_batch: int
    accumulation: int
    micro_batch: int
    parameters: int
    strategy: str

    @classmethod
    def of(
        cls,
        model: keras.Model,
        strategy: str,
        *,
        world_size: int,
        global_batch: int,
        accumulation: int,
        parts: int | None = None,
        **more: Any,
    ) -> Self:
        """Divide a global batch evenly.

        Args:
            model: the network, built.
            strategy: name of the strategy.
            world_size: number of ranks that train.
            global_batch: samples per update.
            accumulation: micro-batches per update.
            parts: readers of each micro-batch; default: all ranks.
            more: attributes that only this class of plans has.

        Raises:
            ConfigError: the global batch cannot be divided evenly.
        """
        return cls(
            world_size=world_size,
            global_batch=global_batch,
            accumulation=accumulation,
            micro_batch=micro_batch(global_batch, world_size=parts or world_size, accumulation=accumulation),
            parameters=sum(math.prod(v.shape) for v in model.trainable_variables),
            strategy=strategy,
            **more,
        )

    def share(self, rank: int) -> Share | None:
        """Return what a rank reads of the training batches; None where others read them."""
        return Share(rank, self.world_size)

    def evaluation_share(self, rank: int) -> Share:
        """Return what a rank reads of the splits that are evaluated."""
        return Share(rank, self.world_size)

    def memory(self) -> tuple[Memory, ...] | None:
        """Return what each rank is estimated to need; None where the strategy does not say it."""
        return None

    def exchange(self) -> Exchange | None:
        """Return what one update moves between processes; None where the strategy does not say it."""
        return None

    def tree(self) -> dict[str, Any]:
        """Return every attribute as it goes into plan.json."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.repr}

    def drawn(self) -> dict[str, Any]:
        """Return what plan.json says besides: figures for the report. Default: none."""
        return {}

    def content(self) -> dict[str, Any]:
        """Return what plan.json holds."""
        return self.tree() | self.drawn()

    def json(self) -> str:
        """Return the plan as a JSON object, one key per line."""
        return json.dumps(self.tree(), indent=2)


@dataclass(frozen=True)
class ProcessSetup:
    """What a process needs that trains without the loop; see `ProcessTask.prepare`.

    Attributes:
        model: the network, with the initial weights that every process draws.
        optimizer: built, not yet divided.
        loss: per-sample loss.
        score: a figure per sample, for people.
        class_weights: what a sample of each class counts in the loss, float32; None: 1.
        steps_per_epoch: updates per epoch.
        batches: from a `Share` and a first step to micro-batches: see `preparation.training_batches`.
    """

    model: keras.Model
    optimizer: keras.Optimizer
    loss: PerSample
    score: PerSample
    class_weights: np.ndarray | None
    steps_per_epoch: int
    batches: Callable[..., Iterable[Any]]


class ProcessTask(Protocol):
    """What a process may be asked to do for a run, by the strategy that knows which process it is."""

    def together(self, world: World) -> int:
        """Train, or show the plan, with all ranks of a world; tell errors once; return the exit code."""

    def alone(self, world: World) -> None:
        """Do the same in a world of one rank; the caller reports errors."""

    def prepare(self, world: World) -> ProcessSetup:
        """Data, network and optimizer, for a process that trains without the loop."""


def sizes_of(model: keras.Model) -> tuple[list[int], list[int]]:
    """Return the elements of each trainable variable, and the bytes of each element."""
    variables = model.trainable_variables
    return [math.prod(v.shape) for v in variables], [v.value.dtype.size for v in variables]


class Strategy(ABC):
    """One way to divide training over processes.

    Args:
        config: of the run; its `train.strategy` is the section of this strategy.

    Attributes:
        stands_for_another: whether another strategy is chosen in its place when a run starts, by
            trainer/auto.py: of this one only what MPI and Horovod are started with is asked.
        needs_network: whether a step is predicted from the network alone; else `step_of_profile` tells it.
        Options: of a strategy of a user's own, what `train.strategy.options` may hold.
        options: what it holds.
    """

    stands_for_another: ClassVar[bool] = False
    needs_network: ClassVar[bool] = True
    Options: ClassVar[type[Section]] = Section
    options: Any = None

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    @property
    def name(self) -> str:
        """As `train.strategy.name` says it."""
        return self.config.train.strategy.name

    def members(self, processes: int) -> Members:
        """Return which of `processes` launched processes take part, and what they need of each other.

        Raises:
            ConfigError: there are too few processes.
        """
        return Members()

    def environment(self) -> dict[str, str]:
        """Return variables that MPI and Horovod read at their start; they win over those of the site.

        All processes must return the same. Called where there is more than one.
        """
        return {}

    def take_part(self, world: World, story: ProcessTask) -> int:
        """Do the part of this process in the run; returns its exit code."""
        return story.together(world)

    def everyone(self, world: World) -> World:
        """Return the processes to health-check: all that can be lost; a collective."""
        return world

    def recorded(self, world: World) -> dict[str, Any]:
        """Return what run.json says of who took part, by the keys of `RunRecord`."""
        return {}

    def divided(self, optimizer: keras.Optimizer, world: World) -> keras.Optimizer:
        """Return the optimizer as ranks use it, made of an ordinary Keras one."""
        return optimizer

    def keeps_slots(self, world: World) -> bool:
        """Return whether this rank needs the slots of the whole network's optimizer; default: yes.

        Where it does not, they are of one number each, and the learner has slots of what it updates.
        """
        return True

    def calibrate(self, model: keras.Model, world: World, recorded: dict[str, Any] | None) -> None:
        """Measure what `plan` needs to know of the ranks, and keep it, the same on all of them; a collective.

        Called before `plan`, on every rank. Whatever it decides by must go into the plan, and be taken from
        there when a run goes on with the same ranks, so that it ends with the same weights. Default: nothing.

        Args:
            model: the network, built.
            world: all ranks.
            recorded: plan.json of the run that goes on, the same on every rank; None for a new one.

        Raises:
            Agreed: it cannot be measured.
        """

    def plan(self, model: keras.Model, optimizer: keras.Optimizer, world_size: int) -> Plan:
        """Divide an update; pure: no rank is asked. Default: ranks share each micro-batch evenly.

        Args:
            model: the network, built.
            optimizer: of `divided`, built.
            world_size: ranks of the world.

        Raises:
            ConfigError: it cannot be divided.
        """
        train = self.config.train
        return Plan.of(
            model,
            self.name,
            world_size=world_size,
            global_batch=train.global_batch,
            accumulation=train.accumulation,
        )

    def check(self, world: World) -> None:
        """Check that this world is as the strategy needs it; no collective.

        Raises:
            WorldError: it is not.
        """

    def rows(self, fabric: ClusterFabric) -> tuple[str, ...]:
        """Return the labels of what `simulate` says of it on a cluster: default those of its section."""
        return self.config.train.strategy.labels

    def on_cluster(self, label: str, model: keras.Model, fabric: ClusterFabric) -> WholeUpdate:
        """Return what an update takes on a cluster; pure. Default: what `on_links` says.

        Args:
            label: of `rows`.
            model: the network, built.
            fabric: the ranks' hosts, devices and links.

        Raises:
            ConfigError: it cannot be divided over them, or has more than `MOST_FLOWS` messages.
        """
        return self.on_links(model, fabric, fabric.ranks)

    def on_links(self, model: keras.Model, fabric: Fabric, ranks: int) -> WholeUpdate:
        """Return what an update takes over links; pure. Default: what its plan moves.

        Args:
            model: the network, built.
            fabric: links between the ranks.
            ranks: that train.

        Raises:
            ConfigError: it cannot be divided over them, or has more than `MOST_FLOWS` messages.
        """
        from trainer.strategies import optimizers

        plan = self.plan(model, optimizers.build(self.config.train, 1), ranks)
        moves, memory = plan.exchange(), plan.memory()
        if moves is None:
            raise ConfigError("Its plan does not say what an update moves: Plan.exchange().")
        if sum(len(flows) for flows in moves.rounds) > MOST_FLOWS:
            raise ConfigError(f"More than {MOST_FLOWS:,} messages are too many to be simulated.")
        return WholeUpdate(
            f"{plan.micro_batch} sample(s) of each micro-batch on every rank; {self.name}",
            workers=ranks,
            micro_batch=plan.micro_batch,
            exchanged=cost(repeated(moves.rounds), fabric),
            parts=[1.0] * moves.parts,
            sum_s=ring(fabric, ranks).latency_s,
            memory_bytes=None if memory is None else max(one.total for one in memory),
        )

    def step_of_profile(self, profile: Profile, fabric: Fabric, ranks: int) -> float:
        """Return the seconds of an update, where `needs_network` is false; those of the slowest device.

        Args:
            profile: of the network.
            fabric: links between the ranks.
            ranks: that train.
        """
        raise NotImplementedError

    @abstractmethod
    def build(self, plan: Plan, setup: Setup) -> Learner:
        """Make the network ready to be trained by all ranks as planned; a collective.

        Args:
            plan: of `plan`.
            setup: network, optimizer, ranks, and how an output is judged.
        """

    def replan(self, learner: Learner, plan: Plan, step: int, left: int) -> Plan | None:
        """Divide the updates to come anew, such as over ranks that have become slower; a collective.

        Called before the first update of a start, and after each. plan.json holds the new plan before the
        next update: what it was decided by must be in it, and be taken from there when a run goes on
        (`calibrate`), so that it ends with the same weights. `Plan.share` of a rank must stay. Default: None.

        Args:
            learner: of `build`; follows the new plan when this returns.
            plan: that it follows.
            step: updates done.
            left: updates to come, at most; 0 where training is over.

        Returns:
            The new plan; None where the old one stays.

        Raises:
            Agreed: it cannot be divided.
        """
        return None

    def recording(self, world: World, folder: Path, step: int) -> AbstractContextManager[None]:
        """Return a context around all steps, in which the strategy may write files of its own into `folder`.

        Args:
            world: all ranks.
            folder: of the run's telemetry.
            step: at which the run starts or goes on; it keeps the files of several starts apart.
        """
        return contextlib.nullcontext()
