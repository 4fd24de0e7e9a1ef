"""Values spread over processes: results in order, bounded, and an end whatever happens."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from wording import fails_with

from trainer.data.workers import held_back, in_order
from trainer.errors import CingulumError, ImageError

if multiprocessing.parent_process() is not None:
    # As BLAS does when numpy is imported: a thread that would let a signal through.
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def slowest_first(number: int) -> tuple[int, int]:
    time.sleep(0.3 if number == 0 else 0)
    return number, os.getpid()


def refuse(number: int) -> int:
    if number == 1:
        raise ImageError("image 1 is bad", cure="mend it")
    if number == 3:
        raise ZeroDivisionError("three")
    return number


def fail_as_two_do(number: int) -> int:
    if number == 0:
        time.sleep(0.3)
    raise ValueError(f"value {number}")


def die(how: signal.Signals, number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), how)
    return number


def leave(number: int) -> int:
    sys.exit(7)


def make_unsendable(number: int) -> object:
    return lambda: number


def make_large(number: int) -> bytes:
    return bytes([number]) * 2_000_000


def write_slowly(folder: Path, number: int) -> None:
    with held_back(signal.SIGTERM):
        (folder / f"{number}.begun").touch()
        time.sleep(0.5 if number else 0)
        (folder / f"{number}.done").touch()


def wait_long(number: int) -> int:
    time.sleep(60)
    return number


def test_results_come_in_order_from_every_worker():
    results = list(in_order(slowest_first, range(9), 2))
    assert [number for number, _ in results] == list(range(9))
    assert len({pid for _, pid in results} - {os.getpid()}) == 2
    assert multiprocessing.active_children() == []


def test_no_value_is_no_result_and_no_worker_is_an_error():
    assert list(in_order(refuse, [], 1)) == []
    with pytest.raises(ValueError, match="not 0"):
        list(in_order(refuse, [1], 0))


def test_values_are_read_only_as_far_as_two_per_worker():
    read: list[int] = []

    def values():
        for number in range(20):
            read.append(number)
            yield number

    results = in_order(make_large, values(), 2)
    for taken in range(1, 6):
        assert next(results)[0] == taken - 1
        assert len(read) == 4 + taken - 1
    results.close()
    assert multiprocessing.active_children() == []


def test_results_larger_than_a_pipe_do_not_block():
    assert [made[0] for made in in_order(make_large, range(9), 1)] == list(range(9))


def test_an_error_is_raised_as_itself_after_the_results_before_it():
    results = in_order(refuse, range(9), 2)
    assert next(results) == 0
    with fails_with(ImageError) as caught:
        next(results)
    assert caught.value.cure == "mend it"
    assert "in refuse" in str(caught.value.__cause__), "the worker's traceback"
    assert multiprocessing.active_children() == []


def test_of_two_errors_the_first_value_s_is_raised():
    with pytest.raises(ValueError, match="value 0"):
        list(in_order(fail_as_two_do, range(4), 2))


def test_a_worker_that_is_killed_is_told_and_the_others_end():
    with fails_with(CingulumError) as caught:
        list(in_order(functools.partial(die, signal.SIGKILL), range(4), 2))
    assert caught.value.exit_code == 1
    assert "again" in str(caught.value)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("function", "code"), [(functools.partial(die, signal.SIGTERM), -15), (leave, 7), (make_unsendable, 1)]
)
def test_a_worker_that_ends_by_itself_is_told_with_its_exit_code(function, code):
    with pytest.raises(CingulumError, match=f"ended with exit code {code};"):
        list(in_order(function, range(4), 2))
    assert multiprocessing.active_children() == []


def test_a_loop_that_is_left_ends_workers_in_the_midst_of_a_value():
    begun = time.monotonic()
    with pytest.raises(ImageError):
        for _ in in_order(refuse_and_wait, range(9), 2):
            raise ImageError("of the loop")
    assert time.monotonic() - begun < 30
    assert multiprocessing.active_children() == []


def test_what_holds_sigterm_back_is_finished_before_its_worker_ends(tmp_path):
    results = in_order(functools.partial(write_slowly, tmp_path), range(9), 2)
    next(results)
    while not (tmp_path / "1.begun").exists():
        time.sleep(0.01)
    results.close()
    begun, done = ({path.stem for path in tmp_path.glob(f"*.{state}")} for state in ("begun", "done"))
    assert {"0", "1"} <= begun == done < set("012345678")


@pytest.mark.parametrize("size", [10, 30_000_000])
def test_workers_that_are_still_starting_end(size):
    def interrupted():
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        next(in_order(functools.partial(die, bytes(size)), interrupted(), 2))
    assert multiprocessing.active_children() == []


def refuse_and_wait(number: int) -> int:
    return wait_long(number) if number else 0


def test_workers_of_a_killed_parent_end_with_the_value_they_are_at():
    script = (
        "import time; from trainer.data.workers import in_order\n"
        "results = in_order(time.sleep, [0.01] * 1000, 2)\n"
        "for _ in results: print('one', flush=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "one\n"
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    process.kill()
    process.communicate(timeout=10)
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
