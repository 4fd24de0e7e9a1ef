"""What a run tells of its time and its machines: the lines of `telemetry/`, how they are written and read.

    telemetry/rank-00000.jsonl     a line per step of that rank: `Step`
    telemetry/host-NAME.jsonl      a line per epoch of that host: `HostEpoch`
    telemetry/server-00000.jsonl   a line per update of that parameter server: `ServerStep`

No TensorFlow here. docs/reference/telemetry.md describes every key. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import os
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from trainer.atomic import write_bytes
from trainer.errors import RunError

# These add up to a step's seconds. `overlapped` is no part: it runs beside forward and backward.
PARTS = ("input_wait", "forward", "backward", "exposed", "update", "other")


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
        other: the rest: starting the step, metrics of the epoch, telling people.
        first: the network was traced in this step; such steps are left out of all means.
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
        energy_j: of the host while it was watched; None where nothing tells.
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
    """All that a run has told so far; every mapping may be empty.

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
        """Whether the run has told nothing: it had `telemetry.enabled=false`, or is older."""
        return not self.steps


def read(folder: Path) -> RunTelemetry:
    """The telemetry of a run folder; empty where there is none. A last line that is not whole is left out.

    Raises:
        RunError: a file is damaged.
    """
    lies = folder / "telemetry"
    steps = {int(path.stem[5:]): _as(Step, path) for path in sorted(lies.glob("rank-*.jsonl"))}
    servers = {int(path.stem[7:]): _as(ServerStep, path) for path in sorted(lies.glob("server-*.jsonl"))}
    hosts = {}
    for path in sorted(lies.glob("host-*.jsonl")):
        epochs = _as(HostEpoch, path)
        if epochs:
            hosts[epochs[0].host] = epochs
    metrics = folder / "metrics.jsonl"
    rows = tuple(read_lines(metrics)) if metrics.is_file() else ()
    return RunTelemetry({rank: own for rank, own in steps.items() if own}, hosts, servers, rows)


def mean(steps: Iterable[Step]) -> dict[str, float]:
    """Mean seconds per step: "seconds", `PARTS`, "overlapped"; first steps left out; empty without any."""
    counted = [step for step in steps if not step.first]
    if not counted:
        return {}
    return {name: statistics.fmean(getattr(step, name) for step in counted) for name in MEANS}


def slowest(means: Mapping[int, Mapping[str, float]]) -> Slowest | None:
    """Name the slowest rank, from rank -> `mean` of its steps over the same time; None without any.

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
    """Joules of all hosts' training steps, and where the figure comes from; None where nothing tells.

    Raises:
        RunError: a file is damaged.
    """
    files = sorted((folder / "telemetry").glob("host-*.jsonl"))
    known = [epoch for path in files for epoch in _as(HostEpoch, path) if epoch.energy_j is not None]
    if not known:
        return None
    sources = sorted({epoch.energy_source for epoch in known if epoch.energy_source})
    return sum(epoch.energy_j or 0.0 for epoch in known), " / ".join(sources)


def rank_file(folder: Path, rank: int) -> Path:
    """Where a rank writes its steps."""
    return folder / "telemetry" / f"rank-{rank:05d}.jsonl"


def host_file(folder: Path, host: str) -> Path:
    """Where a host's first rank writes its epochs."""
    return folder / "telemetry" / f"host-{re.sub('[^A-Za-z0-9._-]', '_', host)}.jsonl"


def server_file(folder: Path, server: int) -> Path:
    """Where a parameter server writes its updates."""
    return folder / "telemetry" / f"server-{server:05d}.jsonl"


class Lines:
    """The lines that this process adds to one of the files, from one start of the run.

    The file is made anew from what is there, so that a process of an earlier start, which still holds the
    one of before, adds to a file without a name.

    Args:
        path: of the file.
        staging: of the lease on the run folder, which rank 0 holds; None: there is no lease.

    Raises:
        OSError: the file cannot be made; FileNotFoundError where the run was taken over by another start.
    """

    def __init__(self, path: Path, staging: Path | None) -> None:
        if staging is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            return
        beside = staging / path.name
        content = path.read_bytes() if path.exists() else b""
        self._file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        try:
            _write_whole(self._file, content)
            beside.rename(path)
        except BaseException:
            self.close()
            raise

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add whole lines, with one write.

        Raises:
            OSError: they cannot be written.
        """
        if lines:
            _write_whole(self._file, "".join(json.dumps(line) + "\n" for line in lines).encode())
            # NFS sends to its server what was written when a descriptor is closed, whichever.
            os.close(os.dup(self._file))

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            os.close(self._file)


def _write_whole(file: int, content: bytes) -> None:
    written = os.write(file, content)
    if written < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def append(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Add whole lines to one of the files of a run that nobody trains.

    Raises:
        OSError: they cannot be written.
    """
    if lines:
        file = Lines(path, None)
        try:
            file.append(lines)
        finally:
            file.close()


def cut(folder: Path, step: int) -> None:
    """Drop the lines of steps after `step`, and what is no whole line, from all files of a run folder.

    Raises:
        OSError: a file cannot be read or written.
    """
    for path in sorted((folder / "telemetry").glob("*.jsonl")):
        lines = path.read_bytes().split(b"\n")[:-1]
        write_bytes(path, b"".join(line + b"\n" for line in lines if _is_until(step, line)))


def _is_until(step: int, line: bytes) -> bool:
    try:
        return bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError):  # a power cut may leave anything
        return False


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one per line; a last line without its end is left out.

    Raises:
        RunError: the file cannot be read, or a line of it is no JSON object.
    """
    try:
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        lines = [json.loads(line) for line in whole.splitlines()]
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: is damaged ({error}).") from None
    if not all(isinstance(line, dict) for line in lines):
        raise RunError(f"{path}: is damaged (a line is no JSON object).")
    return lines


MEANS = ("seconds", *PARTS, "overlapped")

_Line = TypeVar("_Line")


def _as(kind: Callable[..., _Line], path: Path) -> tuple[_Line, ...]:
    """The lines of a file as values; keys that this version does not know are passed over."""
    known = inspect.signature(kind).parameters
    try:
        return tuple(
            kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in line.items() if k in known})
            for line in read_lines(path)
        )
    except TypeError as error:
        raise RunError(f"{path}: is damaged ({error}).") from None


def _largest(parts: Mapping[str, float]) -> str:
    return max((part for part in PARTS if part in parts and part != "exposed"), key=lambda part: parts[part])
