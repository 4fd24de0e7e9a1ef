"""Launchers by name, each loaded on first use: schedulers, and what starts jobs where there is none."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import cast

from jobs.schedulers.base import Allocation, Launcher, Scheduler
from trainer.errors import LauncherError

# Entry points of this group are schedulers of other packages.
GROUP = "cingulum.schedulers"
_SCHEDULERS = {"slurm": "jobs.schedulers.slurm.launcher:Slurm"}
# The folder with batch scripts to edit and example profiles.
SHIPPED = "slurm"
_LOCAL = {
    "mpirun": "jobs.local.mpirun:Mpirun",
    "docker": "jobs.local.docker:Docker",
    "apptainer": "jobs.local.apptainer:Apptainer",
}


@functools.cache
def schedulers() -> Mapping[str, str]:
    """Return where each scheduler is, `module:Class` by name, ours first; no other takes a name of ours."""
    others = {one.name: one.value for one in entry_points(group=GROUP)}
    return _SCHEDULERS | {name: place for name, place in others.items() if name not in _SCHEDULERS | _LOCAL}


def names() -> tuple[str, ...]:
    """Return the names of all launchers."""
    return (*schedulers(), *_LOCAL)


def is_scheduler(name: str) -> bool:
    """Return whether this launcher queues jobs by itself."""
    return name in _SCHEDULERS or (name not in _LOCAL and name in schedulers())


def named(name: str) -> Launcher:
    """Return the launcher of this name, one of `names`.

    Raises:
        LauncherError: that of another package cannot be loaded.
    """
    place = _LOCAL.get(name) or _SCHEDULERS.get(name) or schedulers()[name]
    module, _, kind = place.partition(":")
    try:
        return cast(Launcher, getattr(importlib.import_module(module), kind)())
    except (ImportError, AttributeError) as error:
        raise LauncherError(
            f"--launcher {name}: {place} cannot be loaded: {error}.",
            cure="Install the package that brings it anew, or remove it.",
        ) from error


def every_scheduler() -> Iterator[Scheduler]:
    """Yield the schedulers, ours first."""
    return (cast(Scheduler, named(name)) for name in schedulers())


def preferred() -> str:
    """Return the launcher to propose on this host: a scheduler that is here, else mpirun."""
    return next((one.name for one in every_scheduler() if one.is_here()), "mpirun")


def allocation(environment: Mapping[str, str] | None = None) -> Allocation | None:
    """Return the allocation that a process with this environment is in; None outside of one.

    Raises:
        JobError: the scheduler's variables cannot be read.
    """
    known = os.environ if environment is None else environment
    found = (one.allocation(known) for one in every_scheduler())
    return next((one for one in found if one is not None), None)
