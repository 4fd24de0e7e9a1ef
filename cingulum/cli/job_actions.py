"""Commands that act on submitted jobs: hold, release, defer, cancel, requeue, share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from cingulum.cli.options import JobId, JobIds

if TYPE_CHECKING:
    from jobs.job import Job
    from jobs.store.store import Store


def hold(
    identities: JobIds,
    as_json: Annotated[bool, typer.Option("--json", help="Print their states as JSON.")] = False,
) -> None:
    """Keep jobs that wait from starting, until `cingulum release`. What runs goes on.

    \b
    Example:
      cingulum hold 4711 4712_3
    """
    from jobs.requests import actions

    give(identities, actions.hold, "held", as_json=as_json)


class Order(Protocol):
    """A function of `jobs.requests.actions`."""

    def __call__(self, store: Store, job: Job, task: int | None, *, who: str) -> Job:
        """Do it, and return the job as it is then."""


def give(identities: Sequence[str], order: Order, done: str, *, as_json: bool) -> None:
    """Have an order carried out on jobs that wait, and print what came of it.

    Args:
        identities: of jobs and tasks; all are looked up before the first order is given.
        order: to carry out.
        done: what is said of each.
        as_json: print the jobs as JSON instead.

    Raises:
        JobError: one of them does not wait in a queue; no order was given.
        LauncherError: a launcher refused; the cure names those that had obeyed before.
    """
    from jobs.requests import actions, describing, known
    from jobs.store import submitter
    from trainer.errors import CingulumError
    from trainer.telling import tell

    store = known.opened(tell)
    chosen = [known.current(store, identity, warn=tell) for identity in identities]
    for job, task in chosen:
        actions.check(job, task)
    obeyed: list[Job] = []
    for job, task in chosen:
        try:
            obeyed.append(order(store, job, task, who=f"{submitter.user()} (command line)"))
        except CingulumError as error:
            names = " ".join(actions.name(*before) for before in chosen[: len(obeyed)])
            error.cure = " ".join(filter(None, [error.cure, names and f"Before it: {names} {done}."])) or None
            raise
    if as_json:
        typer.echo(json.dumps({"jobs": [describing.job(job) for job in obeyed]}, indent=1))
        return
    for (_, task), job in zip(chosen, obeyed, strict=True):
        state = job if task is None else job.tasks[task]
        why = f": {state.reason}" if state.reason else ""
        share = _share(job) if task is None and job.spec.is_array else ""
        typer.echo(f"{actions.name(job, task)} {done} ({state.state}{why}){share}")


def _share(job: Job) -> str:
    """Return for how many tasks of an array an order counts, and what the others do."""
    from jobs.schedulers.base import ENDED, WAITING

    waiting = sum(task.state in WAITING for task in job.tasks)
    ended = sum(task.state in ENDED for task in job.tasks)
    running = len(job.tasks) - waiting - ended
    others = [f"{running} running" if running else "", f"{ended} had ended" if ended else ""]
    return ": " + ", ".join(filter(None, [f"{waiting} of {len(job.tasks)} tasks", *others]))


def release(
    identities: JobIds,
    as_json: Annotated[bool, typer.Option("--json", help="Print their states as JSON.")] = False,
) -> None:
    """Let jobs start that `cingulum hold` keeps waiting.

    \b
    Example:
      cingulum release 4711 4712_3
    """
    from jobs.requests import actions

    give(identities, actions.release, "released", as_json=as_json)


# That of `jobs.requests.actions`, which a --help does not load.
_MOST = 2**31 - 4


def defer(
    identities: JobIds,
    by: Annotated[
        int, typer.Option(min=0, max=_MOST, help="Less priority than jobs have at first; 0: as at first.")
    ] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print their states as JSON.")] = False,
) -> None:
    """Let others go first: lower the priority of jobs that wait. Only administrators can raise it.

    Jobs that are held must be released first, which gives them their first priority back.

    \b
    Example:
      cingulum defer 4711
      cingulum defer 4711 --by 0
    """
    from functools import partial

    from jobs.requests import actions

    done = f"has {by} less priority" if by else "has its first priority"
    give(identities, partial(actions.nice, by=by), done, as_json=as_json)


def cancel(
    identities: JobIds,
    as_json: Annotated[bool, typer.Option("--json", help="Print their states as JSON.")] = False,
) -> None:
    """End jobs, and jobs that wait for them. Jobs that have ended stay unchanged.

    The last checkpoint stays: the same `cingulum submit` goes on from there. To save first and then start
    again, use `cingulum requeue`.

    \b
    Example:
      cingulum cancel 4711 4712_3
    """
    from jobs.requests import actions, describing, known
    from jobs.store import submitter
    from trainer.telling import tell

    store = known.opened(tell)
    # All ids are looked up before the first job ends: a typo in the last one changes nothing.
    chosen = [known.current(store, identity, warn=tell) for identity in identities]
    jobs = actions.cancel(store, chosen, who=f"{submitter.user()} (command line)")
    if as_json:
        typer.echo(json.dumps({"jobs": [describing.job(job) for job in jobs]}, indent=1))
        return
    for (before, task), job in zip(chosen, jobs, strict=True):
        name = actions.name(job, task)
        state = job.state if task is None else job.tasks[task].state
        if not actions.is_active(before, task):
            typer.echo(f"{name} had already ended: {state}")
        else:
            typer.echo(
                f"{name} cancelled"
                if state == "CANCELLED"
                else f"{name}: the launcher was asked to end it ({state})"
            )


def requeue(
    identity: JobId,
    as_json: Annotated[bool, typer.Option("--json", help="Print its state as JSON.")] = False,
) -> None:
    """Start a job again: a running one saves its state first, a failed one resumes from its checkpoint.

    Slurm lets a job wait some two minutes before it starts it again.

    \b
    Example:
      cingulum requeue 4711
    """
    from jobs.requests import actions, describing, known
    from jobs.schedulers.base import ENDED
    from jobs.store import submitter
    from trainer.telling import tell

    store = known.opened(tell)
    before, task = known.current(store, identity, warn=tell)
    job = actions.requeue(store, before, task, who=f"{submitter.user()} (command line)", warn=tell)
    if as_json:
        typer.echo(json.dumps(describing.job(job), indent=1))
        return
    saves = any(state.state not in ENDED for state in actions.chosen(before, task))
    typer.echo(f"{identity} {'saves, and starts again' if saves else 'starts again'} ({job.state})")


def share(
    identity: JobId,
    group: Annotated[
        list[str] | None,
        typer.Argument(help="Unix groups that you are in; none: tell with which it is shared."),
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Let these groups no longer look at it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the groups as JSON.")] = False,
) -> None:
    """Let members of a group look at a job of yours, in a store that you share with them.

    They see it, its log and its run folder as far as the permissions of the files let them, and can change
    nothing. --stop ends that at once.

    \b
    Example:
      cingulum share 4711 neuro
      cingulum share 4711 neuro --stop
    """
    from jobs.requests import known
    from jobs.store import sharing, submitter
    from trainer.errors import InputError
    from trainer.telling import tell

    store, names = known.opened(tell), tuple(group or ())
    job = store.get(identity, sharing.viewer())
    if stop and not names:
        raise InputError("--stop needs a group.", cure=f"cingulum share {job.label} GROUP --stop")
    if names:
        known.refuse_others(job)
        # Who has left a group may still take it off a job.
        names = names if stop else sharing.checked(names)
        groups = store.share(job, names, f"{submitter.user()} (command line)", stop=stop)
    else:
        groups = store.shared_with(job)
    if as_json:
        typer.echo(json.dumps({"id": job.label, "groups": groups}))
    else:
        typer.echo(f"{job.label} is shared with {', '.join(groups) if groups else 'nobody'}")
