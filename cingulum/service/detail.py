"""Routes about one job or run besides those of api.py: relations, time, placement, logs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from cingulum.service.api import Identity, TaskNumber, task_of
from cingulum.service.failures import NotHere
from cingulum.service.jobs_now import JobsNow
from cingulum.service.log_part import refuse_elsewhere
from cingulum.service.recent import Recent
from cingulum.service.run_facts import folder_of, is_inside
from cingulum.service.runs_now import RunsNow
from cingulum.service.schema import Failed, TimeSpentView
from jobs.job import Job
from trainer.errors import JobError
from trainer.report import placement, reasons
from trainer.report.placement import PlacementSection
from trainer.run_folder.record import RunFolder


class Link(BaseModel):
    """A job that belongs to another job or to a run; `page` is its address."""

    id: str
    name: str
    kind: str
    state: str
    page: str


class Related(BaseModel):
    """What belongs to a job or a run.

    `run`: address of the page of its run folder, where the list of runs has it; `jobs` that are about this
    run folder; `before`: those that must complete first; `then`: those that wait for this one.
    """

    run: str | None
    jobs: list[Link]
    before: list[Link]
    then: list[Link]


class PlacementView(BaseModel):
    """Who holds what of a network that is divided over ranks, as the report shows it; headers of tables."""

    placement: PlacementSection
    rank_header: list[str]
    rule_header: list[str]
    reason_header: list[str]


class LogMatch(BaseModel):
    """A line with the text: the byte at which it begins, or near the text where the line is long."""

    offset: int
    text: str


class LogMatches(BaseModel):
    """Lines from where the search began to byte `next` of `size`; `done`: there is no more."""

    matches: list[LogMatch]
    next: int
    size: int
    done: bool


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
        return search_log(path, folder, text=text, offset=offset, most=limit)

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
    kept: Recent[TimeSpentView] = Recent(_TIME_S)

    @router.get(f"/api/v1/{kind}/{{identity}}/time", tags=[kind], operation_id=f"time_of_{kind}")
    def time(run: RunFolder = wanted) -> TimeSpentView:
        """Return where the time of the newest steps goes, and what to try."""
        # Imported here, as below: numpy would cost a service that nobody asks for this 13 MiB.
        from cingulum.service import time_spent

        return kept.get(run.path, lambda: time_spent.of(run))

    @router.get(f"/api/v1/{kind}/{{identity}}/placement", tags=[kind], operation_id=f"placement_of_{kind}")
    def placed(run: RunFolder = wanted) -> PlacementView:
        """Return who holds what of a network that is divided over ranks."""
        from trainer.telemetry import evidence

        plan = run.read_plan() if is_inside(run.plan, run.path) else None
        try:
            layout = placement.of(plan or {}, evidence.read_facts(run).hosts)
        except placement.DAMAGED:
            raise NotHere("plan.json is damaged.") from None
        if layout is None:
            raise NotHere("Each rank has the whole network, or there is no plan yet.")
        return PlacementView(
            placement=layout,
            rank_header=list(placement.RANK_HEADER),
            rule_header=list(reasons.RULE_HEADER),
            reason_header=list(reasons.REASON_HEADER),
        )


# Search a log of any size, a bounded part of it at a time.


_PIECE = 1 << 20
# Seconds after which the caller is told how far the search is.
ENOUGH_S = 0.5
# Bytes of a line that are shown before the text, and in all.
_BEFORE, _SHOWN = 120, 400


def search_log(path: Path, inside: Path, *, text: str, offset: int, most: int) -> LogMatches:
    """Return lines that hold the text, letters A to Z in any case, from byte `offset` on.

    It ends after `most` lines or ENOUGH_S, whichever comes first; `next` is where to go on. At most a few MiB
    are held, whatever the length of the log or of a line.

    Args:
        path: of the log.
        inside: the folder in which it must be, also behind links.
        text: not empty.
        offset: of the first byte.
        most: lines, at least 1.

    Raises:
        NotHere: there is no such file, or it is elsewhere.
    """
    refuse_elsewhere(path, inside)
    needle = text.encode("utf-8", "surrogateescape").lower()
    matches: list[LogMatch] = []
    until = time.monotonic() + ENOUGH_S
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            place = min(offset, size)
            while place < size and len(matches) < most:
                file.seek(place)
                piece = file.read(_PIECE)
                is_last = place + len(piece) >= size
                used = len(piece) if is_last else _whole_lines(piece, len(needle))
                found, used = _within(
                    piece[:used] if is_last else piece, needle, place, used, most - len(matches)
                )
                matches += found
                place += used
                if time.monotonic() > until:
                    break
    except (FileNotFoundError, IsADirectoryError):
        raise NotHere("No output yet.", cure="It is there when the job has started.") from None
    return LogMatches(matches=matches, next=place, size=size, done=place >= size)


def _whole_lines(piece: bytes, overlap: int) -> int:
    """Return how many bytes of a piece are searched: whole lines, or of a longer line all but an overlap."""
    return piece.rfind(b"\n") + 1 or max(1, len(piece) - overlap + 1)


def _within(piece: bytes, needle: bytes, place: int, used: int, most: int) -> tuple[list[LogMatch], int]:
    """Return the lines of a piece that begin before `used`, and how many bytes are done with."""
    lower, at = piece.lower(), 0
    matches: list[LogMatch] = []
    while len(matches) < most:
        at = lower.find(needle, at)
        if at < 0 or at >= used:
            return matches, used
        begin = max(piece.rfind(b"\n", 0, at) + 1, at - _BEFORE)
        end = piece.find(b"\n", at)
        end = len(piece) if end < 0 else end
        shown = piece[begin : min(end, begin + _SHOWN)].decode("utf-8", "replace")
        matches.append(LogMatch(offset=place + begin, text=shown))
        at = end + 1
    return matches, min(at, len(piece))


# What belongs to a job or a run: the run folder, jobs about the same folder, jobs before and after.


# Seconds for which an answer is good while no job and no run has changed.
_KEPT_S = 30.0


class Relations:
    """Looks up what belongs together, among the jobs that the user may look at and the runs of the list."""

    def __init__(self, now: JobsNow, runs: RunsNow) -> None:
        self._now, self._runs = now, runs
        self._kept: Recent[Related] = Recent(_KEPT_S)

    def of_run(self, folder: Path) -> Related:
        """Return the jobs that are about a run folder."""
        return self._kept.get((folder, self._stamp()), lambda: self._of_run(folder))

    def _of_run(self, folder: Path) -> Related:
        return Related(run=self._page_of(folder), jobs=list(self._about(folder)), before=[], then=[])

    def of_job(self, job: Job, task: int) -> Related:
        """Return what belongs to a task of a job; other jobs of its run folder, but not itself."""
        return self._kept.get((job.key, task, self._stamp()), lambda: self._of_job(job, task))

    def _of_job(self, job: Job, task: int) -> Related:
        run = folder_of(job, task)
        about = [] if run is None else [one for one in self._about(run.path) if one.page != _page(job, task)]
        return Related(
            run=None if run is None else self._page_of(run.path),
            jobs=about,
            before=[_link(one) for one in self._before(job)],
            then=[
                _link(one)
                for one in self._now.store.mentioning(self._now.viewer(), job.label)
                if job.label in one.spec.after and one.submitted >= job.submitted
            ],
        )

    def _stamp(self) -> tuple[object, ...]:
        return *self._now.store.stamp(self._now.viewer()), self._runs.list_stamp()

    def _page_of(self, folder: Path) -> str | None:
        found = self._runs.holding(folder)
        return None if found is None else f"/runs/{found.id}"

    def _about(self, folder: Path) -> Iterator[Link]:
        real = folder.resolve()
        # The job of a cross-validation names the folder in which the run folders of its folds lie.
        named = [
            self._now.store.mentioning(self._now.viewer(), name)
            for name in (real.name, real.parent.name)
            if name
        ]
        for job in {job.key: job for some in named for job in some}.values():
            yield from (_link(job, task) for task in _tasks_in(job, real))

    def _before(self, job: Job) -> Iterable[Job]:
        for label in job.spec.after:
            try:
                yield self._now.store.get(label, self._now.viewer())
            except JobError:  # of another store, or not to be seen
                continue


def _tasks_in(job: Job, real: Path) -> Iterator[int]:
    for task in range(len(job.tasks)):
        run = folder_of(job, task)
        # Folders of other names are not asked for: resolving takes a look at each part of a path.
        if run is not None and run.path.name == real.name and run.path.resolve() == real:
            yield task
            if not job.spec.is_array:
                return


def _page(job: Job, task: int) -> str:
    return f"/jobs/{job.key}_{task}" if job.spec.is_array else f"/jobs/{job.key}"


def _link(job: Job, task: int | None = None) -> Link:
    if task is None or not job.spec.is_array:
        state, label, page = job.state, job.label, f"/jobs/{job.key}"
    else:
        state, label, page = job.tasks[task].state, f"{job.label}_{task}", _page(job, task)
    return Link(id=label, name=job.spec.name, kind=job.spec.kind, state=state, page=page)
