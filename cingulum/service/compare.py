"""Runs side by side: what is compared, and the routes under /api/v1/compare."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from cingulum.service import run_facts
from cingulum.service.events import stream
from cingulum.service.failures import NotHere
from cingulum.service.jobs_now import JobsNow
from cingulum.service.recent import Recent
from cingulum.service.run_facts import folder_of, is_inside
from cingulum.service.runs_now import RunsNow
from cingulum.service.schema import Best, Failed, Measured, ProgressView
from jobs.job import Job
from trainer.errors import InputError, RunError
from trainer.run_folder.record import RunFolder, settings


class ComparedRun(BaseModel):
    """One of the runs: `page` is its address; `settings` are in the order of `keys`, null: it has none."""

    id: str
    name: str
    page: str
    state: str
    strategy: str | None
    progress: ProgressView | None
    best: Best | None
    figures: dict[str, Measured]
    settings: list[str | None]


class Compared(BaseModel):
    """Runs side by side, in the order in which they were asked for.

    `keys` are those of the configuration whose values differ, `metrics` what there are curves of, `figures`
    of the evaluation on `split`; `warnings` say which runs are missing.
    """

    runs: list[ComparedRun]
    keys: list[str]
    metrics: list[str]
    figures: list[str]
    split: str
    warnings: list[str]


class Line(BaseModel):
    """The curve of a run: columns of equal length."""

    id: str
    x: list[float]
    y: list[float | None]


class MetricCurves(BaseModel):
    """Curves of a metric over `axis`: epochs, steps, or seconds of training."""

    metric: str
    axis: Literal["epoch", "step", "time"]
    lines: list[Line]


class Difference(BaseModel):
    """Two runs on the same scans, by subject: first less second, 95 % interval, two-sided p, p after Holm."""

    metric: str
    first: str
    second: str
    difference: float | None
    interval: tuple[float, float] | None
    p_value: float | None
    p_holm: float | None
    test: str


class Tested(BaseModel):
    """What `cingulum compare` tells of the runs: `n` scans of `subjects`, every pair, and what to know."""

    task: str
    split: str
    n: int
    subjects: int
    notes: list[str]
    differences: list[Difference]


MOST_RUNS, MOST_TESTED = 200, 12
# Points of all curves of a chart together, and of one at least and at most.
_POINTS, _FEWEST, _MOST = 40_000, 100, 2000
# Seconds for which answers are kept that nothing has changed.
_KEPT_S = 600.0
# Settings that name a run and tell nothing about it.
_NAMES = ("name", "runs")


@dataclass(frozen=True)
class ChosenRun:
    """A run to compare.

    Attributes:
        id: as the API knows it, of a job with its task.
        name: for people.
        page: address of its page.
        state: of the run, or of the task of a job.
        folder: itself.
    """

    id: str
    name: str
    page: str
    state: str
    folder: RunFolder


class Comparing:
    """Compares runs of the user.

    Args:
        now: the user's jobs.
        runs: those that were started in any way.
    """

    def __init__(self, now: JobsNow, runs: RunsNow) -> None:
        self._now, self._runs, self._facts = now, runs, now.facts
        self._tables: Recent[Compared] = Recent(_KEPT_S, most=16)
        self._tests: Recent[Tested] = Recent(_KEPT_S, most=16)

    def chosen(self, identities: Sequence[str]) -> tuple[list[ChosenRun], list[str]]:
        """Return the runs of these ids, each once, and what is missing.

        An id of a job without a task means the runs of all its tasks.

        Raises:
            InputError: too many.
        """
        runs_by_folder: dict[object, ChosenRun] = {}
        missing = []
        jobs = self._now.several(identities)
        for identity in dict.fromkeys(identities):
            of_one = self._of(identity, jobs)
            if not of_one:
                missing.append(f"{identity}: there is no such run, or not yet.")
            for one in of_one:
                runs_by_folder.setdefault(one.folder.path.resolve(), one)
        if len(runs_by_folder) > MOST_RUNS:
            raise InputError(
                f"{len(runs_by_folder)} runs are too many to compare.", cure=f"Choose {MOST_RUNS} at most."
            )
        return list(runs_by_folder.values()), missing

    def stamp(self, identities: Sequence[str]) -> str:
        """Return what changes when there is more to tell of any of these runs."""
        return self._stamp(self.chosen(identities)[0])

    def table(self, identities: Sequence[str], split: str) -> Compared:
        """Return the runs with what differs between them."""
        runs, missing = self.chosen(identities)
        evaluated = [run_facts.stamp_of(one.folder.evaluation / f"{split}.json") for one in runs]
        key = self._stamp(runs), split, tuple(evaluated)
        found = self._tables.get(key, lambda: self._table(runs, split))
        return found.model_copy(update={"warnings": [*missing, *self._losses(runs)]})

    def lines(self, identities: Sequence[str], metric: str, axis: str) -> MetricCurves:
        """Return the curves of one metric, thinned where there are many; runs without it are left out."""
        runs, _ = self.chosen(identities)
        most = min(_MOST, max(_FEWEST, _POINTS // max(1, len(runs))))
        curves = []
        for run in runs:
            rows = self._facts.rows(run.folder)
            x = _axis(rows, axis)
            y = [run_facts.number(row.get(metric)) for row in rows]
            if any(value is not None for value in y):
                places = _thinned(len(y), most)
                curves.append(Line(id=run.id, x=[x[i] for i in places], y=[_short(y[i]) for i in places]))
        return MetricCurves(metric=metric, axis=axis, lines=curves)

    def tests(self, identities: Sequence[str], split: str, *, common: bool) -> Tested:
        """Return whether differences are more than chance, as `cingulum compare` tells it.

        Runs that were not judged on this split are left out with a note.

        Raises:
            RunError: fewer than two are left, or they were judged on different subjects, tasks or classes.
            InputError: more than MOST_TESTED.
        """
        runs, _ = self.chosen(identities)
        if len(runs) > MOST_TESTED:
            raise InputError(
                f"{len(runs)} runs are too many to test every two of them.",
                cure=f"Keep {MOST_TESTED} at most.",
            )
        judged = [run_facts.stamp_of(one.folder.evaluation / f"{split}.csv") for one in runs]
        key = self._stamp(runs), split, common, tuple(judged)
        return self._tests.get(key, lambda: _tests(runs, split, common=common))

    def _of(self, identity: str, jobs: Mapping[str, tuple[Job, int | None]]) -> list[ChosenRun]:
        try:
            run = self._runs.find(identity)
        except NotHere:
            return _of_job(*jobs[identity]) if identity in jobs else []
        return [ChosenRun(run.id, run.name, f"/runs/{run.id}", run.state, run.folder)]

    def _stamp(self, runs: Sequence[ChosenRun]) -> str:
        return repr([(one.id, one.name, one.state, self._facts.stamp(one.folder)) for one in runs])

    def _table(self, runs: Sequence[ChosenRun], split: str) -> Compared:
        keys, given_by = self._settings(runs)
        figures = [self._facts.figures(one.folder, split) for one in runs]
        metrics = sorted({name for one in runs for name in _metrics(self._facts.rows(one.folder))})
        rows = [
            ComparedRun(
                id=one.id,
                name=one.name,
                page=one.page,
                state=one.state,
                strategy=self._facts.strategy(one.folder),
                progress=self._facts.progress(one.folder, is_running=one.state == "RUNNING"),
                best=self._facts.best(one.folder),
                figures=measured,
                settings=given,
            )
            for one, measured, given in zip(runs, figures, given_by, strict=True)
        ]
        names = list(dict.fromkeys(name for one in figures for name in one))
        return Compared(runs=rows, keys=keys, metrics=metrics, figures=names, split=split, warnings=[])

    def _losses(self, runs: Sequence[ChosenRun]) -> list[str]:
        """What to warn of where runs train different functions, which share the names of their columns."""
        configs = [self._facts.config(one.folder) for one in runs]
        trained = list(dict.fromkeys(config.trained_loss for config in configs if config is not None))
        if len(trained) < 2:
            return []
        more = f" and {len(trained) - 3} more" if len(trained) > 3 else ""
        told = f"loss and val_loss are not one function in these runs: {'; '.join(trained[:3])}{more}."
        classes = any(config is not None and config.task.name == "classification" for config in configs)
        return [f"{told} Compare val_cross_entropy." if classes else told]

    def _settings(self, runs: Sequence[ChosenRun]) -> tuple[list[str], list[list[str | None]]]:
        """Keys that differ, and each run's values as text."""
        configs = [self._facts.config(one.folder) for one in runs]
        trees = [None if config is None else settings(config) for config in configs]
        known = [tree for tree in trees if tree is not None]
        keys = [
            key
            for key in dict.fromkeys(key for tree in known for key in tree)
            if key not in _NAMES and len({_text(tree.get(key)) for tree in known}) > 1
        ]
        return keys, [[None if tree is None else _text(tree.get(key)) for key in keys] for tree in trees]


def _of_job(job: Job, task: int | None) -> list[ChosenRun]:
    """Return the runs of a job's tasks that have begun."""
    runs = []
    for number in range(len(job.tasks)) if task is None else (task,):
        run = folder_of(job, number)
        if run is not None and run.config.is_file():
            label, name = job.key, job.spec.name
            if job.spec.is_array:
                label, name = f"{label}_{number}", f"{name} {run_facts.text_of(run.path.name)}"
            runs.append(ChosenRun(label, name, f"/jobs/{label}", job.tasks[number].state, run))
    return runs


def _tests(runs: Sequence[ChosenRun], split: str, *, common: bool) -> Tested:
    # Imported here, as in `RunFacts.figures`.
    from trainer.metrics import comparison, tables

    judged, notes = {}, []
    for run in runs:
        try:
            if not is_inside(run.folder.evaluation / f"{split}.csv", run.folder.path):
                raise RunError(f"{run.folder.path}: its evaluation lies elsewhere.")
            judged[run.id] = tables.read(run.folder.path, split)
        except RunError as error:
            notes.append(f"{run.name} is left out: {error.message}")
    if len(judged) < 2:
        raise RunError(
            " ".join(["Fewer than two of these runs can be tested.", *notes]),
            cure="Runs are tested when they have ended.",
        )
    chosen, remarks = comparison.aligned(list(judged.values()), common=common)
    return Tested(
        task=chosen[0].task,
        split=split,
        n=len(chosen[0].rows),
        subjects=len(set(chosen[0].subjects)),
        notes=[*notes, *remarks],
        differences=[Difference(**pair) for pair in comparison.differences(chosen, list(judged))],
    )


def _axis(rows: run_facts.Rows, axis: str) -> list[float]:
    if axis == "time":
        return list(accumulate(run_facts.number(row.get("seconds")) or 0.0 for row in rows))
    return [float(row[axis]) for row in rows]


def _metrics(rows: run_facts.Rows) -> list[str]:
    """Names of the columns that measure something, by the last rows."""
    last = rows[-3:]
    names = dict.fromkeys(name for row in last for name in row if name not in run_facts.COUNTS)
    return [name for name in names if any(run_facts.number(row.get(name)) is not None for row in last)]


def _thinned(count: int, most: int) -> list[int]:
    """Return at most `most` places of `count`, evenly spaced, the last one among them."""
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]


def _short(value: float | None) -> float | None:
    """Return a value with as many digits as a chart can show."""
    return None if value is None else float(f"{value:.6g}")


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


Ids = Annotated[
    str,
    Query(max_length=16384, description="Of runs, jobs or tasks, with commas: a1b2c3d4e5f60718,4711,4712_3."),
]
Split = Annotated[Literal["validation", "test"], Query(description="Subjects that the runs were judged on.")]
_ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": Failed, "description": "An error"}}


def compare_routes(comparing: Comparing) -> APIRouter:
    """Return the routes that compare runs."""
    router = APIRouter(prefix="/api/v1/compare", tags=["compare"], responses=_ERRORS)

    @router.get("")
    def compare(runs: Ids, split: Split = "test") -> Compared:
        """Return runs side by side: how far and how good they are, and which settings differ."""
        return comparing.table(_listed(runs), split)

    @router.get("/curves")
    def curves(
        runs: Ids,
        metric: Annotated[str, Query(max_length=100)] = "loss",
        axis: Literal["epoch", "step", "time"] = "epoch",
    ) -> MetricCurves:
        """Return the curves of one metric."""
        return comparing.lines(_listed(runs), metric, axis)

    @router.get("/tests")
    def tests(
        runs: Ids,
        split: Split = "test",
        common: Annotated[bool, Query(description="Leave out subjects that not all were judged on.")] = False,
    ) -> Tested:
        """Return whether differences between runs are more than chance, as `cingulum compare` does."""
        return comparing.tests(_listed(runs), split, common=common)

    @router.get("/events", response_class=Response)
    async def events(request: Request, runs: Ids) -> Response:
        """Send a server-sent event whenever one of the runs has changed."""
        return stream(request, lambda: comparing.stamp(_listed(runs)))

    return router


def _listed(runs: str) -> list[str]:
    return [one.strip() for one in runs.split(",") if one.strip()]
