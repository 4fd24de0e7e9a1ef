"""Whether a run can go on, or is finished, and the command that goes on with it: in the folder where it lies,
by the launcher that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
import yaml

from trainer import batch_environment
from trainer import config as configuration
from trainer.config import RunConfig
from trainer.errors import RunError
from trainer.leases import claims, lease_taking
from trainer.run_folder import record
from trainer.run_folder.record import RunFolder

_MPIRUN = ("mpirun", "mpiexec", "orterun", "prterun")
# A job of ours has dozens of options for its hosts and variables: no command for a person to type.
_MOST_OPTIONS = 12


def cure(folder: RunFolder) -> str:
    """Return how to resume this run, as the second line of a message."""
    typed = command(folder)
    if batch_environment.is_in_job(os.environ):
        return f"Submit the same script again with --resume in it, or go on in an allocation with: {typed}"
    return f"Go on with: {typed}"


def command(folder: RunFolder) -> str:
    """Return the command that resumes the run in this folder, quoted for a shell."""
    began = launcher(os.environ, _parent(), sys.argv)
    words = ["cingulum", "train", str(folder.config), *where(folder), "--resume"]
    return shlex.join([*began, *words])


def where(folder: RunFolder) -> list[str]:
    """Return `runs=` and `name=` where the folder was moved or renamed after config.yaml was written."""
    try:
        stored = record.load_config(folder)
    except (RunError, OSError):
        return []
    path = folder.path.resolve()
    if stored.folder.resolve() == path:
        return []
    renamed = [] if path.name == stored.name else [_override("name", path.name)]
    return [_override("runs", str(folder.path.parent)), *renamed]


def open_finished(path: Path, note: Callable[[str], object] | None = None) -> RunFolder:
    """Open a run folder whose training is done.

    Args:
        path: of the run folder.
        note: is told where its network is not the best epoch's.

    Raises:
        RunError: not a run folder, or training has not ended yet.
    """
    folder = RunFolder(path)
    if not (folder.result.is_file() and folder.model.is_file() and folder.run.is_file()):
        other = claims.holder(path)
        if other is not None:
            raise lease_taking.being_written(str(path), other)
        raise RunError(
            f"{RunFolder.open(path).path}: this run is not finished: it has no result yet.",
            cure=cure(folder),
            path=path,
        )
    if note is not None:
        with contextlib.suppress(RunError):  # a damaged result.json says so where it is needed
            why = record.other_epoch(record.read_json(folder.result))
            if why:
                note(f"note: {path}: {why}")
    return RunFolder.open(path)


def check_resumable(stored: RunConfig, config: RunConfig) -> None:
    """Refuse to go on with a configuration that would have taken other steps.

    What may change, and what may only grow, each key says itself (trainer/config/section.py).

    Raises:
        RunError: names every key that differs, with both values.
    """
    differing = {
        key: (old, new)
        for key, (old, new) in record.differences(stored, config).items()
        if not (configuration.on_resume(key) == "may grow" and new > old)
    }
    if differing:
        shorter = "; a run may be made longer, not shorter: its schedule would be cut off at a high rate"
        told = record.changes(differing) + (shorter if "train.epochs" in differing else "")
        raise RunError(
            f"{config.folder}: was started with another configuration: {told}.",
            cure=f"{cure(RunFolder(config.folder))} (or choose another name: name=...)",
            path=config.folder,
        )


def check_place(config_path: Path, overrides: Sequence[str], config: RunConfig) -> None:
    """Refuse to go on with a run by the config.yaml of a copy of it, unless `runs=` or `name=` says which.

    Raises:
        RunError: names both folders, and the command for each.
    """
    lies = RunFolder(config_path.parent)
    if config_path.name != lies.config.name or not lies.run.is_file():
        return  # a configuration of the user's own
    chosen = any(override.startswith(("runs=", "name=")) for override in overrides)
    if chosen or config.folder.resolve() == lies.path.resolve():
        return
    other = RunFolder(config.folder)
    also = f"\n  or, for {other.path}: {command(other)}" if other.config.is_file() else ""
    raise RunError(
        f"{config_path}: is in the run folder {lies.path}, but its `runs` and `name` lead to {other.path}.",
        cure=f"For {lies.path}: {command(lies)}{also}",
        path=config_path,
    )


def check_not_lost(folder: RunFolder, config: RunConfig) -> None:
    """Refuse to restart a run at step 0 whose checkpoints were removed by hand.

    A run that was killed in its first epoch has no checkpoint yet, and starts again. A finished one needs
    none, unless there is more to train. Of one that stops early, `restoring.restore` knows.

    Raises:
        RunError: says what is there, and what to do.
    """
    if any(folder.checkpoints.glob("step-*")):  # whether they are whole, `checkpoint.find` tells
        return
    # A row is written just before its checkpoint. The first epoch has one, unless what early stopping
    # watches could not be computed, such as an AUC of one class.
    stops_early = config.train.early_stopping is not None
    due = config.checkpoint.every_epochs if stops_early else 1
    if not folder.result.is_file():
        is_lost = _epochs(folder) > due
    else:
        is_lost = _epochs(folder) < config.train.epochs and not stops_early
    if is_lost:
        raise checkpoints_lost(folder)


def checkpoints_lost(folder: RunFolder) -> RunError:
    """Return the error of a run that was trained, and has no checkpoint to go on from."""
    return RunError(
        f"{folder.path}: was trained for {_epochs(folder)} epochs, but checkpoints/ "
        f"{'has none that is whole' if any(folder.checkpoints.glob('step-*')) else 'is empty'}.",
        cure=f"Restore the checkpoints. To train from the start, remove {folder.path}, or give "
        "another name: name=...",
        path=folder.path,
    )


def _epochs(folder: RunFolder) -> int:
    """Epochs that metrics.jsonl has."""
    try:
        return len(folder.metrics.read_bytes().splitlines())
    except FileNotFoundError:
        return 0


def launcher(environment: Mapping[str, str], parent: Sequence[str], own: Sequence[str]) -> list[str]:
    """Return the words before `cingulum` that started this process: those of mpirun or srun, or an empty
    list.

    Args:
        environment: of this process.
        parent: the command line of the process that started it.
        own: program and arguments of this process.
    """
    if parent and Path(parent[0]).name in _MPIRUN:
        options = list(parent[: len(parent) - len(own)])
        whole = Path(own[0]).name == "cingulum" and list(parent[len(options) + 1 :]) == list(own[1:])
        if whole and Path(parent[len(options)]).name == "cingulum" and len(options) <= _MOST_OPTIONS:
            return options
    elif (tasks := batch_environment.ranks(environment)) > 1:
        return [batch_environment.STARTER, f"--ntasks={tasks}", "--mpi=pmix"]
    ranks = environment.get("OMPI_COMM_WORLD_SIZE")
    return [] if ranks is None else ["mpirun", "-np", ranks]


def _override(key: str, value: str) -> str:
    """`key=value` that is read back as this text and not as a number or a date."""
    try:
        plain = yaml.safe_load(value) == value
    except yaml.YAMLError:
        plain = False
    return f"{key}={value if plain else json.dumps(value)}"  # JSON's texts are YAML's


def _parent() -> list[str]:
    try:
        return psutil.Process(os.getppid()).cmdline()
    except psutil.Error:  # of another user, or gone
        return []
