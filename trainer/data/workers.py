"""Apply a function to many values in several processes: results in order, memory bounded, an end in any case.

Each worker has a pipe of its own and shares no lock with anyone, so none can keep another waiting. (A
`ProcessPoolExecutor` hung here after a second Ctrl-C: a worker waited on the shared queue for ever.)
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar, cast

from trainer.errors import CingulumError

Given = TypeVar("Given")
Made = TypeVar("Made")


def default_workers() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0))


def in_order(function: Callable[[Given], Made], values: Iterable[Given], workers: int) -> Iterator[Made]:
    """Yield `function(value)` for every value, in the order of the values, whatever the number of workers.

    At most two values per worker are under way or wait to be taken. Workers end when the iteration does,
    however it ends; those of a parent that was killed end with the value they are at or the next.

    Args:
        function: goes once to each worker, so what all values have in common belongs in it
            (`functools.partial`). Importable by name, since workers are fresh interpreters: a fork would copy
            open HDF5 files, and the locks of the caller's threads. Where it must not be cut short it holds
            SIGTERM back (`held_back`).
        values: read only as far as they are worked on.
        workers: processes, 1 or more.

    Raises:
        ValueError: `workers` is less than 1.
        CingulumError: a worker was killed from outside.
        Exception: what `function` raised, as itself, once every result before it was taken.
    """
    if workers < 1:
        raise ValueError(f"workers must be 1 or more, not {workers}")
    crew: dict[Connection, BaseProcess] = {}
    try:
        _start(crew, workers)
        for link, worker in crew.items():
            _give(link, worker, function)
        todo = enumerate(values)
        busy = dict.fromkeys(crew, 0)
        answers: dict[int, _Answer[Made]] = {}
        sent = taken = 0
        while True:
            while sent - taken < 2 * workers and (task := next(todo, None)) is not None:
                link = min(busy, key=busy.__getitem__)
                _give(link, crew[link], task)
                busy[link] += 1
                sent += 1
            if taken == sent:
                return
            while taken not in answers:
                for ready in connection.wait(list(crew)):
                    link = cast(Connection, ready)  # wait() is typed for sockets, too
                    answer = _take(link, crew[link])
                    busy[link] -= 1
                    answers[answer.number] = answer
            yield answers.pop(taken).result()
            taken += 1
    finally:
        with _deaf_to_ctrl_c():  # a second one must not stop the clearing up
            for worker in crew.values():
                worker.terminate()
            for link in crew:
                link.close()  # a worker that has not got all of its function yet waits for the rest
            for worker in crew.values():
                worker.join()


@contextmanager
def held_back(*which: signal.Signals) -> Iterator[None]:
    """Block signals in this thread, and in the processes and threads that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, which)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class _Answer(Generic[Made]):
    """The result of one value, on its way back."""

    number: int
    made: Made | None = None
    error: Exception | None = None
    where: str = ""

    def result(self) -> Made:
        if self.error is not None:
            raise self.error from _InWorker(self.where)
        return cast(Made, self.made)


class _InWorker(Exception):
    """Shows the worker's traceback, which does not travel with its error."""

    def __str__(self) -> str:
        return f"in a worker process:\n{self.args[0]}"


def _start(crew: dict[Connection, BaseProcess], count: int) -> None:
    """Start workers with SIGINT and SIGTERM held back in all of their threads, BLAS's own too.

    So Ctrl-C reaches this process and not them, and each lets SIGTERM through only where it may end.
    """
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # it would let SIGINT through if it started later (CPython before 3.13)
    with held_back(signal.SIGINT, signal.SIGTERM):
        for _ in range(count):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(theirs,), daemon=True)
            worker.start()
            theirs.close()  # so that either side sees the other's end
            crew[ours] = worker


def _give(link: Connection, worker: BaseProcess, thing: object) -> None:
    try:
        link.send(thing)
    except OSError:
        raise _lost(worker) from None


def _take(link: Connection, worker: BaseProcess) -> _Answer[Any]:
    try:
        return cast("_Answer[Any]", link.recv())
    except (EOFError, OSError):
        raise _lost(worker) from None


def _lost(worker: BaseProcess) -> CingulumError:
    worker.join()
    if worker.exitcode == -signal.SIGKILL:
        return CingulumError(
            "A worker process was killed, most likely because memory ran out.",
            cure="Run the same command again with fewer --workers: it goes on where it stopped.",
        )
    return CingulumError(
        f"A worker process ended with exit code {worker.exitcode}; its output is above.",
        cure="Run the same command again: it goes on where it stopped.",
    )


def _work(link: Connection) -> None:
    """Process one value after another as they come, until the other end is gone."""
    answers: queue.SimpleQueue[_Answer[Any]] = queue.SimpleQueue()
    # A thread sends, so that work goes on while the parent is busy with earlier results.
    threading.Thread(target=_send_home, args=(link, answers), daemon=True).start()
    try:
        function = link.recv()
        # Only now: importing the function may have started threads, which would let SIGTERM through for ever.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        while True:
            answers.put(_answer(function, *link.recv()))
    except (EOFError, ConnectionError):
        return
    except OSError as error:
        # The parent went in the middle of a message; multiprocessing says so without a number.
        if error.errno is not None:
            raise


def _answer(function: Callable[[Any], Any], number: int, value: Any) -> _Answer[Any]:
    try:
        return _Answer(number, function(value))
    except Exception as error:  # whatever it is: the parent raises it
        return _Answer(number, error=error, where=traceback.format_exc())


def _send_home(link: Connection, answers: queue.SimpleQueue[_Answer[Any]]) -> None:
    try:
        while True:
            link.send(answers.get())
    except ConnectionError:
        return  # the parent is gone, which ends the main thread, too, where it may end
    except Exception:  # such as a result that cannot be sent; the parent would wait for it
        traceback.print_exc()
        os._exit(1)


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
