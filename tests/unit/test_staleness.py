"""Clocks, histogram and tickets of asynchronous training."""

from __future__ import annotations

import random

import pytest

from trainer.strategies.async_servers.async_coordinator import Tickets
from trainer.strategies.async_servers.staleness import Clocks, Histogram


def test_a_histogram_counts_and_goes_on_from_its_json():
    histogram = Histogram()
    for staleness in (0, 2, 2, 1):
        histogram.add(staleness)
    told = histogram.to_json()
    assert told == {"mean": 1.25, "max": 2, "updates": {"0": 1, "1": 1, "2": 2}}
    resumed = Histogram(told["updates"])
    resumed.merge(histogram)
    assert resumed.to_json()["updates"] == {"0": 2, "1": 2, "2": 4}
    assert Histogram().to_json() == {"mean": 0.0, "max": 0, "updates": {}}
    with pytest.raises(ValueError, match="-1 versions"):
        histogram.add(-1)


def test_the_bound_holds_back_who_is_ahead_of_the_slowest_living_worker():
    clocks = Clocks(range(3), bound=1)
    clocks.tick(0)
    assert clocks.may_go(0)
    clocks.tick(0)
    assert not clocks.may_go(0) and clocks.may_go(1)
    clocks.tick(1)
    assert not clocks.may_go(0)  # worker 2 has made none
    clocks.gone(2)
    assert clocks.may_go(0) and clocks.living == (0, 1)
    clocks.tick(0)
    assert not clocks.may_go(0)
    clocks.park(1, parked=True)
    assert clocks.may_go(0)
    clocks.park(1, parked=False)
    clocks.restart()
    assert clocks.may_go(0) and clocks.may_go(1)


def test_without_a_bound_nobody_waits_and_with_zero_workers_go_in_turn():
    free, strict = Clocks(range(2), None), Clocks(range(2), 0)
    for _ in range(100):
        free.tick(0)
    assert free.may_go(0)
    assert strict.may_go(0)
    strict.tick(0)
    assert not strict.may_go(0) and strict.may_go(1)


@pytest.mark.parametrize("seed", range(20))
def test_every_step_is_done_once_per_epoch_whoever_dies(seed):
    """Workers of random speeds, two of four die at random moments; limits are epochs' ends."""
    chance = random.Random(seed)
    tickets, per_epoch, epochs = Tickets(5, 5 + 3 * 7), 7, 3
    living, begun, applied = {0, 1, 2, 3}, {}, []
    for worker in living:
        tickets.hand_out(worker, 2)
    for epoch in range(epochs):
        tickets.limit = 5 + (epoch + 1) * per_epoch
        while tickets.done < tickets.limit:
            worker = chance.choice(sorted(living))
            if len(living) > 2 and chance.random() < 0.05:
                living.discard(worker)
                lost = tickets.gone(worker)
                assert begun.pop(worker, None) in [*lost, None]
            elif worker in begun:
                assert tickets.finish(worker) == begun[worker]
                applied.append(begun.pop(worker))
            elif tickets.can_begin(worker):
                begun[worker], _ = tickets.begin(worker)
                tickets.hand_out(worker, 2)
            else:
                assert tickets.begin(worker) is None
        assert sorted(applied) == list(range(5, tickets.limit)) and not begun


def test_a_run_can_be_saved_once_what_lies_below_the_nearest_limit_is_done():
    tickets = Tickets(0, 100)
    tickets.limit = 100
    assert tickets.hand_out(0, 2) == [0, 1] and tickets.hand_out(1, 2) == [2, 3]
    assert tickets.begin(1) == (2, True)
    tickets.finish(1)
    assert tickets.nearest_limit == 3
    tickets.limit = tickets.nearest_limit
    assert tickets.begin(1) is None
    for step in (0, 1):
        assert tickets.begin(0) == (step, True)
        tickets.finish(0)
    assert tickets.done == tickets.limit == 3
