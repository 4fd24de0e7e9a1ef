"""The runs of a cross-validation: one per fold and seed, in one folder, each an ordinary run.

runs/<name>/
  crossval.yaml            the configuration that all of them share
  fold-0-seed-0/           a run folder
  fold-0-seed-0.log        what its training said
  ...
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import psutil

from trainer import config as configuration
from trainer.atomic import write_text
from trainer.config import RunConfig
from trainer.data.shards.index import Volume
from trainer.data.shards.shards import ShardSet
from trainer.data.splits import leaks
from trainer.data.splits import splits as splits_by_subject
from trainer.data.splits.splits import Split
from trainer.errors import CohortError, ConfigError, LeakError, RunError, typed
from trainer.run_folder import record
from trainer.run_folder.crossval_folder import CONFIG_NAME
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord

State = Literal["finished", "unfinished", "new"]


@dataclass(frozen=True)
class Fold:
    """One run: fold `number` is held out, and the network starts from `seed`."""

    number: int
    seed: int
    overrides: tuple[str, ...]
    config: RunConfig

    @property
    def title(self) -> str:
        """For people."""
        return f"fold {self.number}, seed {self.seed}"

    @property
    def run(self) -> RunFolder:
        """Its run folder."""
        return RunFolder(self.config.folder)

    @property
    def log(self) -> Path:
        """What its training said, beside the run folder."""
        return self.config.folder.with_name(f"{self.config.name}.log")

    @property
    def state(self) -> State:
        """How far it is."""
        if self.run.result.is_file():
            return "finished"
        return "unfinished" if self.run.config.is_file() else "new"


@dataclass(frozen=True)
class CrossValidation:
    """All runs of a cross-validation, seed by seed; `config` is what they share."""

    config: RunConfig
    seeds: tuple[int, ...]
    folds: tuple[Fold, ...]

    @property
    def folder(self) -> Path:
        """The folder of its run folders."""
        return self.config.folder

    @property
    def stored(self) -> Path:
        """Its configuration, as the folder keeps it."""
        return self.folder / CONFIG_NAME

    @property
    def unfinished(self) -> tuple[Fold, ...]:
        """What is left to train."""
        return tuple(fold for fold in self.folds if fold.state != "finished")


def plan(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    folds: int | None,
    seeds: int,
    by: Literal["site"] | None = None,
    has_data: bool = True,
) -> CrossValidation:
    """Return the runs of a cross-validation; nothing is read but the configuration, and sites of the set.

    Args:
        path: YAML file of a run.
        overrides: `key=value` changes of it.
        folds: how many; default: data.split.folds of the configuration, or 5; by site: as many as there are.
        seeds: networks per fold: train.seed and the numbers after it. The folds are the same for all.
        by: hold out one site at a time.
        has_data: whether the shard set is there; else its sites are not counted.

    Raises:
        ConfigError: as for a run; folds are counted by site and given otherwise.
        CohortError: all subjects are of one site.
        ShardError: by site, and the shard set cannot be opened.
    """
    stored = configuration.load(path, overrides)
    if by == "site" or stored.data.split.by == "site":
        count = _count_sites(stored, folds) if has_data else folds or stored.data.split.folds
        split = ["data.split.by=site", f"data.split.folds={count}"]
    else:
        split = [f"data.split.folds={folds or stored.data.split.folds or 5}"]
    split.append("data.split.fold=0")
    config = configuration.load(path, [*overrides, *split])
    text = configuration.dump(config)
    numbers = tuple(range(config.train.seed, config.train.seed + seeds))
    runs = []
    for seed in numbers:
        for number in range(config.data.split.folds or 0):
            changes = (
                f"name=fold-{number}-seed-{seed}",
                f"runs={json.dumps(str(config.folder))}",
                f"data.split.fold={number}",
                f"train.seed={seed}",
            )
            runs.append(Fold(number, seed, changes, configuration.parse(text, changes, source=str(path))))
    return CrossValidation(config, numbers, tuple(runs))


def _count_sites(config: RunConfig, folds: int | None) -> int:
    """Return the number of sites of the subjects that a configuration divides."""
    volumes = ShardSet.open(config.data.shards).volumes
    classes = config.data.classes if config.task.name == "classification" else None
    if config.task.name == "classification" and classes is None:
        classes = tuple(sorted({volume.label for volume in volumes if volume.label is not None}))
    there = splits_by_subject.sites(volumes, classes, _targets(config, volumes))
    if folds not in (None, len(there)):
        raise ConfigError(
            f"--folds {folds}, and the subjects are of {len(there)} sites.", cure="Leave out --folds."
        )
    if len(there) < 2:
        which = f"all subjects are of one site ({there[0]})" if there[0] else "no subject has a site"
        raise CohortError(
            f"{config.data.shards}: {which}.",
            cure="Import with a table that has a column site.",
            path=config.data.shards,
        )
    return len(there)


def _targets(config: RunConfig, volumes: Sequence[Volume]) -> list[float | None] | None:
    """Return what a regression learns of each volume, as its task reads it; None for other tasks."""
    if config.task.name != "regression":
        return None
    if (config.task.target or "age") == "age":
        return [volume.age for volume in volumes]
    return [_number(volume.label) for volume in volumes]


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:  # the task refuses it
        return None


def one(crossval: CrossValidation, number: int, seed: int | None) -> Fold:
    """Return the run that holds fold `number` out and starts from `seed`; default: the first seed.

    Raises:
        ConfigError: there is no such run; names those there are.
    """
    seed = crossval.seeds[0] if seed is None else seed
    for fold in crossval.folds:
        if (fold.number, fold.seed) == (number, seed):
            return fold
    last = crossval.folds[-1]
    raise ConfigError(
        f"There is no fold {number} with seed {seed}: the folds are 0 to {last.number}, "
        f"the seeds {' '.join(map(str, crossval.seeds))}.",
        cure="Give --folds and --seeds as for the other folds.",
    )


def keep(crossval: CrossValidation) -> None:
    """Store the configuration that all runs share, if it is not there yet; several hosts may do so at once.

    Raises:
        OSError: it cannot be written.
    """
    if crossval.stored.is_file():
        return
    crossval.folder.mkdir(parents=True, exist_ok=True)
    # Not atomic.write_text: its temporary name is the same for everyone.
    handle, name = tempfile.mkstemp(prefix=f".{CONFIG_NAME}.", dir=crossval.folder)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(configuration.dump(crossval.config))
        file.flush()
        os.fsync(handle)
    Path(name).replace(crossval.stored)


def check(crossval: CrossValidation) -> None:
    """Check that the folder was made with this configuration from these data.

    Raises:
        RunError: names every key that differs, or the run that was trained on other data.
        ShardError: the shard set cannot be opened.
    """
    if RunFolder(crossval.folder).config.is_file():
        raise RunError(
            f"{crossval.folder}: is the folder of a single run.",
            cure="Give the cross-validation another name: name=...",
            path=crossval.folder,
        )
    if crossval.stored.is_file():
        _compare(crossval.stored, crossval.config)
    content_hash = ShardSet.open(crossval.config.data.shards).content_hash
    for fold in crossval.folds:
        if fold.state == "new":
            continue
        _compare(fold.run.config, fold.config)
        if fold.run.run.is_file() and RunRecord.read(fold.run.run).shards.content_hash != content_hash:
            raise RunError(
                f"{fold.run.path}: was trained on other data than {crossval.config.data.shards} holds now.",
                cure="Name the shard set that its run.json names, or give the cross-validation another name.",
                path=fold.run.path,
            )


def _compare(path: Path, config: RunConfig) -> None:
    try:
        stored = configuration.load(path)
    except ConfigError as error:
        raise RunError(f"{path}: cannot be used: {error.message}", path=path) from None
    # Other than a run that is resumed, epochs may not grow: finished folds would have had fewer.
    differing = record.differences(stored, config)
    differing.pop("name", None)
    if differing:
        shared = path if path.name == CONFIG_NAME else path.parent.parent / CONFIG_NAME
        raise RunError(
            f"{path}: was made with another configuration: {record.changes(differing)}.",
            cure=f"Go on with: cingulum crossval {typed(shared)} (or choose another name: name=...)",
            path=path,
        )


def splits(crossval: CrossValidation) -> dict[int, Split]:
    """Return each fold's split, by its number; so every fold is known to be possible before the first is
    trained.

    Loads TensorFlow.

    Raises:
        ShardError, CohortError: as a run of that fold would.
    """
    from trainer.quiet import import_tensorflow

    import_tensorflow()
    from trainer.runs.preparation import open_data

    first = [fold for fold in crossval.folds if fold.seed == crossval.seeds[0]]
    return {fold.number: open_data(fold.config).split for fold in first}


def check_people(crossval: CrossValidation, split: Split, progress: leaks.Progress) -> None:
    """Check that no subject occurs under two names: a fold would train on one and test the other.

    Each training looks at its own splits, too, but the last fold's would come after hours of the others.

    Args:
        crossval: with `data.leaks`: 'stop' to look at all.
        split: of any fold.
        progress: called with (volumes read, volumes in all).

    Raises:
        LeakError: volumes of different subjects are the same, or nearly so.
    """
    if crossval.config.data.leaks != "stop" or all(fold.state != "new" for fold in crossval.folds):
        return
    rows = {*split.train, *split.validation, *split.test}
    shards = ShardSet.open(crossval.config.data.shards)
    found = [leak for leak in leaks.duplicates(shards, progress=progress) if rows.issuperset(leak.rows)]
    if found:
        raise LeakError(
            f"{shards.path}: a fold would train on volumes that it holds out:\n{leaks.listed(found)}",
            cure="Remove one of each pair, or give both the same subject name, and import again. "
            "If they are two different people: data.leaks=warn",
            path=shards.path,
        )


@contextlib.contextmanager
def working(crossval: CrossValidation) -> Iterator[IO[str]]:
    """Hold the folder for this command and the trainings that it starts.

    Yields:
        The lock: a training that inherits it holds the folder as long as it lives, also when this process
        is killed, so that no run is ever trained twice at once.

    Raises:
        RunError: another one holds it.
    """
    crossval.folder.mkdir(parents=True, exist_ok=True)
    with (crossval.folder / ".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            alive = [pid for pid in lock.read().split() if psutil.pid_exists(int(pid))]
            raise RunError(
                f"{crossval.folder}: another `cingulum crossval`, or a training that it started, is at work "
                f"(process {', '.join(alive) or 'unknown'}).",
                cure=f"Wait for it, or let it save and end: kill -USR2 {' '.join(alive) or 'PID'}",
                path=crossval.folder,
            ) from None
        lock.truncate(0)
        hold(lock, os.getpid())
        check(crossval)
        write_text(crossval.stored, configuration.dump(crossval.config))
        yield lock


def hold(lock: IO[str], pid: int) -> None:
    """Note down a process that holds the lock."""
    lock.write(f"{pid}\n")
    lock.flush()
