"""The loop over steps: train, agree, close epochs, save. Every rank runs it in step with the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from trainer.config.augment import active
from trainer.data.loading import device_feed
from trainer.errors import Fenced, NotFiniteError, Stopped
from trainer.ranks import consensus
from trainer.ranks.agreement import Agreed, agree
from trainer.run_folder import checkpoint, record, resuming
from trainer.run_folder.run_record import identity
from trainer.runs import room
from trainer.runs.predicting import PredictionWriter
from trainer.runs.session import Session
from trainer.runs.watching import Reconsidered
from trainer.strategies.learner import Sums, TrainingStart


@dataclass
class Training(Session):
    """One rank's training from its cursor to the last epoch."""

    _losses: list[Any] = field(default_factory=list)
    _waited: float = 0.0

    def run(self, batches: Iterable[Any]) -> None:
        """Train until the last epoch, until patience ends, or until asked to stop.

        Raises:
            Agreed: Stopped, Fenced, NotFiniteError, DivergenceError, or that a file could not be written.
            Reconsidered: another strategy is to go on.
        """
        self.watchdog.beat("timing the links between ranks", collective=True)
        forecast = self._forecast()
        self.learner.begin(self._start())
        self.reporter.start(self.cursor.step, self.last_step)
        self.telemetry.start_epoch()
        device = device_feed.device()
        source = iter(batches) if device is None else device_feed.fed(batches, device)
        next_talk = self.cursor.step + 1
        while not self.is_done:
            seconds = self._step(source)
            if seconds is None:
                self._end_early()
            step = self.cursor.step
            forecast.after_step(step)
            ends_epoch = step % self.cursor.steps_per_epoch == 0
            due = self._is_every(self.config.checkpoint.every_steps)
            stopping = False
            if ends_epoch or due or step >= next_talk:
                stopping, steps = self._talk(seconds)
                next_talk = step + steps
            if ends_epoch or self._is_every(self.config.guards.divergence_every_steps):
                self._compare_weights()
            if ends_epoch:
                self._close_epoch()
            elif due:
                self.save()
            if stopping and self.learner.is_in_step and not self.is_done:
                self._end_early()
            if ends_epoch or due:
                self._reconsider()
            if self.replan():
                self._write_plan()
                forecast = self._forecast()

    def _forecast(self) -> PredictionWriter:
        """Predict the updates to come; a collective."""
        forecast = PredictionWriter(
            self.plan,
            self.learner,
            self.world,
            self.folder,
            self.telemetry,
            self.config.train.accumulation,
            self.watchdog.beat,
        )
        forecast.begin(self.start, self.cursor.step)
        return forecast

    def _write_plan(self) -> None:
        """Write plan.json, before the first update that is divided by another plan."""
        self.watchdog.beat("writing plan.json", collective=not self.world.is_main)
        agree(
            self.world,
            lambda: record.write_json(self.folder.plan, self.plan_content) if self.world.is_main else None,
        )

    def _is_every(self, steps: int | None) -> bool:
        return steps is not None and self.cursor.step % steps == 0

    def _start(self) -> TrainingStart:
        every = self.config.checkpoint.every_steps
        return TrainingStart(
            step=self.cursor.step,
            last_step=self.last_step,
            saves_every=(self.cursor.steps_per_epoch, *([every] if every else [])),
            staging=str(self.lease.staging) if self.lease else None,
            beat=self.watchdog.beat,
            is_stopping=lambda: self.stop.requested,
        )

    def _step(self, source: Any) -> float | None:
        """One update; returns the seconds it took, or None where there was none: all were asked to stop."""
        began, self._waited = self.clock.now(), 0.0
        with room.naming_shortage(self.plan, self.world):
            update = self.learner.update(self._micro_batches(source))
        if update is None:
            return None
        self._losses.extend(update.losses)
        self.cursor = dataclasses.replace(self.cursor, step=self.cursor.step + 1)
        epoch, in_epoch = divmod(self.cursor.step - 1, self.cursor.steps_per_epoch)
        seen = [self.samples_before(steps) for steps in (in_epoch, in_epoch + 1)]
        seconds = self.clock.now() - began
        if self.watch is not None:
            self.watch.add(seconds - self._waited)
        if update.samples is None:
            self.clock.add_step(seen[1] - seen[0], seconds, self._waited)
            self.telemetry.step(self.cursor.step, seconds)
        else:  # computed by another process, which times it
            self.clock.add_step(update.samples, seconds)
        self.reporter.step(self.cursor.step, epoch + 1, self.clock.epoch_speed)
        return seconds

    def _micro_batches(self, source: Any) -> Iterator[Any]:
        for _ in range(self.config.train.accumulation):
            self.watchdog.beat("reading the next batch")
            asked = self.clock.now()
            batch = next(source)
            reading = self.clock.now() - asked
            self._waited += reading
            self.telemetry.timeline.record("input", reading)
            self.watchdog.beat("computing a training step", collective=True)
            yield batch

    def _talk(self, seconds: float) -> tuple[bool, int]:
        """Ask all ranks whether one must stop or met a NaN; also returns after how many steps to ask again.

        Raises:
            Agreed: Fenced, NotFiniteError.
        """
        self.watchdog.beat("agreeing with the other ranks", collective=True)
        answer = consensus.ask(
            self.world,
            self._losses,
            self.config.train.accumulation,
            self.cursor.step,
            seconds,
            stop=self.stop.requested,
            fenced=self.lease is not None and not self.lease.is_held,
        )
        self._losses.clear()
        if answer.fenced:
            # Rank 0 is the one that tells people.
            raise Agreed(
                self.lease.fenced()
                if self.lease
                else Fenced("another process writes this run.", path=self.folder.path)
            )
        if answer.bad_step is not None:
            raise Agreed(self._not_finite(answer.bad_step))
        return answer.stopping, answer.steps_until_next

    def _not_finite(self, step: int) -> NotFiniteError:
        good = None
        if self.world.is_main:
            good = checkpoint.find(self.folder.checkpoints, identity(self.folder)).path
        return consensus.not_finite(step, good)

    def _compare_weights(self) -> None:
        self.watchdog.beat("comparing weights with the other ranks", collective=True)
        agree(self.world, self.learner.check)

    def _close_epoch(self) -> None:
        """Reduce the epoch's metrics, evaluate, record, and save where it is due or the best so far."""
        waited = self.spent.verdict(
            self.clock.epoch_input_wait,
            self.clock.epoch_seconds,
            tuple(active(self.config.data.augment.model_dump(mode="json"))),
        )
        if waited is not None:
            self.reporter.note(f"warning: {waited}")
        timed = self.telemetry.close_epoch(self.cursor.epochs_done, self.cursor.step, self.reporter.note)
        self.telemetry.of_servers(self.learner.server_steps())
        self.add_sums()
        self.clock.settle_epoch(max(self.world.allgather_object(self.clock.epoch_step_seconds)))
        sums = Sums(*self.cursor.sums)
        row = {
            "epoch": self.cursor.epochs_done,
            "step": self.cursor.step,
            "loss": sums.mean_loss,
            self.data.task.score: sums.mean_score,
            **self._validate(),
            "learning_rate": float(np.asarray(self.learner.optimizer.learning_rate)),
            "samples_per_second": round(self.clock.epoch_speed, 3),
            "input_wait_s": round(self.clock.epoch_input_wait, 4),
            "seconds": round(self.clock.epoch_seconds, 3),
            **self.learner.columns(),
            "time": record.now(),
            "start": self.start,
            **timed,
        }
        # One rank's clock decides what all of them keep.
        row = self.world.broadcast_object(row)
        self.patience = agree(self.world, lambda: self.patience.after(row))
        improved = self.patience.best is row
        self.cursor = dataclasses.replace(
            self.cursor,
            rows=(*self.cursor.rows, row),
            sums=dataclasses.astuple(Sums()),
            best=self.patience.best,
            best_step=self.cursor.step if improved else self.cursor.best_step,
            waited=self.patience.waited,
        )
        agree(self.world, lambda: self._tell(row) if self.world.is_main else None)
        if improved or self.is_done or self.cursor.epochs_done % self.config.checkpoint.every_epochs == 0:
            self.save()
        self.clock.start_epoch()
        self.telemetry.start_epoch()

    def _tell(self, row: dict[str, Any]) -> None:
        self.reporter.epoch(row)
        self.folder.write_rows(self.cursor.rows)
        if self.scalars is not None:
            self.scalars(row, self.telemetry.hosts)

    def _validate(self) -> dict[str, float | None]:
        if not self.data.split.validation:
            return {}
        self.learner.settle()
        with self.learner.averaged_weights():
            predicted = self.predictions("validation", final=False)
        task = self.data.task
        # Of label maps the loss alone: a class that a volume does not have has no Dice coefficient.
        outputs = predicted.outputs[:, :1] if task.dense else predicted.outputs
        if not np.isfinite(outputs).all():  # the same on every rank
            raise Agreed(self._not_finite(self.cursor.step))
        metrics = task.metrics(predicted.targets, predicted.outputs)
        return {f"val_{name}": metrics[name] for name in task.monitored}

    def _reconsider(self) -> None:
        """Compare the steps with what other strategies promise; plan.json has what comes of it.

        Raises:
            Reconsidered: another one is to go on; the state is saved.
        """
        if self.watch is None or self.is_done:
            return
        self.watchdog.beat("comparing the strategy with others", collective=True)
        left = self.last_step - self.cursor.step
        choice = self.watch.reconsidered(self.world, self.cursor.step, left)
        if choice is None:
            return
        is_another = choice.chosen != self.watch.choice.chosen
        if is_another:
            self._leave()
        self.watch.choice = choice
        self._write_plan()
        if is_another:
            raise Reconsidered(self.lease)

    def _leave(self) -> None:
        """Save what is not saved yet, and close what is written along."""
        if self.saved_step != self.cursor.step:
            self.save()
        agree(self.world, self.telemetry.join_traces)

    def _end_early(self) -> NoReturn:
        self._leave()
        raise Agreed(
            Stopped(
                f"stopped at step {self.cursor.step} of {self.last_step}, as asked; the state is saved.",
                cure=resuming.cure(self.folder),
                path=self.folder.path,
            )
        )
