"""Checkpoints: one folder per step, complete or not there, independent of the strategy that wrote it.

    checkpoints/step-00000120/
      model.keras      an ordinary Keras model: `keras.saving.load_model` opens it without our code
      averaged.keras   the same with the averaged weights, where the optimizer keeps an average (EMA)
      optimizer.npz    every variable of the optimizer: see trainer/run_folder/optimizer_state.py
      rng.npz          states of the random generators in the network (Keras leaves them out of model.keras)
      cursor.json      where training stands: see `Cursor`
      manifest.json    format, run and start that wrote it, configuration hash, size and sha256 of each file

A checkpoint is written beside, synced, and renamed: a crash at any moment leaves the older ones whole.
The format is written down in docs/reference/checkpoint.md. No pickle anywhere.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer import atomic
from trainer.atomic import sync
from trainer.errors import RunError
from trainer.run_folder import optimizer_state
from trainer.run_folder.checkpoint_checks import (
    AVERAGED,
    FORMAT_VERSION,
    MANIFEST,
    check,
    fingerprint,
    run_of,
    step_of,
)

if TYPE_CHECKING:
    import keras

__all__ = [
    "Cursor", "NewestCheckpoint", "check", "cursor_from", "discard_partial", "find",
    "least_bytes",
    "load_weights", "path_of", "prune", "random_states", "read_cursor", "restore", "run_of", "save",
]  # fmt: skip

_PARTIAL = ".partial"


@dataclass(frozen=True)
class Cursor:
    """Where training stands after `step` updates; JSON, and all that the loop needs to go on.

    Attributes:
        step: updates done.
        steps_per_epoch: updates per epoch.
        rows: the rows of metrics.jsonl so far.
        sums: of the epoch in progress: the numbers of `trainer.strategies.learner.Sums`; zeros at its end.
        best: the best epoch's row.
        best_step: the step of that epoch's checkpoint.
        waited: epochs without improvement since.
        timed: samples, and the seconds that their steps took, over the whole run.
        world_size: ranks that wrote it; another number may go on.
        epochs: that the run is to have; 0 where it is not known yet.
        cycles: of the schedule, in epochs: where each begins and how many it has (`schedule.extended`).
    """

    step: int
    steps_per_epoch: int
    rows: tuple[dict[str, Any], ...] = ()
    sums: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    best: dict[str, Any] | None = None
    best_step: int | None = None
    waited: int = 0
    timed: tuple[float, ...] = (0.0, 0.0)
    world_size: int = 1
    epochs: int = 0
    cycles: tuple[tuple[int, int], ...] = ()

    @property
    def epochs_done(self) -> int:
        """Whole epochs behind us."""
        return self.step // self.steps_per_epoch


@dataclass(frozen=True)
class NewestCheckpoint:
    """The newest checkpoint that verifies, and those passed over with the reason of each.

    Attributes:
        path: of the checkpoint, or None where there is none.
        skipped: others that are newer, or have no checkpoint's name: path and reason.
    """

    path: Path | None
    skipped: tuple[tuple[Path, str], ...] = field(default=())


def path_of(folder: Path, step: int) -> Path:
    """Return the checkpoint of `step` in the folder of checkpoints."""
    return folder / f"step-{step:08d}"


def save(
    folder: Path,
    cursor: Cursor,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    *,
    averaged: AbstractContextManager[object] | None = None,
    config_sha256: str = "",
    run: str = "",
    start: int = 0,
) -> Path:
    """Write the checkpoint of `cursor.step` into `folder`; called by rank 0 only.

    Args:
        folder: of the checkpoints.
        cursor: where training stands.
        model: the network.
        optimizer: built.
        averaged: a context in which the network holds its averaged weights, where there are such.
        config_sha256: `record.digest` of the configuration.
        run: identity of the run, `id` in its run.json.
        start: number of the start that writes (trainer/leases/lease.py).

    Raises:
        Fenced: another start has taken over the run.
        OSError: the disk is full or cannot be written; older checkpoints are untouched.
    """
    final = path_of(folder, cursor.step)
    lease = atomic.lease_of(final)
    partial = lease.place_for(final) if lease else final.with_name(final.name + _PARTIAL)
    atomic.make_folder(folder)
    discard_partial(folder)
    about = {"format": FORMAT_VERSION, "run": run, "start": start, "config_sha256": config_sha256}
    try:
        with atomic.guarded(final):
            partial.mkdir()
            model.save(partial / "model.keras")
            if averaged is not None:
                with averaged:
                    model.save(partial / AVERAGED)
            optimizer_state.write(partial / "optimizer.npz", optimizer)
            _write_arrays(partial / "rng.npz", random_states(model))
            (partial / "cursor.json").write_text(json.dumps(dataclasses.asdict(cursor)), encoding="utf-8")
            files = {path.name: fingerprint(path) for path in sorted(partial.iterdir())}
            (partial / MANIFEST).write_text(json.dumps({**about, "files": files}, indent=1), encoding="utf-8")
            for path in partial.iterdir():
                sync(path)
            sync(partial)
            if os.path.lexists(final):  # damaged, or another run's; trained again from the one before
                atomic.remove(final)
            atomic.put(partial, final)
            sync(folder)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def find(folder: Path, run: str | None = None) -> NewestCheckpoint:
    """Find the newest checkpoint whose every file matches its manifest, and which `run`, if given, wrote.

    Args:
        folder: of the checkpoints.
        run: identity of the run that wants to go on.
    """
    others = sorted(
        path for path in folder.glob("step-*") if step_of(path) is None and path.suffix != _PARTIAL
    )
    skipped = [(path, f"its name is not of the form {path_of(folder, 120).name}") for path in others]
    for _, path in sorted(_checkpoints(folder), reverse=True):
        problem = check(path, run)
        if problem is None:
            return NewestCheckpoint(path, tuple(skipped))
        skipped.append((path, problem))
    return NewestCheckpoint(None, tuple(skipped))


def read_cursor(path: Path) -> Cursor:
    """Return the cursor of a checkpoint that verified."""
    return cursor_from(json.loads((path / "cursor.json").read_text(encoding="utf-8")))


def cursor_from(fields: dict[str, Any]) -> Cursor:
    """Return a cursor from its JSON object."""
    lists = {key: tuple(fields[key]) for key in ("rows", "sums", "timed")}
    cycles = tuple((int(begin), int(epochs)) for begin, epochs in fields.get("cycles", ()))
    return Cursor(**{**fields, **lists, "cycles": cycles})


def restore(path: Path, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Cursor:
    """Put the state of a checkpoint that verified into `model` and a built `optimizer`.

    Its bytes are those that were written, so that what fails here is no damage, and the checkpoints before it
    would fail as well: an error, and not a reason to go back to step 0.

    Raises:
        RunError: the checkpoint is of another network or optimizer.
    """
    try:
        load_weights(path / "model.keras", model)
    except RunError as error:
        raise RunError(
            error.message,
            cure="Restore the network as it was (its own file, the version of Keras), or move the checkpoint "
            "away to go on from the one before.",
            path=path,
        ) from None
    optimizer_state.read(path / "optimizer.npz", optimizer)
    _read_arrays(path / "rng.npz", random_states(model))
    try:
        return read_cursor(path)
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path / 'cursor.json'}: cannot be used ({error!r:.200}).", path=path / "cursor.json"
        ) from None


def load_weights(path: Path, model: keras.Model) -> None:
    """Put the weights of a `.keras` file into a network.

    Raises:
        RunError: it is damaged, or of another network.
    """
    try:
        model.load_weights(path)
    except (ValueError, KeyError, TypeError, OSError, RuntimeError, zipfile.BadZipFile) as error:
        reason = str(error).partition("\n")[0][:200]
        raise RunError(f"{path}: was written for another network ({reason}).", path=path) from None


def prune(folder: Path, keep: int, best_step: int | None, *, step: int | None = None) -> None:
    """Remove all but the `keep` newest checkpoints and the best epoch's.

    Args:
        folder: of the checkpoints.
        keep: how many.
        best_step: of the best epoch so far.
        step: where training stands. Checkpoints of later steps are not this run's, or it would have gone on
            from them: they are left alone, and take the place of none that is.
    """
    steps = sorted(number for number, path in _checkpoints(folder) if path.is_dir())
    for number in [n for n in steps if step is None or n <= step][:-keep]:
        path = path_of(folder, number)
        if number != best_step and not path.is_symlink():
            if atomic.lease_of(path) is None:
                # Without its manifest it is no checkpoint any more, should we be killed half way.
                (path / MANIFEST).unlink(missing_ok=True)
            atomic.remove(path)


def least_bytes(folder: Path, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> int:
    """Return the disk space of the next checkpoint: that of the newest one, and at least its variables."""
    variables = sum(
        int(np.prod(v.shape)) * np.asarray(v).dtype.itemsize for v in (*model.variables, *optimizer.variables)
    )
    newest = max(_checkpoints(folder), default=None)
    files = newest[1].iterdir() if newest is not None and newest[1].is_dir() else ()
    return max(variables, sum(path.lstat().st_size for path in files))


def discard_partial(folder: Path) -> None:
    """Remove what a crash during `save` left, or what somebody put in its place."""
    for path in folder.glob(f"step-*{_PARTIAL}"):
        atomic.remove(path)


def _checkpoints(folder: Path) -> Iterable[tuple[int, Path]]:
    """What has a checkpoint's name, with the step that the name says."""
    return ((step, path) for path in folder.glob("step-*") if (step := step_of(path)) is not None)


def random_states(model: keras.Model) -> list[Any]:
    """Return variables that are neither weights nor metrics: the states of the seed generators, e.g. of
    dropout.
    """
    weights = {id(variable) for variable in model.weights}
    metrics = {id(variable) for variable in model.metrics_variables}
    return [v for v in model.variables if id(v) not in weights and id(v) not in metrics]


def _write_arrays(path: Path, variables: Sequence[Any]) -> None:
    """One array per variable, named by position (`v00000`, ...); `paths` names them for people."""
    arrays = {f"v{position:05d}": np.asarray(variable) for position, variable in enumerate(variables)}
    np.savez(path, allow_pickle=False, paths=np.array([v.path for v in variables], dtype=np.str_), **arrays)


def _read_arrays(path: Path, variables: Sequence[Any]) -> None:
    stored = optimizer_state.read_arrays(path)
    arrays = [array for name, array in sorted(stored.items()) if name != "paths"]
    ours = [(tuple(v.shape), np.dtype(v.dtype)) for v in variables]
    if ours != [(array.shape, array.dtype) for array in arrays]:
        raise RunError(
            f"{path}: holds {len(arrays)} variables of another optimizer; this one has {len(ours)}.",
            cure="Resume with the configuration of the run folder: its config.yaml.",
            path=path,
        )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
