"""`cingulum submit`: a run, an array of runs or a chain of jobs, on a cluster or in containers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from jobs.job import Job
    from jobs.launchers.base import Launcher
    from jobs.sites import Site
    from jobs.spec import JobSpec


def submit(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="YAML file that describes the run.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes, such as train.epochs=3.")] = None,
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
            help="Seconds to save in before the time is over; default: the site's, else 120.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Of the job; default: that of the run.", show_default=False)
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Start when this job has completed; may be repeated."),
    ] = None,
    requeues: Annotated[
        int, typer.Option(min=0, help="Starts after failures. Being preempted does not count.")
    ] = 3,
    shrink: Annotated[bool, typer.Option("--shrink", help="Start again on the hosts that are left.")] = False,
    least_nodes: Annotated[
        int | None, typer.Option(min=1, help="With --shrink: hosts that are enough; default: 1.")
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
        typer.Option(help="Of that import: '--label diagnosis --size 96'.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run; change nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the jobs, or what would run.")] = False,
) -> None:
    """Submit a run. CONFIG is checked, and kept as it is now: editing it later changes no queued job.

    A job that is preempted or stopped at its time limit saves, is started again and goes on at that step.
    Submitting a run that has begun goes on with it.

    \b
    Example:
      cingulum submit run.yaml --nodes 2 --gpus-per-node 4 --time 12h
      cingulum submit run.yaml --folds 5 --seeds 3 --at-once 4 --then report
      cingulum submit run.yaml --import my-bids --then evaluate,report --dry-run
    """
    import json
    import os

    from cingulum.commands import job_access, job_display, submission_check, submission_display
    from jobs import chains, kinds, quantities, sites
    from jobs.job import split_label
    from jobs.launchers import registry
    from jobs.spec import JobSpec
    from trainer.errors import JobError

    if launcher == "mpirun" and image is not None:
        raise JobError("--launcher mpirun runs in no image.", cure="Choose docker, apptainer or slurm.")
    if least_nodes is not None and not shrink:
        raise JobError("--least-nodes says how far a job may shrink.", cure="Add --shrink.")
    kind = chains.kind_of(kind, folds=folds)
    profile = sites.load(site)
    asked = kinds.Asked(
        nodes=nodes,
        least_nodes=(least_nodes or 1) if shrink else None,
        ranks_per_node=ranks_per_node,
        gpus_per_node=gpus_per_node,
        cpus_per_rank=cpus_per_rank,
        memory_mib=None if memory is None else quantities.mebibytes(memory),
        minutes=None if time is None else quantities.minutes(time),
    )
    resources = kinds.main(asked, profile, kind)
    follows = chains.following(then)
    has_data = source is None and not after
    run = submission_check.load(
        config,
        overrides or [],
        kind=kind,
        resources=resources,
        has_data=has_data,
        any_size=launcher == "slurm",
    )
    if kind == "crossval" and (folds := folds or run.config.data.split.folds):
        submission_check.crossval(config, overrides or [], folds=folds, seeds=seeds, has_data=has_data)
    chain = chains.chain(
        chains.Wanted(
            config=str(run.kept),
            run=str(run.config.folder),
            shards=str(run.config.data.shards),
            first_seed=run.config.train.seed,
            program=_program(launcher, image),
            name=name or run.config.name,
            job=JobSpec(
                name=run.config.name,
                kind=kind,
                tasks=(("cingulum",),),
                folder=str(Path.cwd()),
                resources=resources,
                requeues=requeues,
                shrink=shrink,
                grace_s=grace,
                image=image,
                # A step of asynchronous training is one worker's: any number of them will do.
                global_batch=None
                if run.config.train.strategy.is_asynchronous
                else run.config.train.global_batch // run.config.train.accumulation,
                outlives=run.config.train.strategy.is_asynchronous,
                binds=run.binds,
                readonly=run.readonly,
                run=os.path.realpath(run.config.folder),
            ),
            kind=kind,
            folds=folds,
            seeds=seeds,
            at_once=at_once,
            then=follows,
            source=source,
            import_options=_words(import_options),
            sides={one: kinds.side(asked, profile, one) for one in profile.kinds},
        )
    )
    submission_check.command_lines(chain, context.find_root().command)
    starter = registry.named(launcher)
    for label in after or []:
        split_label(label)
    if dry_run:
        plans = submission_display.plans(starter, chain, profile, after or [])
        plan = submission_display.Preview(str(run.kept), run.text, plans)
        typer.echo(json.dumps(plan.as_json(), indent=1) if as_json else plan.readable())
        return
    if after:
        _check_waiting(starter, chain[0], after)
    else:
        submission_check.alone(job_access.opened(), chain)
        submission_check.unwritten(chain)
    for spec in chain:
        starter.preflight(spec, profile)
    run.keep()
    made = _submit(starter, chain, profile, after or [])
    if as_json:
        typer.echo(json.dumps({"jobs": [job_display.as_json(job) for job in made]}, indent=1))
    else:
        typer.echo(submission_display.submitted(made))


def _check_waiting(launcher: Launcher, spec: JobSpec, after: list[str]) -> None:
    """Make sure that the jobs to wait for are there and can still complete.

    Raises:
        JobError: one is not.
    """
    import dataclasses

    from cingulum.commands import job_access
    from jobs import submission

    submission.externals(job_access.opened(), launcher, dataclasses.replace(spec, after=tuple(after)))


def _submit(launcher: Launcher, chain: list[JobSpec], site: Site, after: list[str]) -> list[Job]:
    """Submit one after the other, each but the first to wait for the one before it.

    Raises:
        CingulumError: of the job that could not be submitted; its cure names those that were.
    """
    import dataclasses

    from cingulum.commands import job_access
    from jobs import submission
    from trainer.errors import CingulumError

    store = job_access.opened()
    made: list[Job] = []
    for spec in chain:
        waits_for = (made[-1].label,) if made else tuple(after)
        try:
            made.append(submission.submit(store, launcher, dataclasses.replace(spec, after=waits_for), site))
        except CingulumError as error:
            if made:
                labels = " ".join(job.label for job in made)
                cure = f"{error.cure} " if error.cure else ""
                error.cure = f"{cure}Submitted before it: {labels} (cingulum cancel {labels} ends them)."
            raise
    return made


def _program(launcher: str, image: str | None) -> tuple[str, ...]:
    """Words that start `cingulum` where the job runs: in an image its own, else ours, which all hosts see."""
    import sys

    if image is not None or launcher in ("docker", "apptainer"):
        return ("cingulum",)
    beside = Path(sys.executable).parent / "cingulum"
    return (str(beside),) if beside.is_file() else (sys.executable, "-m", "cingulum")


def _words(text: str | None) -> tuple[str, ...]:
    """A text of options as words, quoted as for a shell.

    Raises:
        JobError: a quote is not closed.
    """
    import shlex

    from trainer.errors import JobError

    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise JobError(f"--import-options {text!r}: {error}.", cure="Quote them as in a shell.") from None
