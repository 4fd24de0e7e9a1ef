"""What the store tells: jobs, their tasks, and the history of their changes. Nothing here writes.

Values come out; no connection is held between two calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sql

from jobs import admission, asked_again, listing, rows, sharing, statements, store_address, tables
from jobs.job import Action, Change, Job, split_label
from jobs.listing import Listing
from jobs.sharing import Viewer
from jobs.spec import JobSpec
from trainer.errors import JobError


class Reader:
    """Reads the store at a path (SQLite) or URL.

    Raises:
        JobError: not a URL that can be used.
        StoreError: the database cannot be reached, or a newer Cingulum made it. So do all methods.
    """

    def __init__(self, where: str | Path) -> None:
        self._engine = tables.open_database(where)

    def __str__(self) -> str:
        """Where it is; of a URL, without its secrets."""
        url = self._engine.url
        return str(url.database) if url.get_backend_name() == "sqlite" else store_address.shown(url)

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
            found = statements.jobs(connection, statements.named(text), _seen_by(viewer), limit=1)
        if not found:
            tables.check_whole(self._engine)  # an index that is damaged finds nothing
            raise JobError(f"There is no job {text!r} in {self}.", cure="`cingulum jobs` lists them.")
        return found[0]

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

    def changes(self, text: str) -> list[Change]:
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
        """Return the user's jobs that may run again though they had ended; see `jobs.asked_again`."""
        with tables.reading(self._engine) as connection:
            return asked_again.jobs(connection, user)

    def page(self, wanted: Listing) -> tuple[list[Job], int]:
        """Return one page of a list of jobs, and how many the whole list has."""
        with tables.reading(self._engine) as connection:
            return listing.page(connection, wanted)

    def counts(self, user: str) -> dict[str, int]:
        """Return how many jobs of the user are in each state."""
        with tables.reading(self._engine) as connection:
            return listing.counts(connection, user)

    def changes_after(self, number: int, user: str, limit: int) -> list[tuple[int, str, Change]]:
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
        wanted = [] if user is None else [columns.user == user]
        if states is not None:
            wanted.append(columns.state.in_(states))
        if changed_since is not None:
            wanted.append(columns.changed >= changed_since)
        if shared_with is not None:
            wanted.append(sharing.of_others(shared_with))
        with tables.reading(self._engine) as connection:
            return statements.jobs(connection, *wanted)


def _seen_by(viewer: Viewer | None) -> sql.ColumnElement[bool]:
    return sql.true() if viewer is None else sharing.visible(viewer)
