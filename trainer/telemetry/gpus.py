"""Readings of the GPUs that a process may use, by NVIDIA's management library."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any


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
        found = []
        for uuid, device in self._devices:
            used = self._ask(nvml.nvmlDeviceGetUtilizationRates, device)
            memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, device)
            milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage, device)
            millijoules = self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, device)
            found.append(
                {
                    "uuid": uuid,
                    "name": str(self._ask(nvml.nvmlDeviceGetName, device)),
                    "utilisation": None if used is None else float(used.gpu),
                    "memory_bytes": None if memory is None else int(memory.used),
                    "power_w": None if milliwatts is None else milliwatts / 1000,
                    "energy_j": None if millijoules is None else millijoules / 1000,
                }
            )
        return found

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
