"""Filters over unequal ranks: in proportion to speed, and the split that is done before all others."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.planning.placement import shares
from trainer.planning.placement.shares import FilterCost

SECONDS = st.floats(0, 10) | st.integers(0, 4).map(float)
COSTS = st.lists(st.builds(FilterCost, SECONDS, SECONDS, SECONDS), min_size=1, max_size=4)


def all_splits(filters: int, ranks: int) -> list[tuple[int, ...]]:
    return [split for split in itertools.product(range(filters + 1), repeat=ranks) if sum(split) == filters]


@given(st.integers(0, 7), COSTS)
def test_no_split_at_all_is_done_before_the_fastest(filters, costs):
    found = shares.fastest(filters, costs)
    assert sum(found) == filters and min(found) >= 0
    best = min(shares.slowest(costs, split) for split in all_splits(filters, len(costs)))
    assert shares.slowest(costs, found) == best


@given(st.integers(0, 3000), COSTS)
def test_the_fastest_split_is_never_worse_than_an_equal_or_proportional_one(filters, costs):
    found = shares.slowest(costs, shares.fastest(filters, costs))
    others = [shares.equal(filters, len(costs))]
    if all(cost.compute_s > 0 for cost in costs):
        others.append(shares.by_speed(filters, [cost.compute_s for cost in costs]))
    assert all(found <= shares.slowest(costs, other) for other in others)


@given(st.integers(0, 3000), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6))
def test_without_links_the_fastest_split_is_proportional_but_for_a_filter(filters, seconds):
    # One filter of the slowest rank is what rounding can cost.
    costs = [FilterCost(0.0, one, 0.0) for one in seconds]
    proportional = shares.by_speed(filters, seconds)
    assert sum(proportional) == filters
    exact = filters / sum(1 / one for one in seconds)
    for split in (proportional, shares.fastest(filters, costs)):
        assert shares.slowest(costs, split) <= (exact + max(seconds)) * (1 + 1e-9)


def test_a_device_of_half_the_speed_gets_half_the_filters():
    assert shares.by_speed(70, [1.0, 2.0, 4.0]) == (40, 20, 10)
    assert shares.fastest(70, [FilterCost(0, 1, 0), FilterCost(0, 2, 0), FilterCost(0, 4, 0)]) == (40, 20, 10)


def test_a_rank_behind_a_slow_link_gets_fewer_and_one_that_is_not_worth_its_input_none():
    assert shares.fastest(30, [FilterCost(0, 1, 0), FilterCost(0, 1, 1)]) == (20, 10)
    assert shares.fastest(30, [FilterCost(0, 1, 0), FilterCost(31, 1, 0)]) == (30, 0)
    assert shares.by_speed(1, [1.0, 2.0]) == (1, 0)


@pytest.mark.parametrize("seconds", [[0.0, 1.0], [float("inf"), 1.0], [float("nan"), 1.0], [-1.0, 1.0]])
def test_seconds_that_are_none_are_refused(seconds):
    with pytest.raises(ValueError, match="seconds must be positive"):
        shares.by_speed(4, seconds)
    if seconds[0] != 0:
        with pytest.raises(ValueError, match="seconds must be finite"):
            FilterCost(seconds[0], 1.0, 0.0)


def test_filters_need_a_rank():
    with pytest.raises(ValueError, match="need a rank"):
        shares.fastest(3, [])
