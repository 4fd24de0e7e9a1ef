"""What a run uses of its hosts: each rank samples itself, the first of a host its interfaces and energy."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import psutil

from trainer.telemetry import energy, interfaces
from trainer.telemetry.gpus import Gpus
from trainer.telemetry.records import HostEpoch
from trainer.transient import TransientErrors

_SAMPLE_S = 1.0
_Read = TypeVar("_Read")


class HostUsage:
    """One rank's readings from `begin` to `end`.

    Args:
        host: its name.
        is_first: whether this rank is the host's first, and samples what the host has only once.
    """

    def __init__(self, host: str, *, is_first: bool) -> None:
        self._host, self._is_first = host, is_first
        self._process = psutil.Process()
        self._gpus = Gpus()
        self._counter = energy.Counter() if is_first else None
        self._lock = threading.Lock()
        self._samples: list[list[dict[str, Any]]] = []
        self._errors = TransientErrors(
            f"{host}: what the run uses of its host could not be read", kinds=(Exception,)
        )
        self._read_last: dict[str, Any] = {}
        self._ended = threading.Event()
        if len(self._gpus) or (self._counter is not None and self._counter.is_there):
            threading.Thread(target=self._watch, name="telemetry", daemon=True).start()
        self.begin()

    def begin(self) -> None:
        """Start counting."""
        self._began = time.monotonic()
        self._cpu = self._cpu_seconds()
        self._interfaces = self._interfaces_now()
        with self._lock:
            self._joules = self._counter.sample() if self._counter else 0.0
            self._samples = [self._gpus_now()]

    def end(self) -> dict[str, Any]:
        """Return what was read since `begin`, as JSON, for `by_host`."""
        seconds = time.monotonic() - self._began
        counted = self._counter is not None and self._counter.is_there
        with self._lock:
            joules = self._counter.sample() - self._joules if counted and self._counter else None
            samples = [*self._samples, self._gpus_now()]
        return {
            "host": self._host,
            "is_first": self._is_first,
            "seconds": seconds,
            "cpu_s": self._cpu_seconds() - self._cpu,
            "cores": sorted(os.sched_getaffinity(0)),
            "rss_bytes": self._now("rss", lambda: self._process.memory_info().rss, 0),
            "memory_bytes": self._now("memory", lambda: psutil.virtual_memory().total, 0),
            "interfaces": interfaces.between(self._interfaces, self._interfaces_now()),
            "joules": joules,
            "gpus": _gpus(samples, seconds),
        }

    def close(self) -> None:
        """End background sampling."""
        self._ended.set()

    def _cpu_seconds(self) -> float:
        def seconds() -> float:
            spent = self._process.cpu_times()
            return spent.user + spent.system + spent.children_user + spent.children_system

        return self._now("cpu", seconds, 0.0)

    def _interfaces_now(self) -> interfaces.Counters:
        return self._now("interfaces", interfaces.read, {}) if self._is_first else {}

    def _gpus_now(self) -> list[dict[str, Any]]:
        return self._now("gpus", self._gpus.read, [])

    def _now(self, name: str, read: Callable[[], _Read], otherwise: _Read) -> _Read:
        """Read something; what cannot be read, for want of a file descriptor say, is as it was last."""
        with self._errors.survived():
            self._read_last[name] = read()
        return cast("_Read", self._read_last.get(name, otherwise))

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            with self._errors.survived(), self._lock:
                if self._counter is not None:
                    self._counter.sample()
                if len(self._gpus):
                    self._samples.append(self._gpus.read())


def by_host(epoch: int, step: int, readings: Sequence[dict[str, Any]]) -> list[HostEpoch]:
    """Return one epoch of each host, in the order of their first ranks.

    Args:
        epoch: from 1.
        step: updates at its end.
        readings: of all ranks, by rank, from `HostUsage.end`.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for rank, reading in enumerate(readings):
        members[reading["host"]].append(rank)
    return [
        _joined(epoch, step, tuple(ranks), [readings[rank] for rank in ranks]) for ranks in members.values()
    ]


def _joined(epoch: int, step: int, ranks: tuple[int, ...], readings: list[dict[str, Any]]) -> HostEpoch:
    first = next((reading for reading in readings if reading["is_first"]), readings[0])
    seconds, busy = first["seconds"], sum(reading["cpu_s"] for reading in readings)
    cores = len({core for reading in readings for core in reading["cores"]})
    gpus = {gpu["uuid"]: gpu for reading in readings for gpu in reading["gpus"]}
    joules, source = first["joules"], energy.COUNTED
    if joules is None:
        joules, source = energy.estimate(seconds, cores, busy), energy.ESTIMATED
    drawn = [gpu["energy_j"] for gpu in gpus.values() if gpu["energy_j"] is not None]
    if drawn:
        joules, source = joules + sum(drawn), f"{source}; {energy.GPUS}"
    return HostEpoch(
        epoch=epoch,
        step=step,
        seconds=round(seconds, 3),
        host=first["host"],
        ranks=ranks,
        interfaces=first["interfaces"],
        cpu_percent=round(100 * busy / seconds, 1) if seconds > 0 else 0.0,
        cores=cores,
        rss_bytes=sum(reading["rss_bytes"] for reading in readings),
        memory_bytes=first["memory_bytes"],
        gpus=tuple(
            {key: gpu[key] for key in ("name", "utilisation", "memory_bytes", "power_w")}
            for gpu in gpus.values()
        ),
        energy_j=round(joules, 3),
        energy_source=source,
    )


def _gpus(samples: list[list[dict[str, Any]]], seconds: float) -> list[dict[str, Any]]:
    """Each GPU over some time: means, the most memory, and its energy, from the counter or from the power."""
    found = []
    for of_one in zip(*filter(None, samples), strict=True):
        power = _mean([sample["power_w"] for sample in of_one])
        counted = [sample["energy_j"] for sample in of_one]
        if counted[0] is not None and counted[-1] is not None:
            joules = counted[-1] - counted[0]
        else:
            joules = None if power is None else power * seconds
        memory = [sample["memory_bytes"] for sample in of_one if sample["memory_bytes"] is not None]
        found.append(
            {
                "uuid": of_one[0]["uuid"],
                "name": of_one[0]["name"],
                "utilisation": _mean([sample["utilisation"] for sample in of_one]),
                "memory_bytes": max(memory, default=None),
                "power_w": power,
                "energy_j": joules,
            }
        )
    return found


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
