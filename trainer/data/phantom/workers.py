"""Subjects spread over processes that end together, whatever ends them.

Each worker has a pipe of its own and shares no lock with anyone, so none can keep another waiting. (A
`ProcessPoolExecutor` hung here after a second Ctrl-C: a worker waited on the shared queue for ever.)
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import cast

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


def make_all(task: Task, people: Sequence[Person], workers: int, on_done: Callable[[], None]) -> None:
    """Make and write every one of `people`.

    Args:
        task: what they have in common.
        people: who is still to be made.
        workers: processes; the files do not depend on it.
        on_done: called here, in this process, after each subject.

    Raises:
        InputError: a file cannot be written.
        CingulumError: a worker died.
        KeyboardInterrupt: after every worker has ended; no file is left half written.
    """
    todo = iter(people)
    crew = _start(min(workers, len(people)))
    try:
        for link, worker in crew.items():
            _give(link, worker, task, next(todo))
        done = 0
        while done < len(people):
            for ready in connection.wait(list(crew)):
                link = cast(Connection, ready)  # wait() is typed for sockets, too
                _take(link, crew[link])
                done += 1
                on_done()
                if (person := next(todo, None)) is not None:
                    _give(link, crew[link], person)
    finally:
        with _deaf_to_ctrl_c():  # a second one must not stop the clearing up
            for worker in crew.values():
                worker.terminate()
            for worker in crew.values():
                worker.join()


def _start(count: int) -> dict[Connection, BaseProcess]:
    """Start workers with SIGINT and SIGTERM held back in all of their threads, BLAS's own too.

    So Ctrl-C reaches this process and not them, and each lets SIGTERM through only where it may end.
    """
    # Spawned, not forked: a caller may have threads (a progress bar has), and a fork would copy their locks.
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # it would let SIGINT through if it started later (CPython before 3.13)
    crew: dict[Connection, BaseProcess] = {}
    with _held_back(signal.SIGINT, signal.SIGTERM):
        for _ in range(count):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(theirs,), daemon=True)
            worker.start()
            theirs.close()  # so that either side sees the other's end
            crew[ours] = worker
    return crew


def _give(link: Connection, worker: BaseProcess, *things: Task | Person) -> None:
    try:
        for thing in things:
            link.send(thing)
    except OSError:
        raise _lost(worker) from None


def _take(link: Connection, worker: BaseProcess) -> None:
    try:
        error = link.recv()
    except (EOFError, OSError):
        raise _lost(worker) from None
    if error is not None:
        raise error


def _lost(worker: BaseProcess) -> CingulumError:
    worker.join()
    if worker.exitcode == -signal.SIGKILL:
        return CingulumError(
            "a process that made phantoms was killed, most likely for lack of memory",
            cure="run the same command again with --workers 1: it goes on where it stopped",
        )
    return CingulumError(
        f"a process that made phantoms ended with exit code {worker.exitcode}; what it said is above",
        cure="run the same command again: it goes on where it stopped",
    )


def _work(link: Connection) -> None:
    """Make one person after another as they come, until the other end is gone."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        task = link.recv()
        while True:
            link.send(_make(task, link.recv()))
    except (EOFError, ConnectionError):
        return


def _make(task: Task, person: Person) -> CingulumError | None:
    phantom = image.make(task.template, person, task.seed, task.gap)
    try:
        with _held_back(signal.SIGTERM):  # what ends a worker waits until the file is whole
            bids.write_subject(task.out, person, phantom, task.template.affine)
    except CingulumError as error:
        return error
    return None


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Ignore SIGINT. (Holding it back would not do: it would reach another thread, such as BLAS's.)"""
    if threading.current_thread() is not threading.main_thread():
        yield  # KeyboardInterrupt is raised in the main thread only
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _held_back(*which: signal.Signals) -> Iterator[None]:
    """Block signals for this thread, and for the processes it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, which)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
