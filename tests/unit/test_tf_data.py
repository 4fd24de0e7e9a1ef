"""The same batches as a data set of tf.data: no copy, same order, own errors, and an end to its threads."""

from __future__ import annotations

import gc
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from handed_out import as_arrays
from shard_sets import flip_byte, make_shard_set

from trainer.data.batch_reader import Batches, signature
from trainer.data.pipeline import training_batches
from trainer.data.tf_data import dataset, input_errors
from trainer.errors import ShardError

SPEC = signature(3, ((4, 5), np.float32), ((), np.int32))


def numbered(number, places) -> None:
    for place in places:
        place[...] = number


def of_shards(shards, **options) -> Batches:
    return training_batches(
        shards, range(10), np.arange(10, dtype=np.int32) % 2, config_seed=3, start_step=0, stop_step=8,
        global_batch=4, **options,
    )  # fmt: skip


@pytest.mark.parametrize("covariates", [None, np.arange(20, dtype=np.float32).reshape(10, 2)])
def test_it_holds_the_same_in_the_same_order(tmp_path, covariates):
    batches = of_shards(make_shard_set(tmp_path), covariates=covariates)
    made = dataset(batches)
    assert made.cardinality() == 8
    ones, others = as_arrays(batches), list(made.as_numpy_iterator())
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        tf.nest.assert_same_structure(one, other)
        for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
            assert np.array_equal(a, b)


def test_keras_fits_a_network_to_it(tmp_path):
    shards = make_shard_set(tmp_path, shape=(8, 8, 8, 1))
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with input_errors():
        history = model.fit(dataset(of_shards(shards)), epochs=2, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"]).all() and len(history.history["loss"]) == 2


def test_memory_is_taken_over_as_it_is_and_used_again():
    written = set()

    def fill(number, places):
        numbered(number, places)
        written.add(places[0].ctypes.data)

    seen = set()
    for x, _ in dataset(Batches(fill, 60, SPEC, threads=1, ahead=2)):
        seen.add(np.asarray(memoryview(x)).ctypes.data)
    # Those ahead, the one in use, the one before it, and one that TensorFlow has not let go of yet.
    assert seen <= written and len(seen) <= 5


def test_a_damaged_volume_raises_its_own_error(tmp_path):
    shards = make_shard_set(tmp_path)
    volume = shards.volumes[4]
    flip_byte(tmp_path / volume.shard, volume.offset)
    with pytest.raises(ShardError, match=r"volume \d \(subject sub-0\d\) is damaged"), input_errors():
        list(dataset(of_shards(shards)))


def test_other_errors_pass_through():
    with pytest.raises(tf.errors.InvalidArgumentError), input_errors():
        tf.reshape(tf.zeros(3), (2,))


def test_reading_threads_end_with_it():
    def reading() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("reader-")}

    before = reading()
    made = dataset(Batches(numbered, 9, SPEC, threads=2, ahead=2))
    next(iter(made))
    assert len(reading() - before) == 2
    del made
    gc.collect()
    deadline = time.monotonic() + 20
    while reading() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not reading() - before
