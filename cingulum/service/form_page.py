"""The page of the form by which jobs are submitted."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from cingulum.service.pages import page
from jobs.schedulers import registry


def routes() -> APIRouter:
    """Return the route of the form."""
    router = APIRouter(include_in_schema=False)

    @router.get("/submit")
    def submit_page(request: Request) -> HTMLResponse:
        """The form; `?from=ID` fills it with what a job was submitted with."""
        facts = {"launchers": registry.NAMES, "launcher": registry.preferred(), "folder": str(Path.cwd())}
        return page("submit.html.j2", request, "submit", **facts)

    return router
