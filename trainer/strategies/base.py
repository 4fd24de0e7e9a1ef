"""The contract of a strategy: one way to divide training over processes.

A strategy is a subclass of `Strategy`, found by `registry.of(config)`; nobody else asks which one it is. It
says what each launched process does (`members`, `take_part`), divides an update (`plan`), and makes the
`Learner` that the loop of trainer/runs/loop.py trains. Importing this file loads neither TensorFlow nor MPI:
`members` and `environment` are asked before these start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from trainer.config import RunConfig, Section, micro_batch

if TYPE_CHECKING:
    import keras
    import numpy as np

    from trainer.ranks.world import World
    from trainer.tasks.base import PerSample
    from trainer.telemetry.timeline import Timeline


@dataclass(frozen=True)
class Share:
    """What a process reads of each micro-batch: part number `part` (from 0) of `parts` equal ones."""

    part: int
    parts: int


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

    def share(self, rank: int) -> Share | None:
        """What a rank reads of the training batches; None where others read them."""
        return Share(rank, self.world_size)

    def evaluation_share(self, rank: int) -> Share:
        """What a rank reads of the splits that are evaluated."""
        return Share(rank, self.world_size)

    def tree(self) -> dict[str, Any]:
        """Every attribute as it goes into plan.json."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.repr}

    def json(self) -> str:
        """The plan as a JSON object, one key per line."""
        return json.dumps(self.tree(), indent=2)


@dataclass(frozen=True)
class Members:
    """Who takes part: how `world.init` divides the launched processes.

    Attributes:
        servers: parameter servers among them.
        placement: `separate`: the last processes serve and are no ranks; `colocated`: the first ranks serve.
        mode: of the servers.
    """

    servers: int = 0
    placement: Literal["separate", "colocated"] = "separate"
    mode: Literal["sync", "async"] = "sync"


class Story(Protocol):
    """What a process may be asked to do for a run, by the strategy that knows which process it is."""

    def together(self, world: World) -> int:
        """Train, or show the plan, with all ranks of a world; tell errors once; return the exit code."""

    def alone(self, world: World) -> None:
        """The same in a world of one rank, whose errors the caller tells."""

    def prepare(self, world: World) -> Prepared:
        """Data, network and optimizer, for a process that trains without the loop."""


class Prepared(Protocol):
    """See `Story.prepare`.

    Attributes:
        model: the network, with the initial weights that every process draws.
        optimizer: built, not yet divided.
        loss: per-sample loss.
        score: a figure per sample, for people.
        steps_per_epoch: updates per epoch.
    """

    @property
    def model(self) -> keras.Model:
        """See above."""

    @property
    def optimizer(self) -> keras.Optimizer:
        """See above."""

    @property
    def loss(self) -> PerSample:
        """See above."""

    @property
    def score(self) -> PerSample:
        """See above."""

    @property
    def steps_per_epoch(self) -> int:
        """See above."""

    def batches(
        self,
        share: Share,
        start_step: int,
        *,
        stop_step: int | None = None,
        steps: Callable[[int], int] | None = None,
    ) -> Iterable[Any]:
        """Micro-batches: see `preparation.training_batches`."""


@dataclass(frozen=True)
class Start:
    """Where and with what the loop starts; given to `Learner.begin`.

    Attributes:
        step: updates done before.
        last_step: updates in the whole run.
        saves_every: steps between two checkpoints or ends of epochs, each of which all must have reached.
        staging: folder into which processes of this start may write files of the run; None but on rank 0.
        beat: tells the watchdog what this process does now.
        is_stopping: whether this process was told to stop.
    """

    step: int
    last_step: int
    saves_every: tuple[int, ...]
    staging: str | None
    beat: Callable[[str], None]
    is_stopping: Callable[[], bool]


@dataclass(frozen=True)
class Update:
    """One update of the weights.

    Attributes:
        losses: of its micro-batches, as seen by this rank.
        samples: in it, where another process has computed it; None where this rank did.
    """

    losses: Sequence[Any]
    samples: int | None = None


class Learner(ABC):
    """The network on one rank, and how all ranks train it together.

    Every method is a collective unless it says otherwise: all ranks call it in the same order.

    Attributes:
        model: the Keras model of this rank; on rank 0 the whole network, up to date after `gather`.
        optimizer: its optimizer.
    """

    model: keras.Model
    optimizer: keras.Optimizer

    def begin(self, start: Start) -> None:
        """The loop starts."""

    def update(self, batches: Iterator[tuple[Any, Any, Any]]) -> Update | None:
        """Do one update.

        Args:
            batches: this rank's micro-batches of it, each read when it is asked for: inputs, targets and
                weights as `train_step` takes them.

        Returns:
            The update; None where there will be none, since a process was asked to stop.
        """
        return Update([self.train_step(*batch) for batch in batches])

    @property
    def is_in_step(self) -> bool:
        """Whether all processes have done the same updates, so that training may stop here; no collective."""
        return True

    @abstractmethod
    def train_step(self, x: Any, y: Any, w: Any) -> Any:
        """Train on this rank's part of one micro-batch; returns its mean weighted loss, a scalar.

        Args:
            x: float32 `(b, D, H, W, C)`, or a pair of it and covariates `(b, k)`.
            y: `(b,)`, classes or numbers, or uint8 `(b, D, H, W)`, label maps.
            w: float32 `(b,)`, weights in the loss; 0 for samples that only fill up a batch.
        """

    @abstractmethod
    def epoch_metrics(self) -> dict[str, float]:
        """Mean `loss` and `score` of all samples on all ranks since the last call."""

    @abstractmethod
    def predict(self, x: Any) -> Any:
        """The network's outputs, float32 `(b, ...)`, for `x` as in `train_step`."""

    @abstractmethod
    def evaluate(
        self,
        batches: Iterable[tuple[Any, Any, Any, Any]],
        collected: Collected | None = None,
        predict: Callable[[Any], Any] | None = None,
    ) -> Predictions:
        """Outputs for all ranks' batches together, the same on every rank.

        Args:
            batches: this rank's batches of rows int64 `(b,)`, inputs, targets, weights; those of weight 0
                are left out.
            collected: from targets and outputs of a batch to what is kept of them, `(b,)` and `(b, m)`, so
                that whole label maps need not cross the network; default: both as they are.
            predict: from inputs to outputs, where the network itself takes only parts of them.
        """

    @abstractmethod
    def check(self) -> None:
        """See that what the ranks must agree on is the same everywhere.

        Raises:
            DivergenceError: it is not; on every rank.
        """

    def settle(self) -> None:
        """Bring the network on this rank up to date for evaluation, where others hold parts of it."""

    @abstractmethod
    def gather(self) -> keras.Model:
        """The ordinary Keras model, the same on every rank; on rank 0 with its optimizer's whole state."""

    def averaged_weights(self) -> AbstractContextManager[None]:
        """A context in which the network holds the averaged weights, where the optimizer keeps them (EMA)."""
        return contextlib.nullcontext()

    def server_steps(self) -> list[list[dict[str, Any]]]:
        """Where the time of parameter servers went since the last call; no collective."""
        return []

    def columns(self) -> dict[str, Any]:
        """What the epoch's row of metrics.jsonl says besides; no collective."""
        return {}

    def facts(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What result.json says besides, of the rows of all epochs; no collective."""
        return {}

    def close(self) -> None:
        """Nothing is trained any more; no collective."""


@dataclass(frozen=True)
class Predictions:
    """Outputs for some volumes, in the order of their row numbers.

    Attributes:
        rows: int64 `(n,)`, row numbers in the shard set.
        targets: `(n,)`, true classes or numbers.
        outputs: float32 `(n, m)`: logits, or what the task keeps of an output.
    """

    rows: np.ndarray
    targets: np.ndarray
    outputs: np.ndarray


# From targets and outputs of a batch to what evaluation keeps.
Collected = Callable[["np.ndarray", "np.ndarray"], tuple["np.ndarray", "np.ndarray"]]


class Strategy(ABC):
    """One way to divide training over processes.

    Args:
        config: of the run; its `train.strategy` is the section of this strategy.

    Attributes:
        Options: of a strategy of a user's own, what `train.strategy.options` may hold.
        options: what it holds.
    """

    Options: ClassVar[type[Section]] = Section
    options: Any = None

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    @property
    def name(self) -> str:
        """As `train.strategy.name` says it."""
        return self.config.train.strategy.name

    def members(self, processes: int) -> Members:
        """Who takes part, of so many launched processes.

        Raises:
            ConfigError: these are too few.
        """
        return Members()

    def environment(self) -> dict[str, str]:
        """Variables that MPI and Horovod shall read at their start."""
        return {}

    def take_part(self, world: World, story: Story) -> int:
        """Do the part of this process in the run; returns its exit code."""
        return story.together(world)

    def everyone(self, world: World) -> World:
        """Whom to call the roll of: all processes that can be lost; a collective."""
        return world

    def recorded(self, world: World) -> dict[str, Any]:
        """What run.json says of who took part, by the keys of `RunRecord`."""
        return {}

    def divided(self, optimizer: keras.Optimizer, world: World) -> keras.Optimizer:
        """The optimizer as ranks use it, of an ordinary Keras one."""
        return optimizer

    @abstractmethod
    def plan(self, model: keras.Model, optimizer: keras.Optimizer, world_size: int) -> Plan:
        """Divide an update; pure: no rank is asked.

        Args:
            model: the network, built.
            optimizer: of `divided`, built.
            world_size: ranks of the world.

        Raises:
            ConfigError: it cannot be divided.
        """

    def check(self, world: World) -> None:
        """See that this world is as the strategy needs it; no collective.

        Raises:
            WorldError: it is not.
        """

    @abstractmethod
    def build(
        self,
        plan: Plan,
        model: keras.Model,
        optimizer: keras.Optimizer,
        world: World,
        *,
        loss: PerSample,
        score: PerSample,
        timeline: Timeline,
    ) -> Learner:
        """Make the network ready to be trained by all ranks as planned; a collective.

        Args:
            plan: of `plan`.
            model: a built network with the weights to start from, on rank 0 at least.
            optimizer: of `divided`, with its state.
            world: all ranks.
            loss: per-sample loss `(B,)` from targets and outputs.
            score: a figure per sample `(B,)` for people.
            timeline: times the parts of each step.
        """

    def recording(self, world: World, folder: Path, step: int) -> AbstractContextManager[None]:
        """A context around all steps, in which files of the strategy's own may go into `folder`.

        Args:
            world: all ranks.
            folder: of the run's telemetry.
            step: at which the run starts or goes on; it keeps the files of several starts apart.
        """
        return contextlib.nullcontext()

    def micro_batch(self, world_size: int) -> int:
        """Samples of one micro-batch on each rank, where ranks share the batch.

        Raises:
            ConfigError: the global batch cannot be divided evenly.
        """
        train = self.config.train
        return micro_batch(train.global_batch, world_size=world_size, accumulation=train.accumulation)
