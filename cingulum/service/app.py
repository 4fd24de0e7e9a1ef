"""The service as an application: routes behind the guard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from cingulum.service import api, pages
from cingulum.service.callers import Callers
from cingulum.service.failures import answer_errors
from cingulum.service.guard import Guard
from cingulum.service.jobs_now import JobsNow


def create_app(now: JobsNow, callers: Callers) -> Guard:
    """Return the application; `.routes` of its `app` are all that it answers.

    Args:
        now: the user's jobs.
        callers: who may ask.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        now.start()
        yield
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
    app.include_router(pages.routes(now))
    answer_errors(app)
    return guard
