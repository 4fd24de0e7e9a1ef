"""The first page: what runs, what needs attention, what ended, of jobs and of runs that no job started."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from cingulum.service import run_facts
from cingulum.service.api import ERRORS
from cingulum.service.events import stream
from cingulum.service.jobs_now import JobsNow
from cingulum.service.recent import Recent
from cingulum.service.run_facts import folder_of
from cingulum.service.runs_now import RunEntry, RunsNow
from cingulum.service.schema import Best, Measured, ProgressView
from jobs.job import Job
from jobs.requests import describing
from jobs.schedulers.base import ACTIVE
from jobs.store import sharing
from jobs.store.listing import JobQuery
from trainer.errors import CingulumError
from trainer.run_folder import crossval_folder

# Entries of each part; jobs that are looked at, the last changed first.
MOST, _LOOKED_AT = 8, 200
_KEPT_S = 10.0
_TRAINS = ("train", "crossval")


class HomeEntry(BaseModel):
    """A job, a run, or a cross-validation; `page` is its address, `what` tells which of them.

    `figures`: on test subjects, or of all folds together.
    """

    page: str | None
    name: str
    what: str
    state: str
    reason: str = ""
    changed: str
    tasks: int = 1
    tasks_completed: int = 0
    progress: ProgressView | None = None
    best: Best | None = None
    figures: dict[str, Measured] = {}


class Home(BaseModel):
    """What there is to look at, the last changed first; `more`: of each part, how many are not in it."""

    running: list[HomeEntry]
    attention: list[HomeEntry]
    ended: list[HomeEntry]
    more: dict[str, int]
    warnings: list[str]


class Overview:
    """Makes the first page of the jobs that the user may look at, and of runs.

    Args:
        now: the jobs.
        runs: in folders of the user's choice.
    """

    def __init__(self, now: JobsNow, runs: RunsNow) -> None:
        self._now, self._runs = now, runs
        self._kept: Recent[Home] = Recent(_KEPT_S)

    def stamp(self) -> str:
        """Return what changes when there is more to tell."""
        return repr((self._now.list_stamp(), self._runs.list_stamp()))

    def home(self) -> Home:
        """Return the page, made anew when `stamp` has changed."""
        self._now.look()
        found = self._kept.get(self.stamp(), self._home)
        return found.model_copy(update={"warnings": [*self._now.warnings, *self._runs.warnings]})

    def _home(self) -> Home:
        # When each changed, and what makes its entry: those that are not shown are not read.
        parts: dict[str, list[tuple[float, Callable[[], HomeEntry]]]]
        parts = {"running": [], "attention": [], "ended": []}
        job_folders: set[Path] = set()
        for part, job in self._newest_jobs():
            parts[part].append((job.changed, partial(self._of_job, job)))
            if job.spec.run is not None:
                job_folders.add(Path(job.spec.run).resolve())
        for run in self._runs.all():
            if run.folder.path not in job_folders:
                part = {"RUNNING": "running", "COMPLETED": "ended"}.get(run.state, "attention")
                parts[part].append((run.changed, partial(self._of_run, run)))
        for identity, folder in self._runs.crossvals().items():
            if folder not in job_folders:
                with contextlib.suppress(CingulumError, OSError):  # not finished, or damaged
                    changed, entry = self._of_crossval(identity, folder)
                    parts["ended"].append((changed, entry.model_copy))
        shown = {
            name: [make() for _, make in sorted(entries, key=lambda one: one[0], reverse=True)[:MOST]]
            for name, entries in parts.items()
        }
        more = {name: len(entries) - len(shown[name]) for name, entries in parts.items()}
        return Home(**shown, more=more, warnings=[])

    def _newest_jobs(self) -> Iterator[tuple[str, Job]]:
        """The last job of each kind about each run folder, and where it belongs; what ended well and trained
        nothing, and what the user cancelled, is left out.
        """
        listing = JobQuery(self._now.user, sort="changed", limit=_LOOKED_AT, groups=sharing.groups())
        seen: set[tuple[str, str]] = set()
        for job in self._now.store.page(listing)[0]:
            about = (job.spec.kind, job.spec.run or job.key)
            if job.state in ACTIVE:
                yield "running", job
            elif about in seen or job.state == "CANCELLED":
                pass
            elif job.state != "COMPLETED":
                yield "attention", job
            elif job.spec.kind in _TRAINS:
                yield "ended", job
            seen.add(about)

    def _of_job(self, job: Job) -> HomeEntry:
        row, run = self._now.row(job), folder_of(job, 0)
        figures: dict[str, Measured] = {}
        if job.spec.kind == "crossval" and job.spec.run is not None:
            with contextlib.suppress(CingulumError, OSError):  # not finished yet
                figures = _pooled(Path(job.spec.run))
        elif run is not None:
            figures = self._now.facts.figures(run, "test")
        kept = {"name", "state", "reason", "changed", "tasks", "tasks_completed", "progress", "best"}
        whose = "" if row.mine else f" · of {row.user}"
        return HomeEntry(
            **row.model_dump(include=kept),
            page=f"/jobs/{row.key}",
            what=f"{row.kind} · {row.id}{whose}",
            figures=figures,
        )

    def _of_run(self, run: RunEntry) -> HomeEntry:
        return HomeEntry(
            page=f"/runs/{run.id}",
            name=run.name,
            what="run",
            state=run.state,
            reason="The same command with --resume goes on." if run.state == "STOPPED" else "",
            changed=describing.iso(run.changed) or "",
            progress=self._now.facts.progress(run.folder, is_running=run.state == "RUNNING"),
            best=self._now.facts.best(run.folder),
            figures=self._now.facts.figures(run.folder, "test"),
        )

    def _of_crossval(self, identity: str, folder: Path) -> tuple[float, HomeEntry]:
        figures = _pooled(folder)
        changed = (folder / crossval_folder.SUMMARY_NAME).stat().st_mtime
        has_report = (folder / "report.html").is_file()
        return changed, HomeEntry(
            page=f"/crossvals/{identity}/report" if has_report else None,
            name=run_facts.text_of(folder.name),
            what="cross-validation",
            state="COMPLETED",
            changed=describing.iso(changed) or "",
            figures=figures,
        )


def routes(overview: Overview) -> APIRouter:
    """Return the routes that the first page asks."""
    router = APIRouter(prefix="/api/v1/home", tags=["home"], responses=ERRORS)

    @router.get("")
    def home() -> Home:
        """Tell what runs, what needs attention, and what ended."""
        return overview.home()

    @router.get("/events", response_class=Response)
    async def home_events(request: Request) -> Response:
        """Send a server-sent event whenever any job or run has changed."""
        return stream(request, overview.stamp)

    return router


def _pooled(folder: Path) -> dict[str, Measured]:
    """Return the figures of all folds together, by name.

    Raises:
        RunError: the cross-validation is not finished.
    """
    pooled: Mapping[str, Any] = crossval_folder.summary(folder)["pooled"]
    figures = {}
    for name, figure in pooled.items():
        value = run_facts.number(figure.get("value")) if isinstance(figure, dict) else None
        if value is not None:
            figures[name] = Measured(value=value, interval=run_facts.interval(figure.get("interval")))
    return figures
