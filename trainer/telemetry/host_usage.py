"""What a run uses of its hosts: each rank samples itself, the first of a host its interfaces and energy."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import psutil

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
        self._counter = Counter() if is_first else None
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
            "interfaces": between(self._interfaces, self._interfaces_now()),
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

    def _interfaces_now(self) -> Counters:
        return self._now("interfaces", read, {}) if self._is_first else {}

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
    drawn = [gpu["energy_j"] for gpu in gpus.values() if gpu["energy_j"] is not None]
    parts = [
        *([(first["joules"], COUNTED)] if first["joules"] is not None else []),
        *([(sum(drawn), GPUS)] if drawn else []),
    ]
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
        energy_j=round(sum(joules for joules, _ in parts), 3) if parts else None,
        energy_source="; ".join(source for _, source in parts) or None,
    )


def _gpus(samples: list[list[dict[str, Any]]], seconds: float) -> list[dict[str, Any]]:
    """Return each GPU's means, most memory, and energy (by its counter, else its power) over `seconds`."""
    gpus = []
    for of_one in zip(*filter(None, samples), strict=True):
        power = _mean([sample["power_w"] for sample in of_one])
        counted = [sample["energy_j"] for sample in of_one]
        if counted[0] is not None and counted[-1] is not None:
            joules = counted[-1] - counted[0]
        else:
            joules = None if power is None else power * seconds
        memory = [sample["memory_bytes"] for sample in of_one if sample["memory_bytes"] is not None]
        gpus.append(
            {
                "uuid": of_one[0]["uuid"],
                "name": of_one[0]["name"],
                "utilisation": _mean([sample["utilisation"] for sample in of_one]),
                "memory_bytes": max(memory, default=None),
                "power_w": power,
                "energy_j": joules,
            }
        )
    return gpus


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# How much energy a host takes, where something counts it. Nothing is estimated.


_POWERCAP = Path("/sys/class/powercap")
COUNTED = "counted by the processor (RAPL: packages and memory of the whole host)"
GPUS = "the GPUs (NVML)"


class Counter:
    """The processor's own energy counters, where the kernel lets us read them (as a rule, root only).

    They wrap around after minutes to hours: call `sample` more often than that.

    Args:
        root: of the kernel's tree.
    """

    def __init__(self, root: Path = _POWERCAP) -> None:
        self._zones: list[tuple[Path, int]] = []
        self._last: list[int] = []
        self._joules = 0.0
        with contextlib.suppress(OSError, ValueError):
            for zone in sorted(root.glob("intel-rapl:*")):
                name = (zone / "name").read_text().strip()
                if name.startswith("package") or name == "dram":
                    self._zones.append((zone / "energy_uj", int((zone / "max_energy_range_uj").read_text())))
            self._last = self._read()
        if len(self._last) != len(self._zones):
            self._zones = []

    @property
    def is_there(self) -> bool:
        """Whether this host has readable counters."""
        return bool(self._zones)

    def sample(self) -> float:
        """Return the joules since this counter was made."""
        try:
            now = self._read()
        except (OSError, ValueError):
            return self._joules
        for (_, range_uj), last, value in zip(self._zones, self._last, now, strict=True):
            self._joules += (value - last) % (range_uj + 1) / 1e6
        self._last = now
        return self._joules

    def _read(self) -> list[int]:
        return [int(path.read_text()) for path, _ in self._zones]


# Readings of the GPUs that a process may use, by NVIDIA's management library.


class Gpus:
    """The GPUs of this process; none without the optional package `nvidia-ml-py` or a driver.

    Args:
        library: that package's module; default: what is installed.
        environment: where `CUDA_VISIBLE_DEVICES` is looked for.
    """

    def __init__(self, library: Any = None, environment: Mapping[str, str] = os.environ) -> None:
        self._library = library or _installed()
        self._devices: list[tuple[str, Any]] = []
        if self._library is None:
            return
        with contextlib.suppress(self._library.NVMLError):
            self._library.nvmlInit()
            for index in range(self._library.nvmlDeviceGetCount()):
                device = self._library.nvmlDeviceGetHandleByIndex(index)
                uuid = str(self._library.nvmlDeviceGetUUID(device))
                if _may_use(index, uuid, environment.get("CUDA_VISIBLE_DEVICES")):
                    self._devices.append((uuid, device))

    def __len__(self) -> int:
        return len(self._devices)

    def read(self) -> list[dict[str, Any]]:
        """Return of each GPU "uuid", "name", "utilisation" (0 to 100), "memory_bytes", "power_w", "energy_j".

        What a GPU does not report is None. `energy_j` is counted since its driver was loaded.
        """
        nvml = self._library
        gpus = []
        for uuid, device in self._devices:
            used = self._ask(nvml.nvmlDeviceGetUtilizationRates, device)
            memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, device)
            milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage, device)
            millijoules = self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, device)
            gpus.append(
                {
                    "uuid": uuid,
                    "name": str(self._ask(nvml.nvmlDeviceGetName, device)),
                    "utilisation": None if used is None else float(used.gpu),
                    "memory_bytes": None if memory is None else int(memory.used),
                    "power_w": None if milliwatts is None else milliwatts / 1000,
                    "energy_j": None if millijoules is None else millijoules / 1000,
                }
            )
        return gpus

    def _ask(self, question: Any, device: Any) -> Any:
        try:
            return question(device)
        except self._library.NVMLError:  # not every GPU reports everything
            return None


def _may_use(index: int, uuid: str, visible: str | None) -> bool:
    if visible is None:
        return True
    named = [entry.strip() for entry in visible.split(",") if entry.strip()]
    return any(entry == str(index) or (not entry.isdigit() and uuid.startswith(entry)) for entry in named)


def _installed() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


# Bytes on a host's network interfaces, as its kernel or its adapter counts them.


# Interface -> bytes sent and received since some time in the past.
Counters = dict[str, tuple[int, int]]

_INFINIBAND = Path("/sys/class/infiniband")
_WORD = 4  # bytes that InfiniBand's data counters count in


def read(infiniband: Path = _INFINIBAND) -> Counters:
    """Return all counters of this host (of this network namespace), loopback and headers included.

    What goes over InfiniBand without the kernel is in its ports' own counters, as `ADAPTER/PORT`; tried on a
    made-up tree of files, not on such hardware.
    """
    kernel = psutil.net_io_counters(pernic=True, nowrap=True)
    counters: Counters = {name: (count.bytes_sent, count.bytes_recv) for name, count in kernel.items()}
    for port in sorted(infiniband.glob("*/ports/*")):
        with contextlib.suppress(OSError, ValueError):  # a port without counters
            sent, received = (
                int((port / "counters" / f"port_{way}_data").read_text()) * _WORD for way in ("xmit", "rcv")
            )
            counters[f"{port.parents[1].name}/{port.name}"] = (sent, received)
    return counters


def between(before: Counters, after: Counters) -> dict[str, Mapping[str, int]]:
    """Return interface -> {"sent", "received"} bytes between two readings; idle interfaces are left out."""
    traffic: dict[str, Mapping[str, int]] = {}
    for name, (sent, received) in after.items():
        sent_before, received_before = before.get(name, (0, 0))
        moved = {"sent": sent - sent_before, "received": received - received_before}
        if any(moved.values()):
            traffic[name] = moved
    return traffic
