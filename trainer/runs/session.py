"""What one rank holds while a run is trained, and how its state is saved; loop.py trains it."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import Any

from trainer.config import RunConfig
from trainer.data.loading.reader_time import ReaderTime
from trainer.leases.lease import Lease
from trainer.progress import Reporter
from trainer.ranks.agreement import agree
from trainer.ranks.stopping import Patience, StopRequest
from trainer.ranks.watchdog import Watchdog
from trainer.ranks.world import World
from trainer.run_folder.checkpoint import Cursor
from trainer.run_folder.record import RunFolder
from trainer.runs import preparation, restoring, split_predictions
from trainer.runs.preparation import Data
from trainer.runs.watching import Watch
from trainer.strategies.base import Plan, Strategy
from trainer.strategies.guards import check_finite
from trainer.strategies.learner import Learner, PredictedRows, Sums
from trainer.telemetry.recorder import Recorder


@dataclass
class Session:
    """One rank's network, data and place in the training of a run.

    Attributes:
        config: of the run.
        data: volumes and splits.
        strategy: how training is divided over processes.
        learner: the network on all ranks.
        plan: how the next update is divided.
        world: all ranks.
        folder: the run folder.
        cursor: where training stands.
        patience: best epoch and early stopping.
        reporter: tells people.
        watchdog: ends the world when this rank hangs.
        stop: whether this rank was asked to stop.
        telemetry: writes down where the time goes.
        scalars: writes TensorBoard scalars of a step; on rank 0.
        spent: seconds of this rank's reading threads.
        saved_step: of the last checkpoint that this session wrote.
        run_id: the run's identity, on rank 0: written into its checkpoints.
        lease: on the run folder, on rank 0.
        start: its number, on every rank.
        watch: compares the steps with the choice of the strategy; None: the configuration names it.
    """

    config: RunConfig
    data: Data
    strategy: Strategy
    learner: Learner
    plan: Plan
    world: World
    folder: RunFolder
    cursor: Cursor
    patience: Patience
    reporter: Reporter
    watchdog: Watchdog
    stop: StopRequest
    telemetry: Recorder
    scalars: Any = None
    spent: ReaderTime = field(default_factory=ReaderTime)
    saved_step: int | None = None
    run_id: str = ""
    lease: Lease | None = None
    start: int = 0
    watch: Watch | None = None

    def __post_init__(self) -> None:
        self.clock = Clock(self.cursor.timed)
        self._samples_per_epoch = len(preparation.epoch_rows(self.config, self.data))

    @property
    def last_step(self) -> int:
        """Updates in the whole run."""
        return self.config.train.epochs * self.cursor.steps_per_epoch

    @property
    def plan_content(self) -> dict[str, Any]:
        """What plan.json holds."""
        return self.plan.content() | (self.watch.content() if self.watch else {})

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to train."""
        return self.cursor.step >= self.last_step or self.patience.exhausted

    def samples_before(self, step: int) -> int:
        """Real samples that an epoch has taken before its step number `step`, over all ranks."""
        return min(step * self.config.train.global_batch, self._samples_per_epoch)

    def replan(self) -> bool:
        """Let the strategy divide the updates to come anew; returns whether it did; a collective."""
        self.watchdog.beat("deciding how the next update is divided", collective=True)
        left = 0 if self.is_done else self.last_step - self.cursor.step
        plan = self.strategy.replan(self.learner, self.plan, self.cursor.step, left)
        if plan is None:
            return False
        self.plan = plan
        self.clock.expect_tracing()
        self.reporter.note(f"from update {self.cursor.step + 1} on, {plan}")
        return True

    def predictions(self, split: str, *, final: bool = True) -> PredictedRows:
        """Return outputs for a split with the current weights, the same on every rank; a collective.

        Args:
            split: 'train', 'validation' or 'test'.
            final: False to leave out figures that take long.
        """
        share = self.plan.evaluation_share(self.world.rank)
        return split_predictions.collect(
            self.config, self.data, self.learner, share, split, final=final, beat=self.watchdog.beat
        )

    def facts(self) -> dict[str, Any]:
        """Return the strategy's part of result.json."""
        own = self.learner.facts(self.cursor.rows)
        return {"strategy": self.plan.strategy, "world_size": self.world.size, **own}

    def save(self) -> None:
        """Write a checkpoint of this step and drop old ones; all ranks learn whether it worked."""
        self.watchdog.beat("preparing to save a checkpoint", collective=True)
        self.telemetry.flush()  # the files are not behind the checkpoint
        self.telemetry.of_servers(self.learner.server_steps())
        self.learner.gather()
        # A checkpoint with a NaN would be the newest, and useless.
        where = f"after step {self.cursor.step}"
        agree(self.world, lambda: check_finite(self.learner.model, self.world, loss=0.0, where=where))
        if self.cursor.step % self.cursor.steps_per_epoch:
            self.add_sums()
        self.cursor = dataclasses.replace(self.cursor, timed=self.clock.timed, world_size=self.world.size)
        self.watchdog.beat("saving a checkpoint", collective=not self.world.is_main)
        agree(self.world, self._write if self.world.is_main else lambda: None)
        self.saved_step = self.cursor.step

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the network and optimizer as rank 0 has them after `Learner.gather`."""
        restoring.save(self.folder, self.config, self.cursor, self.learner, run=self.run_id, start=self.start)

    def _write(self) -> None:
        self.write_checkpoint()
        # What is left is to tell the others: rank 0 is not to blame when one of them does not listen.
        self.watchdog.beat("agreeing that a checkpoint was saved", collective=True)

    def add_sums(self) -> None:
        """Add what all ranks have seen since the last time to the cursor's sums; a collective."""
        sums = Sums(*self.cursor.sums) + self.learner.take_sums()
        self.cursor = dataclasses.replace(self.cursor, sums=dataclasses.astuple(sums))


# How fast training goes: samples and seconds of its steps, apart from evaluation and saving.


class Clock:
    """Adds up steps. The first step of a session, or after `expect_tracing`, is left out.

    Args:
        timed: samples and seconds of earlier sessions.
    """

    def __init__(self, timed: tuple[float, ...] = (0.0, 0.0)) -> None:
        self._samples, self._seconds = timed
        self._earlier = self._seconds
        self._waited = 0.0
        self._traced = False
        self.start_epoch()

    @staticmethod
    def now() -> float:
        """Return seconds on a clock that only goes forward."""
        return time.monotonic()

    def expect_tracing(self) -> None:
        """Leave the next step out: it is spent on tracing the network."""
        self._traced = False

    def start_epoch(self) -> None:
        """Start counting for a new epoch."""
        self._began = self.now()
        self._before = (self._samples, self._seconds, self._waited)

    def add_step(self, samples: int, seconds: float, waited: float = 0.0) -> None:
        """Count a step of `samples` samples over all ranks, and how many of its seconds waited for input."""
        if self._traced:
            self._samples += samples
            self._seconds += seconds
            self._waited += waited
        self._traced = True

    @property
    def epoch_step_seconds(self) -> float:
        """Seconds of this epoch's steps."""
        return self._seconds - self._before[1]

    def settle_epoch(self, seconds: float) -> None:
        """Count this epoch's steps as those of the slowest rank, which may be another one.

        A rank of a divided network that has little to do waits for nobody, and may be ahead of the others.

        Args:
            seconds: that the steps of the slowest rank took.
        """
        self._seconds = self._before[1] + seconds

    @property
    def timed(self) -> tuple[float, float]:
        """Samples and seconds of all steps so far."""
        return self._samples, self._seconds

    @property
    def speed(self) -> float:
        """Samples per second over the whole run; 0 before there is something to tell."""
        return self._samples / self._seconds if self._seconds > 0 else 0.0

    @property
    def epoch_speed(self) -> float:
        """Samples per second in this epoch; that of the whole run until there is something to tell."""
        samples, seconds = self._samples - self._before[0], self._seconds - self._before[1]
        return samples / seconds if seconds > 0 else self.speed

    @property
    def input_wait_share(self) -> float:
        """Part of this session's step time that went on waiting for input, 0 to 1."""
        seconds = self._seconds - self._earlier
        return self._waited / seconds if seconds > 0 else 0.0

    @property
    def epoch_input_wait(self) -> float:
        """Seconds that this epoch's steps have waited for their input."""
        return self._waited - self._before[2]

    @property
    def epoch_seconds(self) -> float:
        """Seconds since the epoch began, or since this session did."""
        return self.now() - self._began
