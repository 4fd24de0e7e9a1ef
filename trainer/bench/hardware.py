"""The host that figures belong to."""

from __future__ import annotations

import os
import platform
from typing import Any

from trainer import processor


def here() -> dict[str, Any]:
    """Return the processor, the cores that this process may use, the load, and the version of Python."""
    cpu = processor.here()
    return {
        "cpu": cpu.model,
        "instructions": cpu.instructions,
        "onednn": cpu.onednn,
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
