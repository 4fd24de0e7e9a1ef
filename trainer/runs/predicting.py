"""Predicts a run: bytes and communication before its first step, the whole step after the first few."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.models.batch_norm import SyncBatchNormalization
from trainer.ranks import world as worlds
from trainer.ranks.agreement import agree
from trainer.ranks.watchdog import Beat, no_beat
from trainer.ranks.world import World
from trainer.run_folder import record
from trainer.run_folder.record import RunFolder
from trainer.strategies.base import Plan
from trainer.strategies.learner import Learner
from trainer.telemetry import link_probe, prediction
from trainer.telemetry.prediction import RunPrediction
from trainer.telemetry.recorder import Recorder


class PredictionWriter:
    """Writes prediction.json. Does nothing without telemetry or where nothing moves between processes.

    Args:
        plan: what an update moves.
        learner: the network on all ranks.
        world: all ranks.
        folder: of the run.
        telemetry: that times the steps.
        accumulation: micro-batches per update.
        beat: tells the watchdog what this rank does.
    """

    def __init__(
        self,
        plan: Plan,
        learner: Learner,
        world: World,
        folder: RunFolder,
        telemetry: Recorder,
        accumulation: int,
        beat: Beat = no_beat,
    ) -> None:
        self._exchange = plan.exchange() if telemetry.enabled else None
        if self._exchange is not None and not any(one.sent for one in self._exchange.payload):
            self._exchange = None
        self._learner, self._world, self._folder, self._telemetry = learner, world, folder, telemetry
        self._accumulation, self._beat = accumulation, beat
        self._memory = [rank.total for rank in plan.memory() or ()] if self._exchange else []
        self._known: RunPrediction | None = None

    def begin(self, start: int, step: int) -> None:
        """Time the links, and write what follows for a step; a collective, before the first step.

        Args:
            start: number of this start.
            step: updates done before.

        Raises:
            Agreed: another start writes the run folder.
        """
        exchange, world = self._exchange, self._world
        if exchange is None:
            return
        several = world.size > 1 and exchange.allreduce is not None
        asks_servers = several and world.links is not None and bool(world.links.servers)
        hosts = _hosts(world)
        self._known = prediction.before_steps(
            exchange,
            hosts,
            link_probe.measure(world) if several else [],
            ranks=world.size,
            start=start,
            step=step,
            statistics=self._statistics() if several else 0,
            memory=self._memory,
            round_trip_s=world.broadcast_object(self._round_trip()) if asks_servers else None,
        )
        self._write()

    def after_step(self, step: int) -> None:
        """Predict the steps to come, once the first ones have told how long computing takes.

        A collective after that one step, and nothing after any other.

        Raises:
            Agreed: another start writes the run folder.
        """
        predicted = self._known
        if (
            predicted is None
            or predicted.link is None
            or step != predicted.began + 1 + prediction.CALIBRATION_STEPS
        ):
            return
        self._telemetry.flush()
        mine = prediction.computing(self._telemetry.newest(prediction.CALIBRATION_STEPS))
        of_servers = self._learner.server_steps()
        self._telemetry.of_servers(of_servers)
        told = self._world.allgather_object([mine, _updating(of_servers)])
        ranks = [(rank[0], rank[1]) for rank, _ in told if rank is not None]
        if len(ranks) == self._world.size:
            self._known = prediction.after_steps(predicted, ranks, step, max(servers for _, servers in told))
            self._write()

    def _write(self) -> None:
        known, path = self._known, self._folder.path / prediction.NAME
        if known is not None:
            content = known.model_dump(mode="json")
            self._beat("writing prediction.json", collective=not self._world.is_main)
            agree(self._world, lambda: _put(path, content) if self._world.is_main else None)
            self._beat("predicting the steps to come", collective=True)

    def _statistics(self) -> int:
        layers = self._learner.model._flatten_layers()
        synchronous = sum(isinstance(layer, SyncBatchNormalization) for layer in layers)
        return 2 * synchronous * self._accumulation  # forwards and backwards

    def _round_trip(self) -> float:
        """Seconds of an order to all servers and their answers; only worker 0 gives orders."""
        took = []
        for _ in range(link_probe.REPEATS + 1):
            began = time.perf_counter()
            self._learner.server_steps()  # there were no steps yet: the answers hold nothing
            took.append(time.perf_counter() - began)
        return statistics.median(took[1:])


def _put(path: Path, content: dict[str, Any]) -> None:
    """Write the prediction; training goes on without it, as it does without telemetry."""
    try:
        record.write_json(path, content)
    except OSError as error:
        worlds.report(f"warning: {path}: cannot be written ({error.strerror}); the run predicts nothing.")


def _hosts(world: World) -> list[str]:
    """Hosts of the ranks, then those of processes that only serve."""
    links = world.links
    if links is None:
        return list(world.hosts)
    serving = [process for process in links.servers if process not in links.workers]
    return [links.hosts[process] for process in (*links.workers, *serving)]


def _updating(of_servers: Sequence[Sequence[dict[str, Any]]]) -> float:
    """Median seconds of an update on the busiest server, the first left out; 0 without servers."""
    return max(
        (statistics.median(row["update"] for row in rows[1:]) for rows in of_servers if rows[1:]), default=0.0
    )
