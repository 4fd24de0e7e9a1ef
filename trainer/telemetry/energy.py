"""How much energy a host takes, and where the figure comes from: counters, or else an estimate."""

from __future__ import annotations

import contextlib
from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")

# Watts of an idle and of a busy hardware thread, memory and the rest of the machine not included: the average
# of Amazon's machines in the method of Cloud Carbon Footprint (cloudcarbonfootprint.org, methodology), whose
# formula this is: idle + utilisation x (busy - idle).
IDLE_W, BUSY_W = 0.74, 3.5
ESTIMATED = (
    f"estimated from processor time, not measured: {IDLE_W} W for each core, {BUSY_W} W while it is busy "
    "(Cloud Carbon Footprint's average of a cloud provider's machines)"
)
COUNTED = "counted by the processor (RAPL: packages and memory of the whole host)"
GPUS = "the GPUs (NVML)"


def estimate(seconds: float, cores: int, busy_s: float) -> float:
    """Return the joules of so many cores that were busy for `busy_s` core seconds out of `seconds` each."""
    return IDLE_W * seconds * cores + (BUSY_W - IDLE_W) * busy_s


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
