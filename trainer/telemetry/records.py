"""Records of a run's time and machines: the files of `telemetry/`, and sums over them.

    telemetry/rank-00000.jsonl     a line per step of that rank: `Step`
    telemetry/host-NAME.jsonl      a line per epoch of that host: `HostEpoch`
    telemetry/server-00000.jsonl   a line per update of that parameter server: `ServerStep`

No TensorFlow here. docs/reference/telemetry.md describes every key. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import inspect
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from trainer.errors import RunError
from trainer.telemetry import json_lines
from trainer.telemetry.intervals import Transfer

# Of a rank's lines. Lines without a version are of the first, which had no `transfers`.
VERSION = 2

# These add up to a step's seconds. `overlapped` is no part: it runs beside forward and backward.
PARTS = ("input_wait", "forward", "backward", "exposed", "update", "other")
MEANS = ("seconds", *PARTS, "overlapped")


@dataclass(frozen=True)
class Step:
    """One update of one rank; with accumulation, all its micro-batches together.

    Attributes:
        step: updates so far, this one included.
        seconds: from asking for the first batch to the end of the update.
        input_wait: waiting for batches.
        forward: from the start of the compiled step until the loss is there.
        backward: from there until the last gradient of this rank is there.
        exposed: from there until the last reduced gradient is back: communication that nothing hides,
            waiting for slower ranks included. 0 with one rank.
        overlapped: communication during the backward pass, which costs no time of its own.
        update: clipping and the optimizer's update.
        other: the rest: starting the step, metrics of the epoch, progress display.
        first: the network was traced in this step; such steps are left out of all means.
        transfers: what moved meanwhile; empty in lines of the first version.
    """

    step: int
    seconds: float
    input_wait: float
    forward: float
    backward: float
    exposed: float
    overlapped: float
    update: float
    other: float
    first: bool = False
    transfers: tuple[Transfer, ...] = ()

    @property
    def own(self) -> float:
        """Seconds that this rank needed for itself: all but waiting for the others' gradients."""
        return self.seconds - self.exposed


@dataclass(frozen=True)
class HostEpoch:
    """One host over one epoch, evaluation and saving left out.

    Attributes:
        epoch: from 1.
        step: updates at its end.
        seconds: that were watched: the epoch's steps.
        host: its name.
        ranks: those on it.
        interfaces: interface -> {"sent", "received"}, bytes that the kernel counted, headers included.
        cpu_percent: of this run's processes on the host; 100 is one core.
        cores: that these processes may use.
        rss_bytes: resident memory of these processes at the epoch's end.
        memory_bytes: memory of the host.
        gpus: {"name", "utilisation" (0 to 100), "memory_bytes", "power_w"} of each; empty without any.
        energy_j: of the host while it was watched; None where it is unknown.
        energy_source: where that figure comes from, in words; None without one.
    """

    epoch: int
    step: int
    seconds: float
    host: str
    ranks: tuple[int, ...]
    interfaces: Mapping[str, Mapping[str, int]]
    cpu_percent: float
    cores: int
    rss_bytes: int
    memory_bytes: int
    gpus: tuple[Mapping[str, Any], ...] = ()
    energy_j: float | None = None
    energy_source: str | None = None


@dataclass(frozen=True)
class ServerStep:
    """One update of one parameter server: receiving gradients, updating, sending weights, waiting."""

    step: int
    receive: float
    update: float
    send: float
    wait: float


@dataclass(frozen=True)
class Slowest:
    """The rank that needed most time for itself.

    Attributes:
        rank: its number.
        ratio: its mean own time per step (`Step.own`) over the median of the other ranks' means; 1.0 with
            one rank.
        part: the part of `PARTS` in which it exceeds that of the others most.
    """

    rank: int
    ratio: float
    part: str


@dataclass(frozen=True)
class RunTelemetry:
    """All telemetry of a run so far; every mapping may be empty.

    Attributes:
        steps: rank -> its steps, in order.
        hosts: host -> its epochs, in order.
        servers: parameter server -> its updates, in order.
        rows: those of metrics.jsonl; `timeline`, `slowest_rank`, `slowest_ratio` and
            `slowest_part` where there is telemetry.
    """

    steps: Mapping[int, tuple[Step, ...]] = field(default_factory=dict)
    hosts: Mapping[str, tuple[HostEpoch, ...]] = field(default_factory=dict)
    servers: Mapping[int, tuple[ServerStep, ...]] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no steps are recorded: the run had `telemetry.enabled=false`, or is older."""
        return not self.steps


def read(folder: Path, most_bytes: int | None = None) -> RunTelemetry:
    """Return the telemetry of a run folder; empty without any. An incomplete last line is left out.

    Args:
        folder: of the run.
        most_bytes: of each file of telemetry/, the newest lines within that many bytes; None: all.

    Raises:
        RunError: a file is damaged.
    """
    lies = folder / "telemetry"
    steps = {
        int(path.stem[5:]): _as(Step, path, most_bytes, transfers=_transfers)
        for path in sorted(lies.glob("rank-*.jsonl"))
    }
    servers = {
        int(path.stem[7:]): _as(ServerStep, path, most_bytes) for path in sorted(lies.glob("server-*.jsonl"))
    }
    hosts = {}
    for path in sorted(lies.glob("host-*.jsonl")):
        epochs = _as(HostEpoch, path, most_bytes)
        if epochs:
            hosts[epochs[0].host] = epochs
    metrics = folder / "metrics.jsonl"
    rows = tuple(json_lines.read(metrics)) if metrics.is_file() else ()
    return RunTelemetry({rank: own for rank, own in steps.items() if own}, hosts, servers, rows)


def mean(steps: Iterable[Step]) -> dict[str, float]:
    """Return mean seconds per step: "seconds", `PARTS`, "overlapped"; without first steps."""
    counted = [step for step in steps if not step.first]
    if not counted:
        return {}
    return {name: statistics.fmean(getattr(step, name) for step in counted) for name in MEANS}


def slowest(means: Mapping[int, Mapping[str, float]]) -> Slowest | None:
    """Return the slowest rank, from rank -> `mean` of its steps over the same time; None without any.

    In a synchronous step all ranks take equally long, since the quick ones wait. What tells them apart is
    the time that they need for themselves.
    """
    own = {rank: parts["seconds"] - parts["exposed"] for rank, parts in means.items() if parts}
    if not own:
        return None
    rank = max(own, key=lambda r: own[r])
    others = [r for r in own if r != rank]
    if not others:
        return Slowest(rank, 1.0, _largest(means[rank]))
    usual = statistics.median(own[r] for r in others)
    excess = {
        part: means[rank][part] - statistics.median(means[r][part] for r in others)
        for part in PARTS
        if part != "exposed"
    }
    return Slowest(rank, own[rank] / usual if usual > 0 else 1.0, _largest(excess))


def energy(folder: Path) -> tuple[float, str] | None:
    """Return the joules of training steps on all hosts that count them, and the source; None: nothing counts.

    Raises:
        RunError: a file is damaged.
    """
    files = sorted((folder / "telemetry").glob("host-*.jsonl"))
    by_host = [[epoch for epoch in _as(HostEpoch, path) if epoch.energy_j is not None] for path in files]
    counting = [epochs for epochs in by_host if epochs]
    if not counting:
        return None
    sources = {epoch.energy_source for epochs in counting for epoch in epochs if epoch.energy_source}
    hosts = "" if len(counting) == len(files) else f"on {len(counting)} of {len(files)} hosts, "
    joules = sum(epoch.energy_j or 0.0 for epochs in counting for epoch in epochs)
    return joules, hosts + " / ".join(sorted(sources))


def rank_file(folder: Path, rank: int) -> Path:
    """Return the path of a rank's steps."""
    return folder / "telemetry" / f"rank-{rank:05d}.jsonl"


def host_file(folder: Path, host: str) -> Path:
    """Return the path of a host's epochs, which its first rank writes."""
    return folder / "telemetry" / f"host-{re.sub('[^A-Za-z0-9._-]', '_', host)}.jsonl"


def server_file(folder: Path, server: int) -> Path:
    """Return the path of a parameter server's updates."""
    return folder / "telemetry" / f"server-{server:05d}.jsonl"


def line(step: Step) -> dict[str, Any]:
    """Return a step as a line of a rank's file."""
    told = {"version": VERSION, **vars(step)}
    if not step.first:
        del told["first"]
    return told


def _transfers(told: Iterable[Iterable[Any]]) -> tuple[Transfer, ...]:
    return tuple(Transfer(*one) for one in told)


_Line = TypeVar("_Line")


def _as(
    kind: Callable[..., _Line],
    path: Path,
    most_bytes: int | None = None,
    **made: Callable[[Any], Any],
) -> tuple[_Line, ...]:
    """Return the lines of a file as values; keys that this version does not know are passed over.

    Args:
        kind: of the values.
        path: of the file.
        most_bytes: only the newest lines within that many bytes, without damaged ones; None: all.
        made: key -> what makes its value; else lists become tuples.
    """
    known = inspect.signature(kind).parameters

    def value(key: str, told: Any) -> Any:
        if key in made:
            return made[key](told)
        return tuple(told) if isinstance(told, list) else told

    try:
        return tuple(
            kind(**{key: value(key, told) for key, told in line.items() if key in known})
            for line in (json_lines.read(path) if most_bytes is None else json_lines.tail(path, most_bytes))
        )
    except TypeError as error:
        raise RunError(f"{path}: is damaged ({error}).") from None


def _largest(parts: Mapping[str, float]) -> str:
    return max((part for part in PARTS if part in parts and part != "exposed"), key=lambda part: parts[part])
