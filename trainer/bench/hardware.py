"""The host that figures belong to."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def here() -> dict[str, Any]:
    """Return the processor, the cores that this process may use, the load, and the version of Python."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
