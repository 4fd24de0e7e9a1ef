"""The order of samples is a pure function, complete, shuffled, and the same at any world size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from wording import fails_with

from trainer.data.loading.order import micro_batch_positions, order, steps_per_epoch, weights
from trainer.errors import ConfigError

SIZES = {"n": some.integers(1, 60), "global_batch": some.integers(1, 70)}
SEEDS = {"seed": some.integers(0, 2**40), "epoch": some.integers(0, 1000)}


def epoch_of(seed, epoch, global_batch, n):
    return [order(seed, epoch, step, global_batch, n) for step in range(steps_per_epoch(n, global_batch))]


@given(**SIZES, **SEEDS)
def test_every_sample_is_taken_exactly_once_per_epoch(seed, epoch, n, global_batch):
    taken = np.concatenate(epoch_of(seed, epoch, global_batch, n))
    real = np.concatenate([weights(s, global_batch, n) > 0 for s in range(steps_per_epoch(n, global_batch))])
    assert sorted(taken[real]) == list(range(n))


@given(**SIZES, **SEEDS)
def test_the_tail_is_filled_with_the_first_of_the_same_epoch(seed, epoch, n, global_batch):
    steps = epoch_of(seed, epoch, global_batch, n)
    taken = np.concatenate(steps)
    assert all(step.shape == (global_batch,) and step.dtype == np.int64 for step in steps)
    assert np.array_equal(taken[n:], np.resize(taken[:n], len(taken) - n))


@given(**SIZES, **SEEDS, data=some.data())
def test_weighted_mean_over_the_batch_is_the_mean_over_the_real_samples(seed, epoch, n, global_batch, data):
    step = data.draw(some.integers(0, steps_per_epoch(n, global_batch) - 1))
    loss = np.random.default_rng(seed).random(global_batch)
    real = min(global_batch, n - step * global_batch)
    mean = np.mean(loss * weights(step, global_batch, n))
    assert mean == pytest.approx(loss[:real].mean(), rel=1e-5)


@given(world_size=some.integers(1, 8), accumulation=some.integers(1, 4), size=some.integers(1, 4), **SEEDS)
def test_all_ranks_together_take_the_global_batch_whatever_the_world_size(
    seed, epoch, world_size, accumulation, size
):
    global_batch = world_size * accumulation * size
    alone = order(seed, epoch, 0, global_batch, 2 * global_batch)
    everything = []
    for micro in range(accumulation):
        together = [
            alone[micro_batch_positions(global_batch, rank, world_size, accumulation, micro)]
            for rank in range(world_size)
        ]
        one_rank = alone[micro_batch_positions(global_batch, 0, 1, accumulation, micro)]
        assert np.array_equal(np.concatenate(together), one_rank)
        everything.extend(one_rank)
    assert everything == list(alone)


def test_shuffled_differs_from_unshuffled_and_epochs_from_each_other():
    first, second = (np.concatenate(epoch_of(0, epoch, 8, 64)) for epoch in (0, 1))
    other_seed = np.concatenate(epoch_of(1, 0, 8, 64))
    unshuffled = np.arange(64)
    for a, b in ((first, unshuffled), (second, unshuffled), (first, second), (first, other_seed)):
        assert np.mean(a == b) < 0.2


def test_every_position_is_equally_likely_to_come_first():
    firsts = np.bincount([order(0, epoch, 0, 1, 5)[0] for epoch in range(2000)], minlength=5)
    assert firsts.min() > 330 and firsts.max() < 470  # 400 expected, standard deviation 18


def test_the_order_never_changes_between_versions():
    """A resumed run may meet a newer cingulum or numpy; this is the sequence of version 1."""
    assert order(seed=7, epoch=2, step=0, global_batch=10, n=10).tolist() == [0, 3, 5, 1, 8, 4, 9, 2, 6, 7]


def test_a_step_past_the_epoch_is_refused():
    with pytest.raises(ValueError, match="no step 3"):
        order(0, 0, 3, 4, 12)
    with pytest.raises(ValueError, match="no step -1"):
        weights(-1, 4, 12)


def test_a_batch_that_cannot_be_cut_is_refused():
    with fails_with(ConfigError):
        micro_batch_positions(6, 0, 4, 1, 0)
    with pytest.raises(ValueError, match="no rank 2"):
        micro_batch_positions(6, 2, 2, 1, 0)


def test_what_order_returns_may_be_changed_without_harm():
    order(0, 0, 0, 4, 8)[:] = -1
    assert order(0, 0, 0, 4, 8).min() >= 0
