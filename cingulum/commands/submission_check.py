"""What is looked at before anything is submitted: hours in a queue should not end in a typo."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import config as configuration
from trainer.config import RunConfig
from trainer.errors import ConfigError

if TYPE_CHECKING:
    from jobs.spec import JobSpec, Resources
    from jobs.store import Store


# Folder beside the run folders, with the user's number behind it.
_KEPT = ".submitted-"


@dataclass(frozen=True)
class Checked:
    """A configuration that can be submitted.

    Attributes:
        config: with its changes.
        text: all of it, as YAML.
        kept: where the jobs read it: beside the run folders, which every host of a job sees, under a name
            that tells its content, so that no later submission changes it.
        binds: absolute folders that a container must see besides the folder to run in.
        readonly: absolute folders that it must see and only reads.
    """

    config: RunConfig
    text: str
    kept: Path
    binds: tuple[str, ...]
    readonly: tuple[str, ...]

    def keep(self) -> None:
        """Write it, for its user only."""
        from trainer.atomic import write_private

        self.kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self.kept, self.text)


def load(
    path: Path,
    overrides: Sequence[str],
    *,
    kind: str,
    resources: Resources,
    has_data: bool,
    any_size: bool,
) -> Checked:
    """Read and check a configuration for these resources.

    Args:
        path: YAML file of a run.
        overrides: `key=value` changes of it.
        kind: of the job, see `jobs.chains.KINDS`.
        resources: that it will have.
        has_data: whether the shard set, and the run to look at, must be there already.
        any_size: whether a job that shrinks may come to have any number of hosts down to the least; else its
            launcher takes only as many as can share the batch.

    Raises:
        ConfigError: it cannot be used, or the ranks cannot share its batch.
        RunError: the run folder is another run's, or not finished where it must be.
    """
    config = configuration.load(path, overrides)
    text = configuration.dump(config)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    if kind in ("train", "crossval"):
        _check_batch(config, resources, any_size=any_size)
        if has_data and not (config.data.shards / "index.json").is_file():
            raise ConfigError(
                f"data.shards: {config.data.shards} is no shard set.",
                cure="Make it with --import SOURCE, or name the job that makes it: --after ID",
            )
    _check_folder(config, kind, has_data=has_data)
    # A folder per user: several may share the run folders, and what is kept is private.
    kept = config.runs / f"{_KEPT}{os.getuid()}" / f"{config.name}-{digest}.yaml"
    shards = str(config.data.shards.absolute())
    here = Path.cwd()
    outside = [path for path in (config.runs.absolute(), Path(shards)) if not path.is_relative_to(here)]
    binds = tuple(dict.fromkeys(map(str, outside)))
    return Checked(config, text, kept, binds, (shards,) if has_data else ())


def crossval(path: Path, overrides: Sequence[str], *, folds: int, seeds: int, has_data: bool) -> None:
    """Make sure that a cross-validation can be done, and goes on with nothing else's folder.

    Raises:
        ConfigError, RunError, ShardError: as `cingulum crossval` would.
    """
    from trainer.crossval import folds as plans

    plan = plans.plan(path, overrides, folds=folds, seeds=seeds)
    if has_data:
        plans.check(plan)


def alone(store: Store, chain: Sequence[JobSpec]) -> None:
    """Make sure that no job trains in the run folder that one of these will train in.

    Raises:
        JobError: one waits or runs, or may, as its launcher has not answered yet.
    """
    from cingulum.commands import job_access
    from trainer.errors import JobError

    try:
        for spec in chain:
            store.free(spec)
    except JobError:  # by what was last known of it
        job_access.refresh(store)
        for spec in chain:
            store.free(spec)


def unwritten(chain: Sequence[JobSpec]) -> None:
    """Make sure that no process trains in a run folder that one of these will train in: one that was started
    by hand, or by a job that the store does not have.

    Raises:
        RunError: one does, or a claim is damaged.
    """
    from jobs import chains
    from trainer.leases import claims, lease_taking

    for folder in dict.fromkeys(folder for spec in chain for folder in chains.run_folders(spec)):
        other = claims.holder(Path(folder))
        if other is not None:
            raise lease_taking.being_written(folder, other)


def command_lines(chain: Sequence[JobSpec], group: Any) -> None:
    """Make sure that `cingulum` understands what the jobs will call it with.

    Args:
        chain: the jobs.
        group: all commands, as Typer holds them.

    Raises:
        click.UsageError: an unknown option or a wrong value.
    """
    for spec in chain:
        for task in spec.tasks:
            at = next(k for k, word in enumerate(task) if word in group.commands and k > 0)
            command = group.commands[task[at]]
            command.make_context(f"cingulum {task[at]}", list(task[at + 1 :]))


def _check_batch(config: RunConfig, resources: Resources, *, any_size: bool) -> None:
    """With every number of hosts that the job may come to have."""
    least = resources.least_nodes if any_size and resources.least_nodes is not None else resources.nodes
    for nodes in range(least, resources.nodes + 1):
        try:
            configuration.micro_batch(
                config.train.global_batch,
                world_size=nodes * resources.ranks_per_node,
                accumulation=config.train.accumulation,
            )
        except ConfigError as error:
            if nodes == resources.nodes:
                raise
            raise ConfigError(
                f"With --shrink the job may go on with {nodes} of {resources.nodes} nodes: {error.message}",
                cure="Choose a global batch that all these numbers of ranks can share, or --least-nodes.",
            ) from None


def _check_folder(config: RunConfig, kind: str, *, has_data: bool) -> None:
    from trainer.run_folder import record, resuming
    from trainer.run_folder.record import RunFolder

    folder = RunFolder(config.folder)
    if kind == "train" and folder.config.is_file():
        resuming.check_resumable(record.load_config(folder), config)
    elif kind == "evaluate" and has_data:
        resuming.open_finished(config.folder)
    elif kind == "report" and has_data and not (config.folder / "crossval.json").is_file():
        RunFolder.open(config.folder)
