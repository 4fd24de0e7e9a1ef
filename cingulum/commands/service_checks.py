"""What `cingulum serve` knows of the command line and the trainer, for submissions from its pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cingulum.commands import predicted_time, submission_check

if TYPE_CHECKING:
    from jobs.requests.submitting import Prepared, Request
    from jobs.spec import JobSpec


class ServiceChecks:
    """The checks of `cingulum submit`; a wrong word of a command is an error as any other.

    Args:
        group: all commands, as Typer holds them.
    """

    folder = staticmethod(submission_check.folder)
    plan = staticmethod(submission_check.plan)
    crossval = staticmethod(submission_check.crossval)
    unwritten = staticmethod(submission_check.unwritten)

    def __init__(self, group: Any) -> None:
        self._group = group

    def command_lines(self, chain: Sequence[JobSpec]) -> None:
        """Check that `cingulum` understands what the jobs will call it with.

        Raises:
            JobError: it does not.
        """
        from trainer.errors import CingulumError, JobError

        try:
            submission_check.command_lines(chain, self._group)
        except CingulumError:
            raise
        except Exception as error:
            if not hasattr(error, "exit_code"):  # else a usage error of typer's, or its end after --help
                raise
            told = getattr(error, "format_message", lambda: "--help is for people")()
            raise JobError(f"--import-options: {told}", cure="See `cingulum import --help`.") from None

    def predicted(self, request: Request, prepared: Prepared) -> dict[str, Any] | None:
        """Return how long each task takes, for JSON; None where nothing is trained."""
        found = predicted_time.predicted(request, prepared)
        return None if found is None else found.tree()
