"""Routes under /api/v1."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from cingulum.service import log_part
from cingulum.service.callers import Caller, Callers
from cingulum.service.events import stream
from cingulum.service.failures import NotHere, failure
from cingulum.service.guard import SIGN_IN
from cingulum.service.jobs_now import JobsNow
from cingulum.service.runs_now import SORTS as RUN_SORTS
from cingulum.service.runs_now import STATES as RUN_STATES
from cingulum.service.runs_now import RunsNow
from cingulum.service.schema import (
    Curves,
    Detail,
    Failed,
    JobListView,
    LogPart,
    RunDetail,
    RunPage,
    RunView,
    SessionView,
    SignIn,
)
from jobs.job import Job
from jobs.requests import actions, known
from jobs.schedulers.base import ACTIVE, ENDED
from jobs.store import submitter
from jobs.store.listing import SORTS, JobQuery

Identity = Annotated[str, Path(max_length=64, description="Such as 4711, mpirun-7, or a task: 4711_3.")]
TaskNumber = Annotated[int | None, Query(ge=0, description="Of an array; default: the id's own, or 0.")]
State = Enum("State", {name: name for name in (*ACTIVE, *ENDED)}, type=str)  # type: ignore[misc]
Sort = Enum("Sort", {name: name for name in SORTS}, type=str)  # type: ignore[misc]
_NEWEST = Sort("submitted")
RunState = Enum("RunState", {name: name for name in RUN_STATES}, type=str)  # type: ignore[misc]
RunSort = Enum("RunSort", {name: name for name in RUN_SORTS}, type=str)  # type: ignore[misc]
_LAST_STARTED = RunSort("started")
Order = Literal["up", "down"]
Whose = Literal["all", "mine", "shared"]
Offset = Annotated[int, Query(ge=0, le=10**9)]
Limit = Annotated[int, Query(ge=1, le=200)]
ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": Failed, "description": "An error"}}


def _listing(
    text: Annotated[str, Query(max_length=200, description="In the name, id, kind or hosts.")] = "",
    state: Annotated[list[State] | None, Query(description="Any of these.")] = None,
    sort: Sort = _NEWEST,
    order: Order = "down",
    offset: Offset = 0,
    limit: Limit = 50,
    whose: Annotated[Whose, Query(description="Shared: others' jobs, with a group of the user's.")] = "all",
) -> JobQuery:
    states = tuple(one.value for one in state or ())
    return JobQuery(submitter.user(), states, text, sort.value, order == "down", offset, limit, whose=whose)


def _run_listing(
    text: Annotated[str, Query(max_length=200, description="In the name.")] = "",
    state: Annotated[list[RunState] | None, Query(description="Any of these.")] = None,
    sort: RunSort = _LAST_STARTED,
    order: Order = "down",
    offset: Offset = 0,
    limit: Limit = 50,
) -> JobQuery:
    states = tuple(one.value for one in state or ())
    return JobQuery(submitter.user(), states, text, sort.value, order == "down", offset, limit)


Wanted = Annotated[JobQuery, Depends(_listing)]
WantedRuns = Annotated[JobQuery, Depends(_run_listing)]


def session_routes(callers: Callers, cookie: str) -> APIRouter:
    """Return the routes by which a browser signs in and out."""
    router = APIRouter(tags=["session"], responses=ERRORS)

    @router.post(SIGN_IN)
    def sign_in(given: SignIn) -> Response:
        """Begin a session of a browser with a token."""
        session = callers.sign_in(given.token)
        if session is None:
            return failure(401, "NOT_SIGNED_IN", "This token is not valid: mistyped, expired or revoked.")
        answer = Response(status_code=204)
        answer.set_cookie(cookie, session, httponly=True, samesite="strict")
        return answer

    @router.get(SIGN_IN)
    def who(request: Request) -> SessionView:
        """Tell who asks."""
        caller: Caller = request.state.caller
        return SessionView(who=caller.who, may=caller.may)

    return router


def job_routes(now: JobsNow) -> APIRouter:
    """Return the routes about jobs."""
    router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], responses=ERRORS)

    @router.get("")
    def jobs(wanted: Wanted) -> JobListView:
        """List jobs that the user may look at: one page, filtered, searched and sorted."""
        return now.page(wanted)

    @router.get("/events", response_class=Response)
    async def list_events(request: Request) -> Response:
        """Tell, as server-sent events, that a list may have changed, whatever is filtered."""
        return stream(request, lambda: repr(now.list_stamp()))

    @router.get("/{identity}")
    def job(identity: Identity) -> Detail:
        """Return all of a job: tasks, hosts, every change with its reason, command, and what users did."""
        return now.detail(now.find(identity)[0])

    @router.get("/{identity}/events", response_class=Response)
    async def job_events(request: Request, identity: Identity, task: TaskNumber = None) -> Response:
        """Send a server-sent event whenever a job, its run or its log has changed."""

        def stamp() -> str:
            return repr(now.stamp(*task_of(*now.find(identity), task)))

        return stream(request, stamp)

    @router.get("/{identity}/run")
    def run(identity: Identity, task: TaskNumber = None) -> RunView:
        """Return what the run folder holds: configuration, progress, best epoch, checkpoints."""
        return now.run(*task_of(*now.find(identity), task))

    @router.get("/{identity}/curves")
    def curves(identity: Identity, task: TaskNumber = None) -> Curves:
        """Return what was measured at each epoch and at the newest steps."""
        return now.facts.curves(now.run_folder(*task_of(*now.find(identity), task)))

    @router.get("/{identity}/log")
    def log(
        identity: Identity,
        task: TaskNumber = None,
        offset: Annotated[int, Query(description="Of the first byte; -n: n bytes before the end.")] = -65536,
        limit: Annotated[int, Query(ge=1, le=log_part.MOST_BYTES)] = 65536,
    ) -> LogPart:
        """Return a part of the output of a task: both streams, all starts in order."""
        path, folder = now.log(*task_of(*now.find(identity), task))
        return log_part.read(path, folder, offset=offset, limit=limit)

    @router.post("/{identity}/cancel")
    def cancel(request: Request, identity: Identity) -> Detail:
        """End a job, or one task of it. What has ended stays as it is."""
        known.refuse_others(now.find(identity)[0])
        chosen = known.current(now.store, identity, warn=lambda _: None)
        (job,) = actions.cancel(now.store, [chosen], who=request.state.caller.who)
        return now.detail(job)

    return router


def run_routes(now: RunsNow) -> APIRouter:
    """Return the routes about runs, however they were started."""
    router = APIRouter(prefix="/api/v1/runs", tags=["runs"], responses=ERRORS)

    @router.get("")
    def runs(wanted: WantedRuns) -> RunPage:
        """List runs: one page, filtered, searched and sorted."""
        return now.page(wanted)

    @router.get("/events", response_class=Response)
    async def list_events(request: Request) -> Response:
        """Tell, as server-sent events, that a list of runs may have changed, whatever is filtered."""
        return stream(request, now.list_stamp)

    @router.get("/{identity}")
    def run(identity: Identity) -> RunDetail:
        """Return what a run folder holds: configuration, progress, best epoch, checkpoints."""
        return now.detail(now.find(identity))

    @router.get("/{identity}/events", response_class=Response)
    async def run_events(request: Request, identity: Identity) -> Response:
        """Send a server-sent event whenever a run has changed."""
        return stream(request, lambda: repr(now.find(identity)))

    @router.get("/{identity}/curves")
    def curves(identity: Identity) -> Curves:
        """Return what was measured at each epoch and at the newest steps."""
        return now.facts.curves(now.find(identity).folder)

    return router


def task_of(job: Job, named: int | None, queried: int | None) -> tuple[Job, int]:
    """Return the job and the number of the task that an id and a query mean.

    Raises:
        NotHere: there is no such task.
    """
    number = queried if queried is not None else named or 0
    if number >= len(job.tasks):
        raise NotHere(f"Job {job.label} has no task {number}.")
    return job, number
