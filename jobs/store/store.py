"""Every job, the state of its tasks, and the history of their changes, in one database.

Values go in and come out; no connection is held between two calls. Several processes and threads may use
one store at once. docs/reference/store.md has the tables.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import sqlalchemy as sql

from jobs.home import home
from jobs.job import Action, Job, StateChange, label, split_label
from jobs.schedulers.base import TaskState
from jobs.spec import JobSpec
from jobs.store import address, admission, keys, listing, notes, rows, sharing, statements, submitter, tables
from jobs.store.listing import JobQuery
from jobs.store.notes import Noted
from jobs.store.sharing import Viewer
from trainer.errors import JobError, StoreError


def default() -> str | Path:
    """Return the path or URL of the store: `$CINGULUM_STORE`, else `jobs.db` in `home()`."""
    return os.environ.get("CINGULUM_STORE") or home() / "jobs.db"


class Store:
    """The store at a path (SQLite) or URL; default: `$CINGULUM_STORE`, else `jobs.db` in `home()`.

    Raises:
        JobError: not a URL that can be used.
        StoreError: the database cannot be reached, or a newer Cingulum made it. So do all methods.
    """

    def __init__(self, where: str | Path | None = None) -> None:
        self._engine = tables.open_database(where or default())

    def __str__(self) -> str:
        """Where it is; of a URL, without its secrets."""
        url = self._engine.url
        return str(url.database) if url.get_backend_name() == "sqlite" else address.shown(url)

    def check_whole(self) -> None:
        """Read all of it; raises DamagedStoreError where SQLite's file is damaged."""
        tables.check_whole(self._engine)
        self.list()

    @property
    def is_empty(self) -> bool:
        """Return whether no job was ever noted."""
        with tables.reading(self._engine) as connection:
            return connection.execute(sql.select(tables.jobs.c.number).limit(1)).first() is None

    def get(self, text: str, viewer: Viewer | None = None) -> Job:
        """Return the job of this id; one of its tasks, `4711_3`, names it, too, and so does `new-12` ever
        after.

        Slurm may count from the beginning again: the newest job of that id is meant, of those that the
        viewer may look at (None: of all).

        Raises:
            JobError: there is none, or it is not an id.
        """
        with tables.reading(self._engine) as connection:
            matching = statements.jobs(connection, statements.named(text), _seen_by(viewer), limit=1)
        if not matching:
            tables.check_whole(self._engine)  # an index that is damaged finds nothing
            raise JobError(f"There is no job {text!r} in {self}.", cure="`cingulum jobs` lists them.")
        return matching[0]

    def of_token(self, token: str) -> Job | None:
        """Return the job of a submission; None: there is none yet."""
        with tables.reading(self._engine) as connection:
            return next(iter(statements.jobs(connection, tables.jobs.c.token == token)), None)

    def several(self, texts: Sequence[str], viewer: Viewer | None = None) -> dict[str, Job]:
        """Return what `get` returns, by one question for all; ids that name no job are left out."""
        with tables.reading(self._engine) as connection:
            return statements.several(connection, texts, _seen_by(viewer))

    def free(self, spec: JobSpec, *, besides: Job | None = None) -> None:
        """Check that no job but `besides` waits or runs in the run folder of this one.

        Raises:
            JobError: one does.
        """
        with tables.reading(self._engine) as connection:
            admission.check(connection, spec, besides=None if besides is None else besides.number)

    def changes(self, text: str) -> list[StateChange]:
        """Return the history of a job, or of one task of it (`4711_3`), the oldest first; raises what `get`
        does.
        """
        job = self.get(text)
        _, task = split_label(text)
        table = tables.changes
        query = sql.select(table).where(table.c.job == job.number).order_by(table.c.number)
        if task is not None:
            query = query.where(table.c.task == task)
        with tables.reading(self._engine) as connection:
            return [rows.change(job, row) for row in connection.execute(query).mappings()]

    def shared_with(self, job: Job) -> list[str]:
        """Return the groups that may look at a job besides its user."""
        with tables.reading(self._engine) as connection:
            return sharing.of_job(connection, job.number)

    def actions(self, text: str) -> list[Action]:
        """Return what users did with a job, the oldest first; raises what `get` does."""
        table = tables.actions
        query = sql.select(table).where(table.c.job == self.get(text).number).order_by(table.c.number)
        with tables.reading(self._engine) as connection:
            return [rows.action(row) for row in connection.execute(query).mappings()]

    def asked_again(self, user: str) -> list[Job]:
        """Return the user's jobs that may run again though they had ended; see `jobs.store.listing`."""
        with tables.reading(self._engine) as connection:
            return listing.requeued(connection, user)

    def page(self, query: JobQuery) -> tuple[list[Job], int]:
        """Return one page of a list of jobs, and how many the whole list has."""
        with tables.reading(self._engine) as connection:
            return listing.page(connection, query)

    def counts(self, user: str) -> dict[str, int]:
        """Return how many jobs of the user are in each state."""
        with tables.reading(self._engine) as connection:
            return listing.counts(connection, user)

    def changes_after(self, number: int, user: str, limit: int) -> list[tuple[int, str, StateChange]]:
        """Return the user's changes of all jobs after one of a number; see `listing.changes_after`."""
        with tables.reading(self._engine) as connection:
            return listing.changes_after(connection, number, user, limit)

    def newest_change(self) -> int:
        """Return the number of the newest change of any job; 0: there is none."""
        with tables.reading(self._engine) as connection:
            return listing.newest_change(connection)

    def mentioning(self, viewer: Viewer, text: str, most: int = 200) -> list[Job]:
        """Return the newest jobs that the viewer may look at with this text in their specification."""
        with tables.reading(self._engine) as connection:
            return listing.mentioning(connection, viewer, text, most)

    def stamp(self, viewer: Viewer) -> tuple[int, int]:
        """Return what changes with any job that the viewer may look at."""
        with tables.reading(self._engine) as connection:
            return listing.stamp(connection, viewer)

    def add(
        self,
        token: str,
        spec: JobSpec,
        *,
        launcher: str,
        site: str,
        folder: Path,
        place: str = "",
        who: str | None = None,
        shared: Sequence[str] = (),
    ) -> Job:
        """Record, before it does so, that this process submits a job: all its tasks are SUBMITTING.

        `who` asked for it, as its history tells; groups of `shared` may look at it.

        Raises:
            JobError: another job, which it does not wait for, trains in its run folder; nothing was stored.
            TakenError: the token is that of another job; nothing was stored.
        """
        now = time.time()
        values = {
            "token": token,
            "launcher": launcher,
            "place": place,
            "site": site,
            "external": None,
            "folder": str(folder),
            "user": submitter.user(),
            "submitter": submitter.myself(),
            "submitted": now,
        }
        with tables.writing(self._engine) as connection:
            try:
                number = statements.insert(connection, values, spec, now)
            except sql.exc.IntegrityError as error:
                raise keys.taken(token) from error
            if who is not None:
                statements.act(connection, number, None, "submit", who)
            sharing.share(connection, number, shared)
            after = [statements.jobs(connection, statements.named(text), limit=1) for text in spec.after]
            admission.admit(connection, number, spec, waits_for=[job.number for (job,) in after])
            return statements.jobs(connection, tables.jobs.c.number == number)[0]

    def restore(self, noted: Iterable[Noted]) -> list[int]:
        """Add jobs that the store has lost, as SUBMITTING until launchers are asked; return their numbers.

        Those that it has, by their tokens, stay as they are. A job keeps its number where that is free.
        """
        with tables.writing(self._engine) as connection:
            return notes.take_in(connection, noted)

    def adopt(self, job: Job, external: str) -> Job:
        """Record the launcher's answer: from now on the job is `external`, and PENDING unless more is known.

        May be said twice, and of a job that was thought LOST.

        Raises:
            StoreError: the job was adopted under another name: it was submitted twice.
        """
        now = time.time()
        this_job = tables.jobs.c.number == job.number
        with tables.writing(self._engine) as connection:
            stored = statements.jobs(connection, this_job, lock=True)[0]
            if stored.external == external:
                return stored
            if stored.external is not None:
                raise StoreError(
                    f"Job {stored.label} (token {job.token}) exists twice: {stored.external} and {external}.",
                    cure=f"Cancel one of them with the tools of {job.launcher}.",
                )
            connection.execute(
                tables.jobs.update()
                .where(this_job)
                .values(external=external, label=label(job.launcher, job.number, external))
            )
            statements.write(
                connection, stored, [TaskState(task.task, "PENDING") for task in stored.tasks], now
            )
            return statements.jobs(connection, this_job)[0]

    def record(self, answers: Iterable[tuple[Job, Sequence[TaskState]]]) -> list[StateChange]:
        """Record the states that launchers reported, and what of them is new in the history.

        Each job is as it was read before the launcher was asked. Where the store has changed since, the
        answer may be older than what is known, and is left out: the next one will do. Tasks that are not
        mentioned keep their state; see `jobs.job.believed` for what cannot happen.

        Returns:
            the changes, as in the history.
        """
        # In one order, lest two who write wait for each other's rows.
        ordered = sorted(answers, key=lambda pair: pair[0].number)
        if not ordered:
            return []
        now = time.time()
        changes: list[StateChange] = []
        with tables.writing(self._engine) as connection:
            for job, states in ordered:
                current = statements.jobs(connection, tables.jobs.c.number == job.number, lock=True)
                if current and current[0].revision == job.revision:
                    changes += statements.write(connection, current[0], states, now)
        return changes

    def requeue(self, job: Job, task: int | None = None) -> list[StateChange]:
        """Record that a launcher was asked to start a job, or one task of it, again: REQUEUED."""
        chosen = [state for state in job.tasks if task is None or state.task == task]
        again = [TaskState(state.task, "REQUEUED", restarts=state.restarts + 1) for state in chosen]
        return self.record([(job, again)])

    def missing(self, absent: Iterable[tuple[Job, Sequence[int]]]) -> dict[tuple[int, int], float]:
        """Record which tasks of each job, and no others, its launcher no longer knows.

        Returns:
            since when each has been missing at every refresh, seconds since 1970, by numbers of job and task.
        """
        table = tables.tasks
        query = sql.select(table.c.job, table.c.task, table.c.missing_since)
        with tables.reading(self._engine) as connection:
            found = connection.execute(query.where(table.c.missing_since.is_not(None)))
            before = {(row.job, row.task): row.missing_since for row in found}
        now = time.time()
        since: dict[tuple[int, int], float] = {}
        values: dict[tuple[int, int], float | None] = {}
        for job, gone in absent:
            for task in job.tasks:
                key = job.number, task.task
                if task.task in gone:
                    since[key] = before.get(key, now)
                    if key not in before:
                        values[key] = now
                elif key in before:
                    values[key] = None
        if values:  # seldom: most refreshes need not wait for who writes
            with tables.writing(self._engine) as connection:
                for (number, name), value in sorted(values.items()):  # as in `record`
                    which = (table.c.job == number) & (table.c.task == name)
                    connection.execute(table.update().where(which).values(missing_since=value))
        return since

    def submission(self, key: str, digest: str, fresh: Sequence[str] = ()) -> list[str]:
        """Return the tokens under which what this user asks for by a key is submitted.

        Those of `fresh` are kept where nothing was asked for by this key before; see `keys.tokens`.
        """
        with tables.writing(self._engine) as connection:
            return keys.tokens(connection, submitter.user(), key, digest, fresh)

    def act(self, job: Job, task: int | None, action: str, who: str) -> None:
        """Record that a user asks for something to be done with a job, or one task of it."""
        with tables.writing(self._engine) as connection:
            statements.act(connection, job.number, task, action, who)

    def share(self, job: Job, groups: Sequence[str], who: str, *, stop: bool = False) -> list[str]:
        """Let groups look at a job, or with `stop` no longer; return all groups that may then.

        What changes is in the job's history.
        """
        with tables.writing(self._engine) as connection:
            changed = (sharing.stop if stop else sharing.share)(connection, job.number, groups)
            for name in changed:
                action = f"{'stop sharing' if stop else 'share'} with {name}"
                statements.act(connection, job.number, None, action, who)
            return sharing.of_job(connection, job.number)

    def list(
        self,
        *,
        states: Sequence[str] | None = None,
        user: str | None = None,
        changed_since: float | None = None,
        shared_with: Viewer | None = None,
    ) -> list[Job]:
        """Return the jobs, the newest first, that match all criteria.

        Args:
            states: in one of these (of the job as a whole).
            user: submitted by this one.
            changed_since: of which something new was learnt then or later, seconds since 1970.
            shared_with: of other users, and shared with a group of this one.
        """
        columns = tables.jobs.c
        criteria = [] if user is None else [columns.user == user]
        if states is not None:
            criteria.append(columns.state.in_(states))
        if changed_since is not None:
            criteria.append(columns.changed >= changed_since)
        if shared_with is not None:
            criteria.append(sharing.of_others(shared_with))
        with tables.reading(self._engine) as connection:
            return statements.jobs(connection, *criteria)


def _seen_by(viewer: Viewer | None) -> sql.ColumnElement[bool]:
    return sql.true() if viewer is None else sharing.visible(viewer)
