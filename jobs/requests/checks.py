"""Check everything before a job is submitted: hours in a queue should not end in a typo."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from jobs.requests import known
from jobs.spec import JobSpec, Resources
from jobs.store.store import Store
from trainer import config as configuration
from trainer.atomic import write_private
from trainer.config import RunConfig
from trainer.errors import ConfigError, JobError

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
        readonly: absolute folders, and files outside of the folder to run in, that it must see and only
            reads.
    """

    config: RunConfig
    text: str
    kept: Path
    binds: tuple[str, ...]
    readonly: tuple[str, ...]

    def keep(self) -> None:
        """Write it, for its user only."""
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
        kind: of the job, see `jobs.requests.chains.KINDS`.
        resources: that it will have.
        has_data: whether the shard set, and the run to look at, must be there already.
        any_size: whether a job that shrinks may come to have any number of hosts down to the least; else its
            launcher takes only as many as can share the batch.

    Raises:
        ConfigError: it cannot be used, or the ranks cannot share its batch.
    """
    config = configuration.load(path, overrides)
    text = configuration.dump(config)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    if kind in ("train", "crossval"):
        _check_batch(config, resources, any_size=any_size)
        if has_data and not (config.data.shards / "index.json").is_file():
            raise ConfigError(
                f"data.shards: {config.data.shards} is not a shard set.",
                cure="Make it with --import SOURCE, or name the job that makes it: --after ID",
            )
    # A folder per user: several may share the run folders, and what is kept is private.
    kept = config.runs / f"{_KEPT}{os.getuid()}" / f"{config.name}-{digest}.yaml"
    shards = str(config.data.shards.absolute())
    here, runs = Path.cwd(), config.runs.absolute()
    outside = [path for path in (runs, Path(shards)) if not path.is_relative_to(here)]
    binds = tuple(dict.fromkeys(map(str, outside)))
    # Without `..`, which leads out of what a container sees; links stay, by which the run will open them.
    files = [Path(os.path.abspath(path)) for path in _read_by(config)]  # noqa: PTH100
    readonly = [shards] if has_data else []
    seen = (here, runs, shards)
    readonly += [str(path) for path in files if not any(path.is_relative_to(folder) for folder in seen)]
    return Checked(config, text, kept, binds, tuple(dict.fromkeys(readonly)))


def alone(store: Store, chain: Sequence[JobSpec], warn: known.Warn) -> None:
    """Make sure that no job trains in the run folder that one of these will train in.

    Raises:
        JobError: one waits or runs, or may, as its launcher has not answered yet.
    """
    try:
        for spec in chain:
            store.free(spec)
    except JobError:  # by what was last known of it
        known.refresh(store, warn=warn)
        for spec in chain:
            store.free(spec)


def idle_gpus(chain: Sequence[JobSpec]) -> str | None:
    """Return a warning where GPUs are asked for and this environment, in which the jobs run, uses none."""
    asked = any(spec.resources.gpus_per_node and spec.image is None for spec in chain)
    if not asked or not _is_installed("tensorflow-cpu") or _is_installed("tensorflow"):
        return None
    return (
        "GPUs are asked for, and the TensorFlow of this environment (tensorflow-cpu) uses none: ranks would "
        "compute on processors. docs/how-to/install-on-a-cluster.md says how one for GPUs is made."
    )


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _read_by(config: RunConfig) -> Iterator[Path]:
    """What a run reads besides its shards: plan or profile, weights to start from, code of the user's own."""
    strategy = config.train.strategy
    yield from strategy.files
    if config.train.transfer.start_from is not None:
        yield config.train.transfer.start_from
    for name in (config.model.name, strategy.name):
        place, _, attribute = name.rpartition(":")
        if attribute and place.endswith(".py"):
            yield Path(place)


def _check_batch(config: RunConfig, resources: Resources, *, any_size: bool) -> None:
    """Check the batch with every number of hosts that the job may come to have."""
    least = resources.least_nodes if any_size and resources.least_nodes is not None else resources.nodes
    for nodes in range(least, resources.nodes + 1):
        try:
            configuration.micro_batch(
                config.train.global_batch,
                world_size=_readers(config, nodes * resources.ranks_per_node),
                accumulation=config.train.accumulation,
            )
        except ConfigError as error:
            if nodes == resources.nodes:
                raise
            raise ConfigError(
                f"With --shrink the job may go on with {nodes} of {resources.nodes} nodes: {error.message}",
                cure="Choose a global batch that all these numbers of ranks can share, or --least-nodes.",
            ) from None


def _readers(config: RunConfig, processes: int) -> int:
    """Return how many of `processes` processes share a batch.

    Raises:
        ConfigError: the strategy cannot have that many processes.
    """
    try:
        return config.train.strategy.readers(processes)
    except ValueError as error:
        raise ConfigError(
            f"train.strategy: {error}.",
            cure="Ask for other numbers of nodes or ranks, or change train.strategy.",
        ) from None
