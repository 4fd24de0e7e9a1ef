"""A run's telemetry while it runs: each rank's steps, each epoch's means, and what the hosts did."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.atomic import write_text
from trainer.config.run import TelemetryConfig
from trainer.ranks import world as worlds
from trainer.telemetry import json_lines, parts, pipeline, records, trace
from trainer.telemetry.host_usage import HostUsage, by_host
from trainer.telemetry.intervals import StepIntervals
from trainer.telemetry.records import HostEpoch, Slowest, Step
from trainer.telemetry.timeline import Timeline
from trainer.transient import PASSING, TransientErrors

FLUSH_S = 10.0
_DIGITS = 6
# Lines of a file that are kept while it cannot be written: the newest.
_MOST_WAITING = 10_000


class Recorder:
    """One rank's telemetry of one run. On all ranks or on none: closing an epoch is a collective.

    Args:
        config: what is asked for.
        world: all ranks.
        folder: the run folder, which all ranks can write.
        deterministic: see `Timeline`.
    """

    def __init__(
        self, config: TelemetryConfig, world: worlds.World, folder: Path, *, deterministic: bool = False
    ) -> None:
        self.enabled, self._world, self._folder = config.enabled, world, folder
        self.timeline = Timeline(config.enabled, deterministic=deterministic)
        self._traces_left = trace.MOST_STEPS if config.trace and config.enabled else 0
        self._traces = bool(self._traces_left)
        self._usage = HostUsage(world.host, is_first=world.local_rank == 0) if config.enabled else None
        self._epoch: list[Step] = []
        self._flushed = time.monotonic()
        self._failed = False
        # Lines of each file that could not be written yet.
        self._waiting: dict[Path, list[dict[str, Any]]] = {}
        self._errors = TransientErrors(
            f"{folder}: telemetry could not be written", say=lambda line: worlds.report(f"warning: {line}")
        )
        self._staging: Path | None = None
        # The newest step in which the network was not traced.
        self._newest: StepIntervals | None = None
        self._files: dict[Path, json_lines.LineFile] = {}
        self.hosts: list[HostEpoch] = []

    def write_under(self, staging: Path, *, steps: bool) -> None:
        """Write into files of this start's own from here on.

        Args:
            staging: folder of the lease on the run folder, which is there.
            steps: whether this process computes some; no other opens the file that they are written to.
        """
        self._staging = staging
        if self.enabled and steps:
            self._open(records.rank_file(self._folder, self._world.rank))
            if self._traces_left:
                self._open(trace.rank_file(self._folder, self._world.rank))

    def start_epoch(self) -> None:
        """Start counting what the hosts use."""
        if self._usage is not None:
            self._usage.begin()

    def step(self, step: int, seconds: float) -> None:
        """Close a step that took `seconds` seconds."""
        self.timeline.close_step(step, seconds)
        if self.enabled and time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write the steps that are not written yet; where that fails, training goes on without telemetry."""
        recorded = self.timeline.take()
        done = parts.steps(recorded)
        self._epoch += done
        self._newest = next((one for one in reversed(recorded) if not one.first), self._newest)
        self._flushed = time.monotonic()
        rank = self._world.rank
        self._append(records.rank_file(self._folder, rank), [records.line(step) for step in done])
        if self._traces_left:
            kept = recorded[: self._traces_left]
            self._traces_left -= len(kept)
            self._append(trace.rank_file(self._folder, rank), trace.lines(kept))

    def newest(self, count: int) -> list[Step]:
        """Return the last steps of this epoch that were written, `count` at most."""
        return self._epoch[-count:]

    def of_servers(self, steps: Sequence[list[dict[str, Any]]]) -> None:
        """Write the updates of each parameter server, as `records.ServerStep`."""
        if self.enabled:
            for number, rows in enumerate(steps):
                self._append(records.server_file(self._folder, number), rows)

    def close_epoch(self, epoch: int, step: int, say: Callable[[str], None]) -> dict[str, Any]:
        """Join the ranks' telemetry of the epoch; a collective.

        Args:
            epoch: from 1.
            step: updates so far.
            say: shows the warning about a rank that slows down the others.

        Returns:
            For the epoch's row of metrics.jsonl: `timeline` (seconds per step, means over ranks),
            `slowest_rank`, `slowest_ratio`, `slowest_part`, and `energy_j` of the hosts that count it (None:
            none does); empty where telemetry is off.
        """
        if self._usage is None:
            return {}
        used = self._usage.end()
        self.flush()
        own_steps, self._epoch = self._epoch, []
        newest = self._newest and pipeline.outline(self._newest)
        ranks = self._world.allgather_object(
            {"means": records.mean(own_steps), "usage": used, "newest": newest}
        )
        self.hosts = by_host(epoch, step, [rank["usage"] for rank in ranks])
        if used["is_first"]:
            for host in self.hosts:
                if host.host == self._world.host:
                    self._append(records.host_file(self._folder, host.host), [dataclasses.asdict(host)])
        self._draw([one["newest"] for one in ranks])
        means = {rank: found["means"] for rank, found in enumerate(ranks) if found["means"]}
        counted = [host.energy_j for host in self.hosts if host.energy_j is not None]
        energy = {"energy_j": round(sum(counted), 3) if counted else None}
        slowest = records.slowest(means)
        if slowest is None:  # nothing but a first step
            return energy
        place = self._world.hosts[slowest.rank]
        warning = straggler_warning(slowest, means[slowest.rank], place, len(own_steps))
        if warning is not None:
            say(f"warning: {warning}")
        average = {
            name: round(sum(own[name] for own in means.values()) / len(means), _DIGITS)
            for name in records.MEANS
        }
        return {
            "timeline": average,
            "slowest_rank": slowest.rank,
            "slowest_ratio": round(slowest.ratio, 4),
            "slowest_part": slowest.part,
            **energy,
        }

    def _draw(self, steps: Sequence[dict[str, Any] | None]) -> None:
        """Write, on rank 0, who worked on which micro-batch in the newest step of the epoch."""
        if not self._world.is_main:
            return
        found = pipeline.tree([None if one is None else pipeline.told(one) for one in steps])
        if found is not None:
            path = pipeline.file(self._folder)
            self._try(path, lambda: write_text(path, json.dumps(found)))

    def close(self) -> None:
        """Write the last steps, and end background sampling; not a collective."""
        if self._usage is not None:
            self.flush()
            self._usage.close()
        for path, lines in self._waiting.items():
            worlds.report(f"warning: {path}: the last {len(lines)} lines could not be written.")
        for file in self._files.values():
            file.close()

    @property
    def has_traces(self) -> bool:
        """Return whether a Chrome trace is wanted."""
        return self._traces

    def join_traces(self) -> None:
        """Write the Chrome trace, where one is wanted; on rank 0, after all ranks have flushed.

        Raises:
            RunError: a rank's file is damaged.
            OSError: it cannot be written.
        """
        if self.has_traces and self._world.is_main:
            trace.join(self._folder, self._world.hosts)

    def _append(self, path: Path, lines: list[dict[str, Any]]) -> None:
        waiting = [*self._waiting.pop(path, ()), *lines]
        if waiting and not self._try(path, lambda: self._file(path).append(waiting)) and not self._failed:
            self._waiting[path] = waiting[-_MOST_WAITING:]

    def _open(self, path: Path) -> None:
        self._try(path, lambda: self._file(path))

    def _file(self, path: Path) -> json_lines.LineFile:
        if path not in self._files:
            self._files[path] = json_lines.LineFile(path, self._staging)
        return self._files[path]

    def _try(self, path: Path, action: Callable[[], object]) -> bool:
        """Return whether the action worked; what may pass is tried again when there is more to write."""
        if self._failed:
            return False
        with self._errors.survived():
            try:
                action()
                return True
            except FileNotFoundError:  # another start has taken the run over: rank 0 says so
                self._failed = True
            except OSError as error:
                if error.errno in PASSING:
                    raise
                self._failed = True
                worlds.report(f"warning: {path}: cannot be written ({error.strerror}); telemetry ends here.")
        return False


# The warning that one rank slows down the others.


# Least ratio to the others' own time, and least seconds that it adds to an epoch, for a warning.
LEAST_RATIO = 1.25
LEAST_COST_S = 1.0

WORDS = {
    "input_wait": "waiting for its input",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "exposed": "waiting for gradients",
    "update": "the update",
    "other": "what is outside the compiled step",
}


def straggler_warning(slowest: Slowest, means: Mapping[str, float], host: str, steps: int) -> str | None:
    """Return a warning about the slowest rank; None where there is no significant straggler.

    Args:
        slowest: of an epoch.
        means: seconds per step of that rank.
        host: that it is on.
        steps: of the epoch.
    """
    own = means["seconds"] - means["exposed"]
    cost = own * (1 - 1 / slowest.ratio) * steps
    if slowest.ratio < LEAST_RATIO or cost < LEAST_COST_S:
        return None
    return (
        f"rank {slowest.rank} on {host} slows down the others: its own work takes {own:.3f} s a step, "
        f"{slowest.ratio:.2f} times as long as theirs, most of the difference in {WORDS[slowest.part]}. "
        f"That made the epoch about {cost:.1f} s longer."
    )
