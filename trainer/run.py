"""One run, start to end, in the order it happens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from trainer import atomic, transfer
from trainer.config import RunConfig
from trainer.data.splits import leaks
from trainer.leases.lease import Lease
from trainer.progress import Reporter
from trainer.ranks.agreement import agree
from trainer.ranks.rollcall import RollCall
from trainer.ranks.stopping import Patience, StopRequest, columns
from trainer.ranks.watchdog import Beat, Watchdog
from trainer.ranks.world import World
from trainer.run_folder import machine, resuming
from trainer.run_folder.record import RunFolder
from trainer.runs import caching, outcome, preparation, room, starting
from trainer.runs.loop import Training
from trainer.runs.preparation import Data
from trainer.runs.restoring import restore
from trainer.runs.starting import take_lease
from trainer.runs.watching import Reconsidered, Watch
from trainer.strategies import registry
from trainer.strategies.base import Plan, Strategy
from trainer.strategies.learner import Setup
from trainer.telemetry.recorder import Recorder
from trainer.telemetry.scalars import tensorboard


def train(
    config: RunConfig,
    world: World,
    *,
    resume: bool,
    reporter: Reporter,
    command: list[str],
    strategy: Strategy | None = None,
) -> dict[str, Any]:
    """Train, evaluate, record.

    Args:
        config: of the run.
        world: all ranks, initialised.
        resume: continue from the newest whole checkpoint, or start at step 0 without one.
        reporter: tells people.
        command: the command line, for run.json.
        strategy: that has taken part so far; default: the configuration's.

    Returns:
        The content of result.json, on every rank.

    Raises:
        Agreed: an error that all ranks know of, `Stopped` among them.
        CingulumError: an error of this rank alone, such as a damaged chunk of a shard.
    """
    strategy = strategy or registry.of(config)
    who = f"rank {world.rank} @ {world.host}"
    with (
        Watchdog(config.guards.timeout_s, who, lambda: world.abort(0 if watchdog.kept else 1)) as watchdog,
        StopRequest(word=_word_of_stopping(config, world)) as stop,
        contextlib.ExitStack() as holding,
    ):
        before = None
        while True:
            try:
                return _train(
                    config, world, strategy, resume, reporter, command, watchdog, stop, holding, before
                )
            except Reconsidered as reconsidered:
                resume, before = True, reconsidered.lease


def _train(
    config: RunConfig,
    world: World,
    strategy: Strategy,
    resume: bool,
    reporter: Reporter,
    command: list[str],
    watchdog: Watchdog,
    stop: StopRequest,
    holding: contextlib.ExitStack,
    before: Lease | None,
) -> dict[str, Any]:
    """Train until the end, or until another strategy is to go on; see `train`.

    Args:
        config, world, strategy, resume, reporter, command: see `train`.
        watchdog: of this process.
        stop: asked for by signals.
        holding: keeps the lease beyond this start.
        before: the lease of the start before this one, on rank 0.

    Raises:
        Reconsidered: the latter; the state is saved, and the run folder still this process's.
    """
    folder = RunFolder(config.folder)
    with contextlib.ExitStack() as leaving:
        watchdog.beat("preparing", collective=True)
        watchdog.missing = leaving.enter_context(
            contextlib.closing(RollCall(strategy.everyone(world)))
        ).missing
        lease = agree(
            world,
            lambda: (
                take_lease(folder, config, resume, holding, reporter, watchdog, before)
                if world.is_main
                else None
            ),
        )
        if lease is not None:
            leaving.enter_context(atomic.through(lease))
        for line in world.links.separate_servers() if world.links else ():
            reporter.note(line)
        strategy, watch = settle(config, world, strategy, folder, reporter=reporter, beat=watchdog.beat)
        data, model, optimizer, plan = prepare(config, world, strategy, folder)

        watchdog.beat("restoring", collective=True)
        rule = _patience(config, data)
        cursor = restore(folder, config, data, model, optimizer, world, reporter, rule)
        patience = rule.resumed(cursor.best, cursor.waited)
        telemetry = Recorder(config.telemetry, world, folder.path, deterministic=config.train.deterministic)
        leaving.enter_context(contextlib.closing(telemetry))
        task = data.task
        setup = Setup(
            model,
            optimizer,
            world,
            task.loss(),
            task.scores(),
            telemetry.timeline,
            class_weights=task.class_weights(),
            seed=config.train.seed,
            step=cursor.step,
        )
        reporter.note(f"{patience.told(config.trained_loss)}.")
        learner = strategy.build(plan, setup)
        leaving.callback(learner.close)
        training = Training(
            config, data, strategy, learner, plan, world, folder, cursor, patience, reporter, watchdog, stop,
            telemetry, watch=watch,
        )  # fmt: skip
        training.replan()  # the plan of `prepare` is that of the first update
        if patience.exhausted and cursor.step < training.last_step:
            reporter.note(
                f"early stopping has ended this run after epoch {cursor.epochs_done}; train.epochs does not "
                "make it longer."
            )
        if training.is_done and world.any(world.is_main and folder.result.is_file()):
            return outcome.complete(training)

        cached = leaving.enter_context(
            caching.cached(
                config, data, world, reporter=reporter, beat=watchdog.beat, is_stopping=lambda: stop.requested
            )
        )
        training.data = data = cached.data
        watchdog.beat("looking for leaks", collective=not world.is_main)

        def look_for_leaks() -> None:
            if world.is_main and not folder.run.is_file():  # a run that is resumed was checked before
                check_leaks(config, data, note=reporter.note, progress=looking)

        def looking(done: int, total: int) -> None:
            watchdog.beat(f"looking for leaks, volume {done} of {total}")

        agree(world, look_for_leaks)
        spent = training.spent
        share = plan.share(world.rank)
        batches: Any = ()
        if share is not None:
            batches = agree(
                world, lambda: preparation.training_batches(config, data, share, cursor.step, spent)
            )

        devices = world.allgather_object(machine.devices())
        if unequal := machine.unequal_hosts(world.hosts, devices):
            reporter.note(unequal)
        ran = starting.recorded(config, strategy, data, model, world, devices, command)
        if ran.float32_layers:
            more = f", {ran.float32_layers[1]}, ..." if len(ran.float32_layers) > 2 else ""
            reporter.note(
                f"{len(ran.float32_layers)} of the network's layers compute in float32: "
                f"{ran.float32_layers[0]}{more} (run.json has all)."
            )
        watchdog.beat("timing what XLA may compile", collective=True)
        compiled = starting.choose_compiled(training)
        ran = ran.model_copy(update=strategy.recorded(world) | compiled)
        training.start, staging = world.broadcast_object((lease.start, lease.staging) if lease else None)
        training.lease = lease
        training.run_id = agree(
            world,
            lambda: (
                starting.open_folder(folder, config, training.plan_content, cursor, ran, lease.start)
                if lease
                else ""
            ),
        )
        telemetry.write_under(Path(staging), steps=share is not None)
        if world.is_main:
            training.scalars = tensorboard(folder.tensorboard, training.start)
        with (
            strategy.recording(world, folder.telemetry, cursor.step),
            # Before and after there is nothing to save: Ctrl-C ends the run at once.
            stop.by_interrupt(answers=world.is_main),
        ):
            training.run(batches)
        return outcome.finish(training, cached.report)


def _word_of_stopping(config: RunConfig, world: World) -> str:
    """What Ctrl-C under mpirun is answered by rank 0: a second later it may be too late to say it."""
    if not world.is_main or "OMPI_COMM_WORLD_SIZE" not in os.environ:
        return ""
    return f"\nstopping; mpirun leaves a second to save in.\n  {resuming.cure(RunFolder(config.folder))}\n"


def settle(
    config: RunConfig, world: World, strategy: Strategy, folder: RunFolder, *, reporter: Reporter, beat: Beat
) -> tuple[Strategy, Watch | None]:
    """Return the strategy that trains: the given one, or what it stands for, with what watches the choice."""
    if not strategy.stands_for_another:
        return strategy, None
    from trainer import auto

    return auto.settle(config, world, folder, reporter=reporter, beat=beat)


def prepare(
    config: RunConfig, world: World, strategy: Strategy, folder: RunFolder
) -> tuple[Data, keras.Model, keras.Optimizer, Plan]:
    """Open the data, build the network with its optimizer, and plan; what cannot be trained is refused.

    Raises:
        Agreed: what is wrong with the configuration or the data.
    """

    def build() -> tuple[Data, keras.Model, keras.Optimizer]:
        preparation.set_numerics(config)
        data = preparation.open_data(config)
        _patience(config, data)
        return data, *preparation.build_network(config, data, world, strategy)

    def divide() -> Plan:
        plan = strategy.plan(model, optimizer, world.size)
        strategy.check(world)
        return plan

    data, model, optimizer = agree(world, build)
    recorded = world.broadcast_object(folder.read_plan() if world.is_main else None)
    strategy.calibrate(model, world, recorded)
    plan = agree(world, divide)
    room.check(plan.memory(), (*model.weights, *optimizer.variables), world)
    return data, model, optimizer, plan


def check_leaks(
    config: RunConfig, data: Data, *, note: Callable[[str], object], progress: leaks.Progress
) -> None:
    """Look for what the splits share, and for held-out subjects that the weights to start from have seen.

    Args:
        note: is told what was found, where `data.leaks` is 'warn'.
        progress: is told how many volumes of how many were read.

    Raises:
        LeakError: there is something, and `data.leaks` is 'stop'.
    """
    if config.data.leaks == "ignore":
        return
    stop = config.data.leaks == "stop"
    found = leaks.check(data.shards, data.split, stop=stop, progress=progress)
    if found:
        note(f"warning: splits share what they must not:\n{leaks.listed(found)}")
    source = config.train.transfer.start_from
    if source is not None:
        said = transfer.check_unseen(source, data.shards, data.split, stop=stop)
        if said:
            note(said)


def _patience(config: RunConfig, data: Data) -> Patience:
    metrics = columns(data.task.score, data.task.monitored)
    return Patience.from_config(
        config.train.early_stopping, metrics, has_validation=bool(data.split.validation)
    )
