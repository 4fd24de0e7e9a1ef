"""Jobs that the user may look at, as the service tells them: from the store, which a thread keeps up to date.

Requests never wait for a scheduler. While it does not answer, jobs are told as they were, with a warning.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cingulum.service.failures import NotHere
from cingulum.service.recent import Recent
from cingulum.service.run_facts import RunPageFacts, folder_of
from cingulum.service.schema import Detail, JobListView, JobRowView, RunView
from jobs.job import Job, split_label
from jobs.requests import describing, known
from jobs.schedulers.base import ACTIVE
from jobs.store import sharing, submitter
from jobs.store.listing import JobQuery
from jobs.store.sharing import Viewer
from jobs.store.store import Store
from trainer.errors import CingulumError, JobError
from trainer.run_folder.record import RunFolder

# Seconds between two questions to launchers: while somebody looks, and else.
WATCHED_S, UNWATCHED_S = 5.0, 60.0
_LOOKS_S = 30.0
# Seconds for which a list is taken for unchanged without a look; and those after which a page is made anew in
# any case, since the run folder of a job that has ended may change, too.
FRESH_S, _PAGE_S = 0.8, 10.0


class JobsNow:
    """Jobs in a store: the user's own, and those shared with a group of the user's.

    Args:
        store: of all jobs.
        watched_s, unwatched_s: see WATCHED_S.
        fresh_s: see FRESH_S.
    """

    def __init__(
        self,
        store: Store,
        *,
        watched_s: float = WATCHED_S,
        unwatched_s: float = UNWATCHED_S,
        fresh_s: float = FRESH_S,
    ) -> None:
        self.store = store
        self.user = submitter.user()
        self.facts = RunPageFacts()
        self._stamps: Recent[tuple[object, ...]] = Recent(fresh_s)
        self._pages: Recent[JobListView] = Recent(_PAGE_S)
        self._intervals = watched_s, unwatched_s
        self._warnings: tuple[str, ...] = ()
        self._looked = 0.0
        self._wake = threading.Event()
        self._ending = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to ask launchers."""
        self._ending = False
        self._thread = threading.Thread(target=self._keep, name="launchers", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask no more; a question that is under way ends with the process."""
        self._ending = True
        self._wake.set()

    @property
    def warnings(self) -> list[str]:
        """Return what may be out of date, and why."""
        return list(self._warnings)

    @property
    def has_shared(self) -> bool:
        """Return whether jobs of other users are shared with a group of the user's."""
        return self.store.page(JobQuery(self.user, limit=1, groups=sharing.groups(), whose="shared"))[1] > 0

    def viewer(self) -> Viewer:
        """Return the user, with groups as this host knows them now."""
        return Viewer(self.user, sharing.groups())

    def page(self, query: JobQuery) -> JobListView:
        """Return a page of the list, made anew when `list_stamp` has changed."""
        self.look()
        query = replace(query, user=self.user, groups=sharing.groups())
        page = self._pages.get((query, self.list_stamp()), lambda: self._page(query))
        # A warning may come and go, so that a stamp may come back: it is none of what is kept.
        return page.model_copy(update={"warnings": self.warnings})

    def list_stamp(self) -> tuple[object, ...]:
        """Return what changes when there is more to tell in a list, whichever."""
        return self._stamps.get((), self._list_stamp)

    def _list_stamp(self) -> tuple[object, ...]:
        viewer = self.viewer()
        active = self.store.list(states=ACTIVE, user=self.user)
        active += self.store.list(states=ACTIVE, shared_with=viewer)
        runs = [run for job in active if (run := folder_of(job, 0)) is not None]
        return self.store.stamp(viewer), *map(self.facts.stamp, runs), *self.warnings

    def _page(self, query: JobQuery) -> JobListView:
        jobs, total = self.store.page(query)
        rows = [self.row(job) for job in jobs]
        return JobListView(jobs=rows, total=total, offset=query.offset, limit=query.limit, warnings=[])

    def find(self, identity: str) -> tuple[Job, int | None]:
        """Return the job of an id, and the task where the id names one.

        Raises:
            NotHere: not an id, or no job that this user may look at.
        """
        self.look()
        try:
            job, (_, task) = self.store.get(identity, self.viewer()), split_label(identity)
        except JobError:
            job, task = None, None
        if job is None or (task is not None and not _has(job, task)):
            raise NotHere(f"There is no job {identity!r}.", cure="GET /api/v1/jobs lists them.")
        return job, task

    def several(self, identities: Sequence[str]) -> dict[str, tuple[Job, int | None]]:
        """Return what `find` returns, by one question; ids without such a job are left out."""
        self.look()
        jobs_by_identity = {}
        for identity, job in self.store.several(identities, self.viewer()).items():
            _, task = split_label(identity)
            if task is None or _has(job, task):
                jobs_by_identity[identity] = job, task
        return jobs_by_identity

    def row(self, job: Job) -> JobRowView:
        """Return what a list shows of a job."""
        row = JobRowView(
            key=job.key,
            id=job.label,
            name=job.spec.name,
            user=job.user,
            mine=job.user == self.user,
            kind=job.spec.kind,
            launcher=job.launcher,
            state=job.state,
            reason=job.reason,
            exit_code=job.exit_code,
            hosts=list(dict.fromkeys(host for task in job.tasks for host in task.hosts)),
            submitted=describing.iso(job.submitted) or "",
            changed=describing.iso(job.changed) or "",
            tasks=len(job.tasks),
            tasks_completed=sum(task.state == "COMPLETED" for task in job.tasks),
        )
        run = folder_of(job, 0)
        if run is None:
            return row
        row.strategy = self.facts.strategy(run)
        if not job.spec.is_array and job.spec.kind == "train":
            row.progress = self.facts.progress(run, is_running=job.state == "RUNNING")
            row.best = self.facts.best(run)
        return row

    def detail(self, job: Job) -> Detail:
        """Return all of a job."""
        description = describing.everything(self.store, job)
        run = folder_of(job, 0)
        return Detail(
            **self.row(job).model_dump(),
            **{key: description[key] for key in ("site", "after", "resources", "folder", "job_folder")},
            environment=sorted(job.spec.environment),
            run=None if run is None else str(run.path),
            shared_with=self.store.shared_with(job),
            task_list=description["tasks"],
            changes=description["changes"],
            actions=description["actions"],
            warnings=self.warnings,
        )

    def run(self, job: Job, task: int) -> RunView:
        """Return what the run folder of a task holds; raises NotHere where there is none."""
        running = job.tasks[task].state == "RUNNING" and job.spec.kind != "evaluate"
        return self.facts.run(self.run_folder(job, task), is_running=running)

    def run_folder(self, job: Job, task: int) -> RunFolder:
        """Return the run folder of a task.

        Raises:
            NotHere: there is none, or not yet.
        """
        run = folder_of(job, task)
        if run is None or not run.path.is_dir():
            raise NotHere(
                "There is no run folder yet." if run else f"A job of kind {job.spec.kind} has no run folder."
            )
        return run

    def log(self, job: Job, task: int) -> tuple[Path, Path]:
        """Return the path of a task's log, and the folder that it is in.

        Raises:
            NotHere: the launcher has not taken the job, or its folder is gone.
        """
        path = describing.log_of(job, task)
        if path is None:
            raise NotHere(f"Job {job.label} is {job.state}: there is no output.")
        return path, Path(job.folder)

    def stamp(self, job: Job, task: int) -> tuple[object, ...]:
        """Return what changes when there is more to tell of a job: revision, actions, run folder, log,
        warnings.
        """
        run, path = folder_of(job, task), describing.log_of(job, task)
        try:
            size = path.stat().st_size if path else None
        except OSError:
            size = None
        acted = len(self.store.actions(job.key))
        return job.revision, acted, None if run is None else self.facts.stamp(run), size, *self._warnings

    def _refresh_shared(self) -> None:
        """Ask launchers for others' jobs, too: their users may not look. What cannot be asked is left."""
        shared = self.store.list(states=ACTIVE, shared_with=self.viewer())
        if shared:
            known.refresh(self.store, shared, warn=lambda _: None)

    def look(self) -> None:
        """Note that somebody looks; who comes back after a while is not told what was then."""
        before, self._looked = self._looked, time.monotonic()
        if self._looked - before > _LOOKS_S:
            self._wake.set()

    def _keep(self) -> None:
        warned: set[str] = set()
        while not self._ending:
            try:
                known.refresh(self.store, warn=lambda _: None, warned=warned)
                self._refresh_shared()
                self._warnings = tuple(sorted(warned))
            except CingulumError as error:
                self._warnings = (error.message,)
            except Exception as error:  # whatever one round meets, there is another
                self._warnings = (f"Jobs could not be asked for ({type(error).__name__}: {error}).",)
            watched = time.monotonic() - self._looked < _LOOKS_S
            self._wake.wait(self._intervals[0 if watched else 1])
            self._wake.clear()


def _has(job: Job, task: int) -> bool:
    return job.spec.is_array and task < len(job.tasks)
