"""Figures for Prometheus: a handful, whatever number of jobs there is."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from cingulum.service.jobs_now import JobsNow
from jobs.schedulers.base import ACTIVE, ENDED

_KIND = "text/plain; version=0.0.4; charset=utf-8"


def routes(now: JobsNow) -> APIRouter:
    """Return the route of the figures."""
    router = APIRouter(tags=["metrics"])

    @router.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> PlainTextResponse:
        """Return the user's jobs by state, and whether launchers answer, as Prometheus reads it."""
        return PlainTextResponse("".join(f"{line}\n" for line in _lines(now)), media_type=_KIND)

    return router


def _lines(now: JobsNow) -> Iterator[str]:
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
