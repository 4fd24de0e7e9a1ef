"""Rebuild a lost or damaged store from the jobs' own folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobs.schedulers import registry
from jobs.store import notes, tables
from jobs.store.store import Store, default
from jobs.store.sync import refresh
from trainer.errors import DamagedStoreError


@dataclass(frozen=True)
class Rebuilt:
    """Result of a rebuild.

    Attributes:
        store: with all jobs.
        taken_in: numbers of the jobs that were not in it.
        unreadable: folders that hold no job that can be read, and why.
        aside: the damaged file under its new name; None: it was whole, or not there.
        silent: launchers that did not answer, and why: states of their jobs are not known yet.
    """

    store: Store
    taken_in: tuple[int, ...]
    unreadable: tuple[str, ...]
    aside: Path | None
    silent: tuple[str, ...]


def rebuild() -> Rebuilt:
    """Add every job that has a folder to the user's store, and ask launchers for their states.

    Jobs that launchers have forgotten ended as the files of their folders say, else they are LOST. Jobs that
    the store has stay as they are: it may be done at any time.

    Raises:
        StoreError: the store cannot be used for another reason than damage.
    """
    aside = None
    try:
        store = Store()
        store.check_whole()
    except DamagedStoreError:
        aside = tables.set_aside(default())
        store = Store()
    found, unreadable = notes.noted()
    taken_in = store.restore(found)
    chosen = [job for job in store.list() if job.number in set(taken_in)]
    launchers = {name: registry.named(name) for name in sorted({job.launcher for job in chosen})}
    # No waiting for jobs to appear in a queue: these were submitted long ago.
    answers = refresh(store, launchers, grace_s=0) if chosen else None
    silent = [f"{name}: {error.message}" for name, error in answers.silent.items()] if answers else []
    return Rebuilt(store, tuple(taken_in), tuple(unreadable), aside, tuple(silent))


def is_lost(store: Store) -> bool:
    """Return whether the store was removed: it lists no job though there are folders of jobs."""
    return store.is_empty and any(notes.folders())
