"""Runs as the service tells them, however they were started: those directly within folders that it was given.

An id stands for the real path of a run folder, and is looked up among those that a look has found.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cingulum.service.failures import NotHere
from cingulum.service.recent import Recent
from cingulum.service.run_facts import RunPageFacts, is_inside, text_of
from cingulum.service.schema import RunDetail, RunPage, RunRow
from jobs.requests import describing
from jobs.store.listing import JobQuery
from trainer.errors import CingulumError
from trainer.leases import claims
from trainer.run_folder import crossval_folder
from trainer.run_folder.record import RunFolder

MOST = 1000
# Seconds for which a look at all folders is good, and a page of which nothing has changed.
FRESH_S, _PAGE_S = 0.8, 10.0
STATES = ("RUNNING", "COMPLETED", "STOPPED")


@dataclass(frozen=True)
class RunEntry:
    """A run folder.

    Attributes:
        id: of its real path.
        folder: itself, links followed.
        name: of the folder, as text.
        state: one of STATES.
        started, changed: when its configuration was written, which each start does first, and the newest of
            its files; seconds since 1970.
        stamp: what changes when there is more to tell.
    """

    id: str
    folder: RunFolder
    name: str
    state: str
    started: float
    changed: float
    stamp: tuple[object, ...]


@dataclass(frozen=True)
class Look:
    """What a look at all folders found.

    Attributes:
        runs: the newest by id, the last started first.
        crossvals: folders of cross-validations by id.
        warnings: what could not be looked at.
        stamp: what changes when there is more to tell in a list, whichever; short, as it is kept with pages.
    """

    runs: dict[str, RunEntry]
    crossvals: dict[str, Path]
    warnings: list[str]
    stamp: str


# What a list may be sorted by.
SORTS: dict[str, Callable[[RunEntry], float | str]] = {
    "started": lambda run: run.started,
    "changed": lambda run: run.changed,
    "name": lambda run: run.name.lower(),
    "state": lambda run: run.state,
}


class RunsNow:
    """Runs in folders of the user's choice.

    Args:
        folders: in which run folders lie; one that is not there yet is empty.
        facts: reads run folders.
        fresh_s: see FRESH_S.
    """

    def __init__(self, folders: Sequence[Path], facts: RunPageFacts, *, fresh_s: float = FRESH_S) -> None:
        self.facts = facts
        self._folders = [folder.resolve() for folder in folders]
        self._looks: Recent[Look] = Recent(fresh_s)
        self._pages: Recent[RunPage] = Recent(_PAGE_S)

    @property
    def warnings(self) -> list[str]:
        """Return what could not be looked at."""
        return self._now().warnings

    def all(self) -> list[RunEntry]:
        """Return the runs, the last started first."""
        return list(self._now().runs.values())

    def crossvals(self) -> dict[str, Path]:
        """Return the folders of cross-validations, by id."""
        return self._now().crossvals

    def crossval(self, identity: str) -> RunFolder:
        """Return the folder of a cross-validation, whose report lies where that of a run does."""
        folder = self._now().crossvals.get(identity)
        if folder is None:
            raise NotHere(f"There is no cross-validation {identity!r}.")
        return RunFolder(folder)

    def page(self, query: JobQuery) -> RunPage:
        """Return a page of the list."""
        return self._pages.get((query, self.list_stamp()), lambda: self._page(query))

    def list_stamp(self) -> str:
        """Return what changes when there is more to tell in a list, whichever."""
        return self._now().stamp

    def find(self, identity: str) -> RunEntry:
        """Return the run of an id; raises NotHere where there is none."""
        run = self._now().runs.get(identity)
        if run is None:
            raise NotHere(f"There is no run {identity!r}.", cure="GET /api/v1/runs lists them.")
        return run

    def holding(self, folder: Path) -> RunEntry | None:
        """Return the run in this folder; None where the list does not have it."""
        return self._now().runs.get(_id(folder.resolve()))

    def detail(self, run: RunEntry) -> RunDetail:
        """Return all of a run."""
        held = self.facts.run(run.folder, is_running=run.state == "RUNNING")
        return RunDetail(**{**self._row(run).model_dump(), **held.model_dump()})

    def _page(self, query: JobQuery) -> RunPage:
        look, text = self._now(), query.text.lower()
        runs = [
            run
            for run in look.runs.values()
            if text in run.name.lower() and (not query.states or run.state in query.states)
        ]
        runs.sort(key=SORTS[query.sort], reverse=query.descending)
        rows = [self._row(run) for run in runs[query.offset : query.offset + query.limit]]
        return RunPage(
            runs=rows, total=len(runs), offset=query.offset, limit=query.limit, warnings=look.warnings
        )

    def _row(self, run: RunEntry) -> RunRow:
        return RunRow(
            id=run.id,
            name=run.name,
            state=run.state,
            started=describing.iso(run.started) or "",
            changed=describing.iso(run.changed) or "",
            strategy=self.facts.strategy(run.folder),
            progress=self.facts.progress(run.folder, is_running=run.state == "RUNNING"),
            best=self.facts.best(run.folder),
        )

    def _now(self) -> Look:
        return self._looks.get((), self._look)

    def _look(self) -> Look:
        runs: dict[str, RunEntry] = {}
        crossvals: dict[str, Path] = {}
        warnings = []
        for folder in self._folders:
            try:
                for entry in self._within(folder):
                    if isinstance(entry, Path):
                        crossvals[_id(entry)] = entry
                    else:
                        runs[entry.id] = entry
            except FileNotFoundError:
                pass
            except OSError as error:
                warnings.append(f"{text_of(folder)}: cannot be looked at ({error.strerror}).")
        newest = sorted(runs.values(), key=lambda run: (run.started, run.id), reverse=True)
        if len(newest) > MOST:
            warnings.append(f"The newest {MOST:,} of {len(newest):,} runs are shown.")
        kept = {run.id: run for run in newest[:MOST]}
        told = repr(([(run.id, run.state, run.stamp) for run in kept.values()], crossvals, warnings))
        return Look(kept, crossvals, warnings, hashlib.sha256(told.encode()).hexdigest())

    def _within(self, folder: Path) -> Iterator[RunEntry | Path]:
        """Runs, and folders of cross-validations."""
        with os.scandir(folder) as entries:
            for entry in entries:
                # No run folder, one that is being removed, or a loop of links.
                with contextlib.suppress(CingulumError, OSError, RuntimeError):
                    path = Path(entry.path)
                    if entry.is_symlink() and not is_inside(path, folder):
                        continue
                    if crossval_folder.is_crossval(path):
                        yield path.resolve()
                    else:
                        yield self._found(RunFolder.open(path.resolve()))

    def _found(self, run: RunFolder) -> RunEntry:
        stamp = self.facts.stamp(run)
        state = "COMPLETED" if run.result.is_file() else "RUNNING" if is_trained(run.path) else "STOPPED"
        return RunEntry(
            id=_id(run.path),
            folder=run,
            name=text_of(run.path.name),
            state=state,
            started=run.config.stat().st_mtime,
            changed=max((one[0] / 1e9 for one in stamp if one is not None), default=0.0),
            stamp=stamp,
        )


def _id(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def is_trained(folder: Path) -> bool:
    """Return whether a process seems to train the run in this folder now.

    It is only shown, and must not take time: of a process on another host the age of its heartbeat is taken
    by our own clock, which `claims.holder` does not trust.
    """
    place = os.fspath(folder)
    with contextlib.suppress(CingulumError, OSError):
        owner = claims.last(place)
        if owner is None or not claims.has_staging(place, owner):
            return False
        gone = owner.is_gone()
        if gone is not None:
            return not gone
        beat = Path(claims.staging_of(place, owner.token), claims.HEARTBEAT).stat().st_mtime
        return time.time() - beat < claims.SILENT_S
    return False
