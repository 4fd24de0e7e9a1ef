"""Subjects spread over processes that end together, whatever ends them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.synchronize import Event
from pathlib import Path

from trainer.data.phantom import bids, image
from trainer.data.phantom.people import Person
from trainer.data.phantom.template import Template
from trainer.errors import CingulumError


@dataclass(frozen=True)
class Task:
    """What every subject of a cohort has in common."""

    out: Path
    template: Template
    seed: int
    gap: float


_task: Task
_stop: Event


def make_all(task: Task, people: Sequence[Person], workers: int, on_done: Callable[[Person], None]) -> None:
    """Make and write every one of `people`.

    Args:
        task: what they have in common.
        people: who is still to be made.
        workers: processes; the files do not depend on it.
        on_done: called here, in this process, after each subject.

    Raises:
        InputError: a file cannot be written.
        CingulumError: a worker died.
        KeyboardInterrupt: after every worker has ended; a subject begun is finished, no other is begun.
    """
    # Spawned, not forked: a caller may have threads (a progress bar has), and a fork would copy their locks.
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(min(workers, len(people)), context, initializer=_begin, initargs=(task, stop))
    try:
        for done in as_completed(_submit(pool, people)):
            on_done(done.result())
    except BrokenProcessPool as error:
        raise CingulumError(
            f"a process that made phantoms for {task.out} was killed, most likely for lack of memory",
            cure="run the same command again with --workers 1: it goes on where it stopped",
        ) from error
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, people: Sequence[Person]) -> list[Future[Person]]:
    """Hand out the work with SIGINT held back, so that Ctrl-C reaches this process, not its workers."""
    resource_tracker.ensure_running()  # it would unblock SIGINT if it started later (CPython before 3.13)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return [pool.submit(_make_one, person) for person in people]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(task: Task, stop: Event) -> None:
    global _task, _stop
    _task, _stop = task, stop
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would otherwise wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _make_one(person: Person) -> Person:
    if not _stop.is_set():
        phantom = image.make(_task.template, person, _task.seed, _task.gap)
        bids.write_subject(_task.out, person, phantom, _task.template.affine)
    return person
