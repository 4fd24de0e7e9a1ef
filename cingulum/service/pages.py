"""The pages: lists, a job, a run, and the frame that asks for a token. Scripts fill them from the API."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi import Path as InAddress
from fastapi.responses import FileResponse, HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cingulum.service.compare import MOST_TESTED
from cingulum.service.failures import NotHere
from cingulum.service.jobs_now import JobsNow
from cingulum.service.run_facts import is_inside
from cingulum.service.runs_now import STATES, RunsNow
from jobs.schedulers.base import ACTIVE, ENDED
from jobs.store import sharing
from trainer.report import script
from trainer.run_folder.record import RunFolder

_HERE = Path(__file__).parent
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# A report brings its own style and script within the file. It is of no origin (a sandbox without
# allow-same-origin), and may do nothing else: no other script, no request, no form.
_OF_A_REPORT = (
    f"sandbox allow-scripts; default-src 'none'; script-src {script.source()}; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; frame-ancestors 'none'"
)
Identity = Annotated[str, InAddress(max_length=64)]


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(_HERE / "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined)


def page(template: str, request: Request, current: str = "", **facts: Any) -> HTMLResponse:
    """Return a page; `current` is the entry of the navigation that it belongs to."""
    made = _templates().get_template(template)
    known = {"caller": request.state.caller, "root": request.app.state.root, "current": current}
    return HTMLResponse(made.render(**known, **facts))


def signed_out(root: str) -> str:
    """Return the page that asks for a token; `root` is the path of all pages."""
    return _templates().get_template("sign_in.html.j2").render(root=root)


def routes(now: JobsNow, runs: RunsNow) -> APIRouter:
    """Return the routes of the pages, and of the files that they use."""
    router = APIRouter(include_in_schema=False)
    # Listed once: a name in an address is looked up, never made into a path.
    files = {path.name: path for path in (_HERE / "static").iterdir() if path.suffix in _KINDS}

    @router.get("/")
    def first_page(request: Request) -> HTMLResponse:
        """What runs, what needs attention, what ended."""
        return page("home.html.j2", request, "home")

    @router.get("/jobs")
    def job_list(request: Request) -> HTMLResponse:
        """The list of jobs."""
        return page("jobs.html.j2", request, "jobs", states=(*ACTIVE, *ENDED), is_shared=now.has_shared)

    @router.get("/runs")
    def run_list(request: Request) -> HTMLResponse:
        """The list of runs."""
        return page("runs.html.j2", request, "runs", states=STATES)

    @router.get("/cluster")
    def cluster_page(request: Request) -> HTMLResponse:
        """Queue and hosts."""
        return page("cluster.html.j2", request, "cluster")

    @router.get("/compare")
    def compare_page(request: Request) -> HTMLResponse:
        """Runs side by side; its script reads from the address which."""
        return page("compare.html.j2", request, "runs", most_tested=MOST_TESTED)

    @router.get("/jobs/{identity}")
    def job_page(request: Request, identity: Identity) -> HTMLResponse:
        """The page of one job."""
        job, task = now.find(identity)
        mine, groups, store = job.user == now.user, sharing.groups(), str(now.store)
        facts = {"job": job, "task": task or 0, "mine": mine, "groups": groups, "store": store}
        return page("job.html.j2", request, "jobs", **facts)

    @router.get("/runs/{identity}")
    def run_page(request: Request, identity: Identity) -> HTMLResponse:
        """The page of one run."""
        return page("run.html.j2", request, "runs", run=runs.find(identity))

    @router.get("/jobs/{identity}/report")
    def report(identity: Identity, task: int = 0) -> Response:
        """The report of a job's run, as the run wrote it."""
        job, named = now.find(identity)
        number = named or task
        return _report(now.run_folder(job, number if 0 <= number < len(job.tasks) else 0))

    @router.get("/runs/{identity}/report")
    def run_report(identity: Identity) -> Response:
        """The report of a run, as the run wrote it."""
        return _report(runs.find(identity).folder)

    @router.get("/crossvals/{identity}/report")
    def crossval_report(identity: Identity) -> Response:
        """The report of a cross-validation, as its command wrote it."""
        return _report(runs.crossval(identity))

    @router.get("/static/{name}")
    def static(name: str) -> Response:
        """A style or a script."""
        path = files.get(name)
        if path is None:
            raise NotHere("There is no such file.")
        return FileResponse(path, media_type=_KINDS[path.suffix])

    return router


def _report(run: RunFolder) -> Response:
    if not run.report.is_file() or not is_inside(run.report, run.path):
        raise NotHere("There is no report yet.", cure="The run writes it when it ends.")
    return HTMLResponse(run.report.read_bytes(), headers={"Content-Security-Policy": _OF_A_REPORT})
