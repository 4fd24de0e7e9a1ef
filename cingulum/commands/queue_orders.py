"""What `cingulum hold`, `release` and `defer` do alike: look all jobs up, act on each, tell of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import typer

if TYPE_CHECKING:
    from jobs.job import Job
    from jobs.store.store import Store


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
