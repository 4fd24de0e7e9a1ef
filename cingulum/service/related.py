"""What belongs to a job or a run: the run folder, jobs about the same folder, jobs before and after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from cingulum.service.detail_schema import Link, Related
from cingulum.service.jobs_now import JobsNow
from cingulum.service.recent import Recent
from cingulum.service.run_facts import folder_of
from cingulum.service.runs_now import RunsNow
from jobs.job import Job
from trainer.errors import JobError

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
