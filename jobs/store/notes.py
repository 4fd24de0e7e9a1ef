"""Notes in a job's folder from which a lost or damaged store can be rebuilt.

Each submission leaves `job.json` beside `spec.json`: what the store's row holds and no launcher can tell.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sql

from jobs.home import TOKEN, home
from jobs.job import Job
from jobs.local.attended_files import TERMS
from jobs.schedulers import registry
from jobs.spec import JobSpec
from jobs.store import admission, statements, submitter, tables
from trainer import atomic
from trainer.errors import JobError

SPEC = "spec.json"
NOTE = "job.json"


@dataclass(frozen=True)
class Noted:
    """A job as noted in its folder; the attributes are those of `Job`.

    `number` is None, and what follows it a guess, where a version before `job.json` submitted it.
    """

    token: str
    spec: JobSpec
    folder: str
    number: int | None
    launcher: str
    place: str
    site: str
    external: str | None
    user: str
    submitter: str
    submitted: float


_KEPT = ("number", "launcher", "place", "site", "external", "user", "submitter", "submitted")


def note(job: Job) -> None:
    """Write `job.json` of a job whose folder exists.

    Raises:
        OSError: it cannot be written.
    """
    values = {key: getattr(job, key) for key in _KEPT}
    atomic.write_private(Path(job.folder) / NOTE, json.dumps(values, indent=1) + "\n")


def folders() -> Iterator[Path]:
    """Return the folders of jobs in which a submission was noted."""
    for folder in sorted((home() / "jobs").glob("*")):
        if TOKEN.fullmatch(folder.name) and (folder / SPEC).is_file():
            yield folder


def noted() -> tuple[list[Noted], list[str]]:
    """Return every job that has a folder, the oldest first; and why unreadable folders cannot be read."""
    jobs, unreadable = [], []
    for folder in folders():
        try:
            jobs.append(_read(folder))
        except (OSError, ValueError, TypeError, KeyError, IndexError, JobError) as error:
            unreadable.append(f"{folder}: {error}")
    return sorted(jobs, key=lambda job: (job.submitted, job.token)), unreadable


def _read(folder: Path) -> Noted:
    spec = JobSpec.from_json((folder / SPEC).read_text(encoding="utf-8"))
    file = folder / NOTE
    if not file.is_file():
        return _guessed(folder, spec)
    values = json.loads(file.read_text(encoding="utf-8"))
    wanted = {field.name: field.type for field in dataclasses.fields(Noted) if field.name in _KEPT}
    kinds = {"str": str, "int | None": int, "str | None": (str, type(None)), "float": (int, float)}
    for key, kind in wanted.items():
        if not isinstance(values[key], kinds[str(kind)]):  # type: ignore[arg-type]
            raise ValueError(f"{NOTE}: {key} is {values[key]!r:.80}")
    if values["launcher"] not in registry.names():
        raise ValueError(f"{NOTE}: there is no launcher {values['launcher']!r:.80}")
    return Noted(token=folder.name, spec=spec, folder=str(folder), **{key: values[key] for key in _KEPT})


def _guessed(folder: Path, spec: JobSpec) -> Noted:
    """Guess a job of a version that left no `job.json`: a scheduler's, unless it has an attendant."""
    launcher = next(iter(registry.schedulers()))
    if (folder / TERMS).is_file():
        program = json.loads((folder / TERMS).read_text(encoding="utf-8"))["commands"][0][0]
        launcher = next((name for name in ("docker", "apptainer") if name in Path(program).name), "mpirun")
    submitted = (folder / SPEC).stat().st_mtime
    return Noted(
        folder.name, spec, str(folder), None, launcher, "", "", None, submitter.user(), "", submitted
    )


# Columns of a job that its folder tells.
_NOTED = ("token", "launcher", "place", "site", "external", "folder", "user", "submitter", "submitted")


def take_in(connection: sql.Connection, noted: Iterable[Noted]) -> list[int]:
    """Add what is not there, in a transaction that writes; see `jobs.store.store.Store.restore`."""
    table = tables.jobs
    taken_in = []
    known = set(connection.execute(sql.select(table.c.token)).scalars())
    numbers = set(connection.execute(sql.select(table.c.number)).scalars())
    for job in noted:
        if job.token in known:
            continue
        values = {key: getattr(job, key) for key in _NOTED}
        if job.number is not None and job.number not in numbers:
            values["number"] = job.number
        number = statements.insert(connection, values, job.spec, time.time())
        admission.follow(connection, number, job.spec, "SUBMITTING")
        taken_in.append(number)
        numbers.add(number)
    if connection.dialect.name == "postgresql":  # it counts on from its own count
        newest = sql.select(sql.func.max(table.c.number)).scalar_subquery()
        counter = sql.func.pg_get_serial_sequence("jobs", "number")
        connection.execute(sql.select(sql.func.setval(counter, newest)))
    return taken_in
