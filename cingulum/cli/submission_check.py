"""Checks before a submission that need the trainer: run folders, folds, words of commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cingulum.cli import predicted_time

if TYPE_CHECKING:
    from jobs.requests.submitting import PreparedJobs, SubmissionRequest
    from jobs.spec import JobSpec
    from trainer.config import RunConfig


def crossval(path: Path, overrides: Sequence[str], *, folds: int, seeds: int, has_data: bool) -> None:
    """Make sure that a cross-validation can be done, and goes on with nothing else's folder.

    Raises:
        ConfigError, RunError, ShardError: as `cingulum crossval` would.
    """
    from trainer.crossval import folds as plans

    plan = plans.plan(path, overrides, folds=folds, seeds=seeds, has_data=has_data)
    if has_data:
        plans.check(plan)


def unwritten(chain: Sequence[JobSpec]) -> None:
    """Make sure that no process trains in a run folder that one of these will train in: one that was started
    by hand, or by a job that the store does not have.

    Raises:
        RunError: one does, or a claim is damaged.
    """
    from trainer.leases import claims, lease_taking

    for folder in dict.fromkeys(folder for spec in chain for folder in spec.run_folders):
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


def folder(config: RunConfig, kind: str, *, has_data: bool) -> None:
    """Make sure that the run folder is this run's, and finished where it must be.

    Raises:
        RunError: it is not.
    """
    from trainer.run_folder import record, resuming
    from trainer.run_folder.record import RunFolder

    found = RunFolder(config.folder)
    if kind == "train" and found.config.is_file():
        resuming.check_resumable(record.load_config(found), config)
    elif kind == "evaluate" and has_data:
        resuming.open_finished(config.folder)
    elif kind == "report" and has_data and not (config.folder / "crossval.json").is_file():
        RunFolder.open(config.folder)


def plan(config: RunConfig, ranks: int) -> None:
    """Make sure that the plan that divides the network, if any, can be read and is for `ranks` ranks.

    Raises:
        InputError: it cannot, or is not.
    """
    from trainer.planning.placement import plan_file

    file = getattr(config.train.strategy, "plan", None)
    if file is not None:
        plan_file.for_ranks(file, ranks)


class ServiceChecks:
    """The checks of `cingulum submit`; a wrong word of a command is an error as any other.

    Args:
        group: all commands, as Typer holds them.
    """

    folder = staticmethod(folder)
    plan = staticmethod(plan)
    crossval = staticmethod(crossval)
    unwritten = staticmethod(unwritten)

    def __init__(self, group: Any) -> None:
        self._group = group

    def command_lines(self, chain: Sequence[JobSpec]) -> None:
        """Check that `cingulum` understands what the jobs will call it with.

        Raises:
            JobError: it does not.
        """
        from trainer.errors import CingulumError, JobError

        try:
            command_lines(chain, self._group)
        except CingulumError:
            raise
        except Exception as error:
            if not hasattr(error, "exit_code"):  # else a usage error of typer's, or its end after --help
                raise
            told = getattr(error, "format_message", lambda: "--help is for people")()
            raise JobError(f"--import-options: {told}", cure="See `cingulum import --help`.") from None

    def predicted(self, request: SubmissionRequest, prepared: PreparedJobs) -> dict[str, Any] | None:
        """Return how long each task takes, for JSON; None where nothing is trained."""
        found = predicted_time.predicted(request, prepared)
        return None if found is None else found.tree()
