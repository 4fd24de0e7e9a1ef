"""Batches are handed out without a copy, never change under who keeps them, and take bounded memory."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf
from wording import fails_with

from trainer.data.loading import batch_reader
from trainer.data.loading.batch_reader import Batches, signature
from trainer.data.shards import thread_memory
from trainer.errors import ShardError

SAMPLES = 3
SPEC = signature(SAMPLES, ((4, 5), np.float32), ((), np.int32))


def numbered(number: int, places: Sequence[np.ndarray]) -> None:
    """Sample n is full of n."""
    x, y = places
    x[...] = number
    y[...] = number


def made(fill=numbered, batches: int = 20, threads: int = 2, ahead: int = 2, **options) -> Batches:
    return Batches(fill, batches, SPEC, threads=threads, ahead=ahead, **options)


def expected(number: int) -> np.ndarray:
    numbers = np.arange(number * SAMPLES, (number + 1) * SAMPLES, dtype=np.float32)
    return np.broadcast_to(numbers[:, None, None], (SAMPLES, 4, 5))


def address(tensor: tf.Tensor) -> int:
    return int(np.asarray(memoryview(tensor)).ctypes.data)


def reading_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("reader-")}


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_tensorflow_takes_a_batch_over_as_it_is():
    written = set()

    def fill(number, places):
        numbered(number, places)
        written.add(places[0].ctypes.data)

    for x, _ in made(fill):
        assert address(x) in written


def test_memory_is_used_again(monkeypatch):
    arrays = []
    monkeypatch.setattr(
        batch_reader, "aligned", lambda *of: arrays.append(thread_memory.aligned(*of)) or arrays[-1]
    )
    seen = {address(x) for x, _ in made(batches=60, ahead=2)}
    # Those ahead, the one that is waited for, and the one that is still held meanwhile.
    assert len(seen) <= 4
    assert len(arrays) <= 4 * len(SPEC)


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_batches_that_are_kept_never_change(ahead):
    """As tensors, as slices, as arrays that share their memory, as results computed in place."""
    batches = made(batches=40, ahead=ahead)
    tensors = list(batches)
    slices = [x[1] for x, _ in batches]
    arrays = [np.asarray(memoryview(x)) for x, _ in batches]
    computed = [in_a_graph(x) for x, _ in batches]
    for number in range(40):
        want = expected(number)
        assert np.array_equal(tensors[number][0], want)
        assert np.array_equal(tensors[number][1], want[:, 0, 0])
        assert np.array_equal(slices[number], want[1])
        assert np.array_equal(arrays[number], want)
        assert np.array_equal(computed[number], want + 1)
    del tensors
    assert np.array_equal(slices[7], expected(7)[1])
    for _ in batches:
        pass
    assert np.array_equal(slices[7], expected(7)[1])
    assert np.array_equal(arrays[7], expected(7))


@tf.function
def in_a_graph(x: tf.Tensor) -> tf.Tensor:
    return x + 1


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 1, 1, 1), (3, 1, 5, 2)])
@pytest.mark.parametrize("kind", [np.float32, np.int32, np.int64, np.uint8])
def test_parts_of_any_shape_and_type_come_as_they_are(batch, shape, kind):
    def fill(number, places):
        places[0][...] = number + np.arange(np.prod(shape, dtype=int)).reshape(shape)

    for step, (x,) in enumerate(Batches(fill, 3, signature(batch, (shape, kind)), threads=1, ahead=1)):
        assert (x.shape, x.dtype) == ((batch, *shape), kind)
        for place in range(batch):
            told = x[place].numpy().reshape(-1) - (step * batch + place)
            assert np.array_equal(told, np.arange(told.size))


def test_what_a_step_lets_go_of_is_free_at_once():
    """Not when TensorFlow, or Python's garbage collector, comes round to it."""
    gc.disable()
    try:
        source = iter(made(batches=9, ahead=0))
        x, _ = next(source)
        first = address(x)
        del x, _
        assert address(next(source)[0]) == first
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("ahead", "ahead_bytes", "begun"),
    [
        (0, None, 1),
        (2, None, 3),
        (4, 1000, 4),
        (4, 84 * SAMPLES * 2, 3),
        (4, 84 * SAMPLES * 2 - 1, 2),
        (4, 0, 1),
    ],
)
def test_no_more_is_begun_than_the_read_ahead_allows(ahead, ahead_bytes, begun):
    numbers = []

    def fill(number, places):
        numbers.append(number)
        numbered(number, places)

    kept = iter(made(fill, ahead=ahead, ahead_bytes=ahead_bytes))
    next(kept)
    wait_until(lambda: len(numbers) == begun * SAMPLES)
    time.sleep(0.05)
    assert sorted(numbers) == list(range(begun * SAMPLES))


def test_what_a_given_up_iteration_had_begun_is_not_made():
    first_of_next = 6 * SAMPLES
    gate, numbers = threading.Event(), []

    def fill(number, places):
        numbers.append(number)
        if number == first_of_next:
            gate.wait(20)
        numbered(number, places)

    batches = made(fill, threads=1, ahead=2)
    for _ in itertools.islice(batches, 6):
        pass
    wait_until(lambda: first_of_next in numbers)
    threading.Timer(0.2, gate.set).start()
    again = iter(batches)
    assert np.array_equal(next(again)[0], expected(0))
    assert max(numbers) == first_of_next


def test_reading_threads_end_with_their_dataset():
    before = reading_threads()
    batches = made(threads=3)
    assert len(reading_threads() - before) == 3
    kept = iter(batches)
    next(kept)
    assert all(thread.daemon for thread in reading_threads())
    del batches, kept
    gc.collect()
    wait_until(lambda: reading_threads() <= before)


def test_reading_threads_do_not_take_subnormal_numbers_for_zero():
    """TensorFlow's threads do, and a thread inherits it from the one that starts it."""
    tiny = np.array([1e-42], np.float32)

    def fill(number, places):
        numbered(number, places)
        places[0][...] = (tiny * np.float32(1e30))[0]

    for x, _ in made(fill, batches=2):
        assert (x.numpy() > 0).all()


def test_a_batch_that_is_overdue_raises_what_there_is_to_say(monkeypatch):
    monkeypatch.setattr(batch_reader, "LOOK_EVERY_S", 0.01)
    gate, answers = threading.Event(), iter([None, None, ShardError("reading takes too long", cure="Wait.")])

    def fill(number, places):
        if number == SAMPLES + 1:
            gate.wait(20)
        numbered(number, places)

    kept = iter(made(fill, threads=1, overdue=lambda: next(answers)))
    assert np.array_equal(next(kept)[0], expected(0))
    with fails_with(ShardError):
        next(kept)
    gate.set()


def test_the_first_sample_that_fails_is_the_one_told():
    def fill(number, places):
        if number == SAMPLES:
            time.sleep(0.05)
        if number >= SAMPLES:
            raise ShardError(f"sample {number}", cure="None.")
        numbered(number, places)

    with fails_with(ShardError):
        list(made(fill, threads=3))


def test_another_error_comes_through_and_does_not_end_the_threads():
    def fill(number, places):
        if number == 1:
            raise ZeroDivisionError("of a test")
        numbered(number, places)

    batches = made(fill, threads=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError, match="of a test"):
            next(iter(batches))
    assert np.array_equal(batches.arrays(1)[0], expected(1))
