"""The service as an application: routes behind the guard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import APIRouter, FastAPI
from fastapi.responses import PlainTextResponse

from cingulum.service import acting, api, form, home, pages, token_routes
from cingulum.service.callers import Callers
from cingulum.service.cluster import ClusterNow, cluster_routes
from cingulum.service.compare import Comparing, compare_routes
from cingulum.service.detail import detail_routes
from cingulum.service.failures import answer_errors
from cingulum.service.guard import GuardedApp
from cingulum.service.jobs_now import JobsNow
from cingulum.service.runs_now import RunsNow
from cingulum.service.tokens import TokenFile
from cingulum.service.webhook import Webhook
from jobs import cluster
from jobs.schedulers.base import ACTIVE, ENDED


def create_app(
    now: JobsNow,
    callers: Callers,
    runs: RunsNow | None = None,
    looks: acting.Looks | None = None,
    tokens: TokenFile | None = None,
    webhook: Webhook | None = None,
    origin: str | None = None,
    root: str = "",
    machines: ClusterNow | None = None,
) -> GuardedApp:
    """Return the application; `.routes` of its `app` are all that it answers.

    Args:
        now: the user's jobs.
        callers: who may ask.
        runs: that are shown, however they were started; default: none.
        looks: what submitting needs of the command line; None: nothing is submitted.
        tokens: that who may administer lists and revokes; None: nobody does.
        webhook: that is told of changes; None: none is.
        origin, root: of the pages behind a proxy; see `GuardedApp`.
        machines: that jobs run on; default: what `jobs.cluster` tells.
    """

    machines = machines or ClusterNow(now.store, now.user, cluster.look)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        now.start()
        if webhook is not None:
            webhook.start()
        machines.start()
        yield
        machines.end()
        if webhook is not None:
            webhook.end()
        now.end()

    app = FastAPI(
        title="Cingulum",
        version=version("cingulum"),
        lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # it would load its scripts from elsewhere
        redoc_url=None,
        servers=[{"url": root}] if root else None,
    )
    app.state.root = root
    app.state.ending = asyncio.Event()
    guard = GuardedApp(app, callers, pages.signed_out(root), origin, root)
    app.include_router(api.session_routes(callers, guard.cookie))
    if looks is not None:
        app.include_router(acting.routes(now, looks))
        app.include_router(form.routes())
    if tokens is not None:
        app.include_router(token_routes.routes(tokens))
    app.include_router(api.job_routes(now))
    runs = runs or RunsNow((), now.facts)
    app.include_router(api.run_routes(runs))
    app.include_router(home.routes(home.Overview(now, runs)))
    app.include_router(_metrics(now))
    app.include_router(detail_routes(now, runs))
    app.include_router(cluster_routes(machines))
    app.include_router(compare_routes(Comparing(now, runs)))
    app.include_router(pages.routes(now, runs))
    answer_errors(app)
    return guard


_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def _metrics(now: JobsNow) -> APIRouter:
    """Figures for Prometheus: a handful, whatever number of jobs there is."""
    router = APIRouter(tags=["metrics"])

    @router.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> PlainTextResponse:
        """Return the user's jobs by state, and whether launchers answer, as Prometheus reads it."""
        return PlainTextResponse("".join(f"{line}\n" for line in _figures(now)), media_type=_PROMETHEUS)

    return router


def _figures(now: JobsNow) -> Iterator[str]:
    counts = now.store.counts(now.user)
    yield "# HELP cingulum_jobs Jobs of the user by state."
    yield "# TYPE cingulum_jobs gauge"
    for state in (*ACTIVE, *ENDED):
        yield f'cingulum_jobs{{state="{state}"}} {counts.get(state, 0)}'
    yield "# HELP cingulum_warnings Launchers that do not answer, and other warnings of the pages."
    yield "# TYPE cingulum_warnings gauge"
    yield f"cingulum_warnings {len(now.warnings)}"
    yield "# HELP cingulum_build_info Version of the service."
    yield "# TYPE cingulum_build_info gauge"
    yield f'cingulum_build_info{{version="{version("cingulum")}"}} 1'
