"""Order, splits and resume together, through random cohorts, world sizes, seeds and stop points.

A run is played: subjects are divided, every rank's loader is started at the step where the run before it
stopped, with another number of ranks, and what the ranks were given is put together again.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from handed_out import as_arrays
from hypothesis import given, settings
from hypothesis import strategies as some
from read_configs import reading
from shard_sets import make_shard_set

from trainer.config import SplitConfig
from trainer.config.section import LARGEST_SEED
from trainer.data.loading.order import order, steps_per_epoch, weights
from trainer.data.loading.pipeline import Samples, evaluation_batches, training_batches
from trainer.data.shards.shards import ShardSet
from trainer.data.splits import splits

CLASSES = ("AD", "NC")


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> ShardSet:
    return make_shard_set(tmp_path_factory.mktemp("shards"), 40, per_shard=7)


@some.composite
def divisions(draw, length: int = 1):
    """World sizes and accumulations, `length` of them, and a global batch that all of them can divide."""
    chosen = draw(some.lists(some.sampled_from(WAYS), min_size=length, max_size=length))
    smallest = int(np.lcm.reduce([world * accumulation for world, accumulation in chosen]))
    return chosen, smallest * draw(some.integers(1, max(1, 12 // smallest)))


# (world size, accumulation); their least common multiple is no more than the training split has.
WAYS = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (4, 1)]


@settings(max_examples=100)
@given(
    n=some.integers(12, 3000),
    seed=some.integers(0, 2**40),
    shuffle=some.sampled_from(["full", "blocks"]),
    division=divisions(),
    epoch=some.integers(0, 50),
    block=some.integers(1, 20),
    window=some.integers(1, 20),
)
def test_an_epoch_takes_each_sample_once_in_both_shuffles(n, seed, shuffle, division, epoch, block, window):
    _, batch = division
    steps = steps_per_epoch(n, batch)
    options = {"shuffle": shuffle, "block": block, "window": window}
    taken = np.concatenate([order(seed, epoch, step, batch, n, **options) for step in range(steps)])
    real = np.concatenate([weights(step, batch, n) > 0 for step in range(steps)])
    assert np.array_equal(np.sort(taken[real]), np.arange(n))
    assert len(taken) == steps * batch  # every rank takes its part of every step, so all take equally many


@settings(max_examples=25)
@given(
    volumes=some.integers(30, 40),
    seed=some.integers(0, LARGEST_SEED),
    shuffle=some.sampled_from(["full", "blocks"]),
    division=divisions(length=3),
    share=some.sampled_from([0.1, 0.2]),
    stops=some.lists(some.integers(1, 8), min_size=3, max_size=3),
)
def test_a_run_that_stops_and_goes_on_elsewhere_takes_the_same_samples(
    shards, volumes, seed, shuffle, division, share, stops
):
    ways, batch = division
    config = SplitConfig(validation=share, test=share, seed=seed % 1000)
    split = splits.split(shards.volumes[:volumes], CLASSES, config)
    splits.check_disjoint(split, shards.volumes)
    assert sorted((*split.train, *split.validation, *split.test)) == list(range(volumes))
    batch = min(batch, len(split.train) // 12 * 12 or batch)

    places = [0, *itertools.accumulate(stops)]
    given_out, weighed = [], []
    for (world, accumulation), (start, stop) in zip(ways, itertools.pairwise(places), strict=True):
        rows, w = _of_all_ranks(shards, split.train, seed, shuffle, batch, world, accumulation, start, stop)
        given_out.append(rows)
        weighed.append(w)

    per_epoch = steps_per_epoch(len(split.train), batch)
    train = np.array(split.train)
    for step, rows, w in zip(
        range(places[-1]), np.concatenate(given_out), np.concatenate(weighed), strict=True
    ):
        epoch, in_epoch = divmod(step, per_epoch)
        told = order(seed, epoch, in_epoch, batch, len(train), shuffle=shuffle)
        assert np.array_equal(rows, train[told])
        assert np.array_equal(w, weights(in_epoch, batch, len(train)))


def _of_all_ranks(shards, train, seed, shuffle, batch, world, accumulation, start, stop):
    """Rows and weights (steps, global_batch) that the loaders of all ranks hand out together."""
    # The target is the number of the row: it tells which volume came.
    samples = Samples(shards, train, np.array(train, np.float32))
    config = reading(seed, batch, accumulation, shuffle=shuffle, reader_threads=1)
    parts = []
    for rank in range(world):
        batches = training_batches(samples, config, range(start, stop), rank=rank, world_size=world)
        parts.append([np.stack([y, w]) for _, y, w in as_arrays(batches)])
    assert {len(part) for part in parts} == {(stop - start) * accumulation}
    # (ranks, steps, micro-batches, y and w, samples) -> (y and w, steps, micro-batches, ranks, samples)
    whole = np.array(parts).reshape(world, stop - start, accumulation, 2, -1).transpose(3, 1, 2, 0, 4)
    rows, w = whole.reshape(2, stop - start, batch)
    return rows.astype(int), w


@settings(max_examples=25)
@given(count=some.integers(1, 40), world=some.integers(1, 5), batch=some.integers(1, 4), data=some.data())
def test_evaluation_takes_each_volume_once_in_equally_many_batches(shards, count, world, batch, data):
    rows = data.draw(some.permutations(range(40)))[:count]
    samples = Samples(shards, rows, np.array(rows, np.float32))
    config = reading(evaluation_batch=batch, reader_threads=1)
    lengths, seen = set(), []
    for rank in range(world):
        batches = evaluation_batches(samples, config, rank=rank, world_size=world)
        taken = as_arrays(batches)
        lengths.add(len(taken))
        seen += [row for row, _, _, w in taken for row in row[w > 0]]
    assert len(lengths) == 1
    assert sorted(seen) == sorted(rows)
