"""`cingulum submit`: a run, an array of runs or a chain of jobs, on a cluster or in containers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cingulum.cli.options import Config, Overrides

if TYPE_CHECKING:
    from cingulum.cli.predicted_time import Predicted
    from jobs.job import Job
    from jobs.requests.submitting import Preview


def submit(
    context: typer.Context,
    config: Config,
    overrides: Overrides = None,
    launcher: Annotated[
        Literal["slurm", "mpirun", "docker", "apptainer"], typer.Option(help="What starts the ranks.")
    ] = "slurm",
    site: Annotated[
        str | None, typer.Option(help="Site profile, by name or as a file.", show_default=False)
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Hosts.")] = 1,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks on each host; default: one per GPU, else 1.", show_default=False),
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(
            min=0, help="GPUs on each host; 0: on the CPU; default: the site's, else 0.", show_default=False
        ),
    ] = None,
    cpus_per_rank: Annotated[
        int | None,
        typer.Option(min=1, help="Cores of each rank; default: the site's, else 1.", show_default=False),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory on each host, such as 16G.", show_default=False)
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="Longest time to run: 90 (minutes), 12:00:00, 12h.", show_default=False),
    ] = None,
    grace: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Seconds before the time limit in which the job saves; default: the site's, else 120.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the job; default: that of the run.", show_default=False)
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Start when this job has completed; may be repeated."),
    ] = None,
    requeues: Annotated[
        int, typer.Option(min=0, help="Starts after failures; those after preemption do not count.")
    ] = 3,
    shrink: Annotated[bool, typer.Option("--shrink", help="Start again on the hosts that are left.")] = False,
    least_nodes: Annotated[
        int | None, typer.Option(min=1, help="With --shrink: fewest hosts to start on; default: 1.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="Container image.", show_default=False)] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="train, crossval, evaluate or report; default: train, with --folds crossval.",
            show_default=False,
        ),
    ] = None,
    folds: Annotated[
        int | None, typer.Option(min=2, help="An array with a task per fold and seed.", show_default=False)
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="With --folds: networks per fold.")] = 1,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="Tasks that may run side by side; default: all.")
    ] = None,
    then: Annotated[
        str | None, typer.Option(help="Jobs that follow: evaluate,report.", show_default=False)
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--import", metavar="SOURCE", help="Import these images first, into data.shards."),
    ] = None,
    import_options: Annotated[
        str | None,
        typer.Option(help="Options of that import: '--label diagnosis --size 96'.", show_default=False),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP",
            help="Let this Unix group look at the jobs, in a store that you share; may be repeated.  "
            "[default: the site's]",
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Let no group look at them, whatever the site says.")
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Predict the time by this file of `cingulum profile`, where no earlier run tells it.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="With --profile: cluster file that has the links; default: the site's."),
    ] = None,
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

    if private and share:
        raise InputError("--private and --share exclude each other.", cure="Leave out one of them.")
    request = submitting.SubmissionRequest(
        config=config,
        overrides=overrides or (),
        launcher=launcher,
        site=site,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        gpus_per_node=gpus_per_node,
        cpus_per_rank=cpus_per_rank,
        memory=memory,
        time=time,
        grace_s=grace,
        name=name,
        after=after or (),
        requeues=requeues,
        shrink=shrink,
        least_nodes=least_nodes,
        image=image,
        kind=kind,
        folds=folds,
        seeds=seeds,
        at_once=at_once,
        then=then,
        source=source,
        import_options=import_options,
        profile=profile,
        cluster=cluster,
        share=() if private else share,
    )
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
