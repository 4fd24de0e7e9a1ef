"""Launchers by name, each loaded on first use."""

from __future__ import annotations

import importlib
import shutil
from typing import cast

from jobs.schedulers.base import Launcher

_WHERE = {
    "slurm": ("jobs.schedulers.slurm.launcher", "Slurm"),
    "mpirun": ("jobs.local.mpirun", "Mpirun"),
    "docker": ("jobs.local.docker", "Docker"),
    "apptainer": ("jobs.local.apptainer", "Apptainer"),
}
NAMES = tuple(_WHERE)


def named(name: str) -> Launcher:
    """Return the launcher of this name, one of NAMES."""
    module, kind = _WHERE[name]
    return cast(Launcher, getattr(importlib.import_module(module), kind)())


def preferred() -> str:
    """Return the launcher to propose on this host: Slurm where its commands are, else mpirun."""
    return "slurm" if shutil.which("sbatch") else "mpirun"
