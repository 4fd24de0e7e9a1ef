"""Routes about one job or run besides those of api.py: relations, time, placement, logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from cingulum.service import log_search
from cingulum.service.api import Identity, TaskNumber, task_of
from cingulum.service.detail_schema import LogMatches, Placed, Related, TimeSpent
from cingulum.service.failures import NotHere
from cingulum.service.jobs_now import JobsNow
from cingulum.service.recent import Recent
from cingulum.service.related import Relations
from cingulum.service.run_facts import is_inside
from cingulum.service.runs_now import RunsNow
from cingulum.service.schema import Failed
from trainer.report import placement, reasons
from trainer.run_folder.record import RunFolder

# Seconds for which a verdict is good.
_TIME_S = 10.0
_ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": Failed, "description": "An error"}}


def detail_routes(now: JobsNow, runs: RunsNow) -> APIRouter:
    """Return these routes, of jobs and of runs."""
    router = APIRouter(responses=_ERRORS)
    relations = Relations(now, runs)

    @router.get("/api/v1/jobs/{identity}/related", tags=["jobs"])
    def related_to_job(identity: Identity, task: TaskNumber = None) -> Related:
        """Return what belongs to a job: its run, other jobs of the run folder, those before and after it."""
        return relations.of_job(*task_of(*now.find(identity), task))

    @router.get("/api/v1/runs/{identity}/related", tags=["runs"])
    def related_to_run(identity: Identity) -> Related:
        """Return the jobs that are about a run."""
        return relations.of_run(runs.find(identity).folder.path)

    @router.get("/api/v1/jobs/{identity}/log/search", tags=["jobs"])
    def search(
        identity: Identity,
        text: Annotated[str, Query(min_length=1, max_length=200, description="A to Z in any case.")],
        task: TaskNumber = None,
        offset: Annotated[int, Query(ge=0, description="Of the first byte that is searched.")] = 0,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> LogMatches:
        """Find lines in the output of a task, for half a second: then ask on from `next`."""
        path, folder = now.log(*task_of(*now.find(identity), task))
        return log_search.search(path, folder, text=text, offset=offset, most=limit)

    def folder_of_job(identity: Identity, task: TaskNumber = None) -> RunFolder:
        return now.run_folder(*task_of(*now.find(identity), task))

    def folder_of_run(identity: Identity) -> RunFolder:
        return runs.find(identity).folder

    _about(router, "jobs", folder_of_job)
    _about(router, "runs", folder_of_run)
    return router


def _about(router: APIRouter, kind: str, folder: Callable[..., RunFolder]) -> None:
    """Add the routes that need nothing but a run folder."""

    wanted = Depends(folder)
    kept: Recent[TimeSpent] = Recent(_TIME_S)

    @router.get(f"/api/v1/{kind}/{{identity}}/time", tags=[kind], operation_id=f"time_of_{kind}")
    def time(run: RunFolder = wanted) -> TimeSpent:
        """Return where the time of the newest steps goes, and what to try."""
        # Imported here, as below: numpy would cost a service that nobody asks for this 13 MiB.
        from cingulum.service import time_spent

        return kept.get(run.path, lambda: time_spent.of(run))

    @router.get(f"/api/v1/{kind}/{{identity}}/placement", tags=[kind], operation_id=f"placement_of_{kind}")
    def placed(run: RunFolder = wanted) -> Placed:
        """Return who holds what of a network that is divided over ranks."""
        from trainer.telemetry import evidence

        plan = run.read_plan() if is_inside(run.plan, run.path) else None
        try:
            found = placement.of(plan or {}, evidence.read_facts(run).hosts)
        except placement.DAMAGED:
            raise NotHere("plan.json is damaged.") from None
        if found is None:
            raise NotHere("Each rank has the whole network, or there is no plan yet.")
        return Placed(
            placement=found,
            rank_header=list(placement.RANK_HEADER),
            rule_header=list(reasons.RULE_HEADER),
            reason_header=list(reasons.REASON_HEADER),
        )
