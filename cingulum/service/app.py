"""The service as an application: routes behind the guard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from cingulum.service import api, pages
from cingulum.service.callers import Callers
from cingulum.service.cluster_now import ClusterNow
from cingulum.service.cluster_routes import cluster_routes
from cingulum.service.compare_routes import compare_routes
from cingulum.service.comparing import Comparing
from cingulum.service.detail_routes import detail_routes
from cingulum.service.failures import answer_errors
from cingulum.service.guard import Guard
from cingulum.service.jobs_now import JobsNow
from cingulum.service.runs_now import RunsNow
from jobs import cluster


def create_app(
    now: JobsNow, callers: Callers, runs: RunsNow | None = None, machines: ClusterNow | None = None
) -> Guard:
    """Return the application; `.routes` of its `app` are all that it answers.

    Args:
        now: the user's jobs.
        callers: who may ask.
        runs: that are shown, however they were started; default: none.
        machines: that jobs run on; default: what `jobs.cluster` tells.
    """

    machines = machines or ClusterNow(now.store, now.user, cluster.look)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        now.start()
        machines.start()
        yield
        machines.end()
        now.end()

    app = FastAPI(
        title="Cingulum",
        version=version("cingulum"),
        lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # it would load its scripts from elsewhere
        redoc_url=None,
    )
    app.state.ending = asyncio.Event()
    guard = Guard(app, callers, pages.signed_out())
    app.include_router(api.session_routes(callers, guard.cookie))
    app.include_router(api.job_routes(now))
    runs = runs or RunsNow((), now.facts)
    app.include_router(api.run_routes(runs))
    app.include_router(detail_routes(now, runs))
    app.include_router(cluster_routes(machines))
    app.include_router(compare_routes(Comparing(now, runs)))
    app.include_router(pages.routes(now, runs))
    answer_errors(app)
    return guard
