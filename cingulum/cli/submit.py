"""`cingulum submit`: a run, an array of runs or a chain of jobs, on a cluster or in containers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cingulum.cli.options import Config, Overrides, options_of

if TYPE_CHECKING:
    from cingulum.cli.predicted_time import Predicted
    from jobs.job import Job
    from jobs.requests.submission_options import SubmissionOptions
    from jobs.requests.submitting import Preview


@options_of(options="jobs.requests.submission_options:SubmissionOptions")
def submit(
    context: typer.Context,
    config: Config,
    options: SubmissionOptions,
    overrides: Overrides = None,
    private: Annotated[
        bool, typer.Option("--private", help="Let no group look at them, whatever the site says.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run; change nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the jobs, or what would run.")] = False,
) -> None:
    """Submit a run. CONFIG is checked, and kept as it is now: editing it later changes no queued job.

    A job that is preempted or stopped at its time limit saves, is started again and goes on at that step.
    Submitting a run that has begun goes on with it. What it will take is told, as far as it is known.

    \b
    Example:
      cingulum submit run.yaml --nodes 2 --gpus-per-node 4 --time 12h
      cingulum submit run.yaml --folds 5 --seeds 3 --at-once 4 --then report
      cingulum submit run.yaml --import my-bids --then evaluate,report --dry-run
    """
    import json

    from cingulum.cli import predicted_time, submission_check
    from jobs.requests import checks, describing, known, submitting
    from jobs.store import submitter
    from trainer.errors import InputError
    from trainer.telling import tell

    if private and options.share:
        raise InputError("--private and --share exclude each other.", cure="Leave out one of them.")
    given = options.model_dump(exclude_unset=True) | ({"share": ()} if private else {})
    request = submitting.SubmissionRequest(config=config, overrides=tuple(overrides or ()), **given)
    prepared = submitting.prepare(request, submission_check)
    submission_check.command_lines(prepared.chain, context.find_root().command)
    time_needed = predicted_time.predicted(request, prepared)
    needed = {"predicted": time_needed and time_needed.tree()}
    if time_needed is not None and time_needed.warning is not None:
        tell(f"warning: {time_needed.warning}")
    if (idle := checks.idle_gpus(prepared.chain)) is not None:
        tell(f"warning: {idle}")
    if dry_run:
        preview = submitting.preview(prepared)
        if as_json:
            typer.echo(json.dumps({**preview.as_json(), **needed}, indent=1))
        else:
            typer.echo(readable(preview, time_needed))
        return
    who = f"{submitter.user()} (command line)"
    made = submitting.submit(prepared, known.opened(tell), submission_check, tell, who=who)
    if as_json:
        typer.echo(json.dumps({"jobs": [describing.job(job) for job in made], **needed}, indent=1))
    else:
        typer.echo(submitted(made, time_needed))


def readable(preview: Preview, needed: Predicted | None) -> str:
    """Return a preview as text: jobs with their files and command lines, then the time needed."""
    from cingulum.cli.job_display import plain
    from jobs.schedulers.base import SUPERVISOR

    lines = [f"CONFIG as it is now, with its changes, would be kept as {plain(preview.kept)}"]
    for number, job in enumerate(preview.jobs, 1):
        waits = f", after {', '.join(job.after)}" if job.after else ""
        lines += [
            "",
            f"Job {number} of {len(preview.jobs)}: {plain(job.spec.name)} ({job.spec.kind}){waits}",
        ]
        for name, text in job.launch.files.items():
            # What looks after a job is the same for all of them.
            ours = name.startswith(f"{SUPERVISOR}/")
            lines += [] if ours else ["", f"{job.folder}/{name}:", *_indented(text)]
        variables = [f"{key}={value}" for key, value in job.launch.environment.items()]
        lines += ["", shlex.join(["env", *variables, *job.command] if variables else job.command)]
    lines += [] if needed is None else ["", plain(needed.said)]
    return "\n".join(lines)


def submitted(jobs: Sequence[Job], needed: Predicted | None) -> str:
    """Return the submitted jobs as sbatch names them, the time needed, and the commands that follow them."""
    from cingulum.cli.job_display import plain

    lines = []
    for job in jobs:
        tasks = f", {len(job.spec.tasks)} tasks" if job.spec.is_array else ""
        waits = f", after {', '.join(job.spec.after)}" if job.spec.after else ""
        lines.append(f"Submitted {job.label}: {plain(job.spec.name)} ({job.spec.kind}{tasks}{waits})")
    lines += [] if needed is None else [plain(needed.said)]
    main = max(jobs, key=lambda job: job.spec.kind in ("train", "crossval"))
    task = "_0" if main.spec.is_array else ""
    lines.append(f"See: cingulum jobs; cingulum logs {main.label}{task} --follow")
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.splitlines()]
