"""Memory and storage traffic of this process and of those that it started."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path


def resident() -> int:
    """Return the bytes of memory that this process holds now."""
    return _status("self", "VmRSS")


def forget_peak() -> None:
    """Begin to count this process's peak anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak(baseline: int) -> int:
    """Return the bytes above `baseline` at the peak, summed over this process and its children.

    Pages that a child shares with its parent are part of the baseline, too.
    """
    return sum(max(0, _status(process, "VmHWM") - baseline) for process in _family())


def from_storage() -> int:
    """Return the bytes that this process and its children read from storage, page cache hits not counted."""
    total = 0
    for process in _family():
        for line in Path(f"/proc/{process}/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                total += int(line.split()[1])
    return total


def _family() -> list[str]:
    return [str(os.getpid()), *(str(child.pid) for child in multiprocessing.active_children())]


def _status(process: str, name: str) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
