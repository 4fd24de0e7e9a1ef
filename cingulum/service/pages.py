"""The pages: a list, a job, and the frame that asks for a token. Scripts fill them from the API."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi import Path as InAddress
from fastapi.responses import FileResponse, HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cingulum.service.failures import NotHere
from cingulum.service.jobs_now import JobsNow
from cingulum.service.run_facts import is_inside
from jobs.launchers.base import ACTIVE, ENDED

_HERE = Path(__file__).parent
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# A report brings its own style within the file. It may do nothing else: no script, no request, no form.
_OF_A_REPORT = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(_HERE / "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined)


def signed_out() -> str:
    """Return the page that asks for a token."""
    return _templates().get_template("sign_in.html.j2").render()


def routes(now: JobsNow) -> APIRouter:
    """Return the routes of the pages, and of the files that they use."""
    router = APIRouter(include_in_schema=False)
    # Listed once: a name in an address is looked up, never made into a path.
    files = {path.name: path for path in (_HERE / "static").iterdir() if path.suffix in _KINDS}

    @router.get("/")
    def list_page(request: Request) -> HTMLResponse:
        """The list of jobs."""
        page = _templates().get_template("jobs.html.j2")
        caller = request.state.caller
        return HTMLResponse(page.render(states=(*ACTIVE, *ENDED), caller=caller, store=str(now.store)))

    @router.get("/jobs/{identity}")
    def job_page(request: Request, identity: Annotated[str, InAddress(max_length=64)]) -> HTMLResponse:
        """The page of one job."""
        job, task = now.find(identity)
        page = _templates().get_template("job.html.j2")
        return HTMLResponse(
            page.render(job=job, task=task or 0, caller=request.state.caller, store=str(now.store))
        )

    @router.get("/jobs/{identity}/report")
    def report(identity: Annotated[str, InAddress(max_length=64)], task: int = 0) -> Response:
        """The report of a run, as the run wrote it."""
        job, named = now.find(identity)
        number = named or task
        run = now.run_folder(job, number if 0 <= number < len(job.tasks) else 0)
        if not run.report.is_file() or not is_inside(run.report, run.path):
            raise NotHere("There is no report yet.", cure="The run writes it when it ends.")
        return HTMLResponse(run.report.read_bytes(), headers={"Content-Security-Policy": _OF_A_REPORT})

    @router.get("/static/{name}")
    def static(name: str) -> Response:
        """A style or a script."""
        path = files.get(name)
        if path is None:
            raise NotHere("There is no such file.")
        return FileResponse(path, media_type=_KINDS[path.suffix])

    return router
