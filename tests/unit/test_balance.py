"""Filters of a whole network over unequal ranks, by what was measured of their devices and links."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
from pydantic import ValidationError

from trainer.planning.placement import balance, shares, ways
from trainer.planning.placement.balance import RankSpeeds
from trainer.planning.placement.operations import Operation, OperationGraph, Reading
from trainer.planning.placement.windows import Pointwise
from trainer.planning.profile import Device, ProfiledLink

SAME = tuple((axis, Pointwise()) for axis in range(4))
FAST, SLOW = (
    ProfiledLink(latency_s=1e-4, bytes_per_second=1e9),
    ProfiledLink(latency_s=1e-3, bytes_per_second=1e6),
)


def operation(name, kind, source, channels, flops=0.0):
    shape, before = (2, 8, 8, channels), (2, 8, 8, source[1])
    axes = SAME if kind == "activation" else (*SAME[:3], None)
    return Operation(name, kind, name, (Reading(source[0], before, axes),), shape, flops=flops)


def network():
    return OperationGraph(
        (
            Operation("images", "input", "images", (), (2, 8, 8, 3)),
            operation("conv1", "convolution", ("images", 3), 10, 1e7),
            operation("relu", "activation", ("conv1", 10), 10),
            operation("conv2", "convolution", ("relu", 10), 30, 9e7),
        ),
        ("conv2",),
    )


def measured(*seconds, links=(None, FAST, SLOW)):
    devices = tuple(Device(host=f"n{i}", name="CPU", threads=1) for i in range(len(seconds)))
    return RankSpeeds(devices=devices, seconds_per_gflop=seconds, links=tuple(links)[: len(seconds)])


def channels(layouts, name, ranks):
    return tuple(layouts[name].elements(rank) // (2 * 8 * 8) for rank in range(ranks))


def test_by_speed_every_convolution_is_divided_in_proportion():
    found = balance.splits(network(), measured(0.1, 0.2, 0.4), "speed", master=True)
    assert found == {"conv1": (6, 3, 1), "conv2": (17, 9, 4)}


def test_a_slow_link_takes_filters_from_its_rank_and_the_input_that_every_rank_reads_costs_nothing():
    unequal = measured(0.1, 0.1, 0.1)
    found = balance.splits(network(), unequal, "bandwidth", master=True)
    assert found["conv1"][2] < found["conv1"][1] <= found["conv1"][0]
    of_input, of_map = (balance.costs(network(), network()[name], unequal, master=True) for name in found)
    assert of_input[0] == shares.FilterCost(0.0, 1e-4, 0.0)
    assert of_input[2] == shares.FilterCost(2e-3, 1e-4, 2 * (2 * 64 * 4) / 1e6)
    assert of_map[2].fixed_s == pytest.approx(4e-3 + 2 * (2 * 64 * 10 * 4) / 1e6)


def test_without_a_master_the_first_rank_has_a_link_too_and_sends_to_all_others():
    first = balance.costs(network(), network()["conv1"], measured(0.1, 0.1, 0.1), master=False)[0]
    assert first.link_s == pytest.approx(2 * 2 * (2 * 64 * 4) / 1e9)
    alone = balance.costs(network(), network()["conv1"], measured(0.1), master=False)
    assert alone == [shares.FilterCost(0.0, 1e-4, 0.0)]


@pytest.mark.parametrize("master", [True, False])
def test_by_bandwidth_no_update_is_predicted_to_take_longer_than_by_speed_or_with_equal_shares(master):
    for links in ((None, FAST, SLOW), (None, SLOW, SLOW), (None, FAST, FAST)):
        what = measured(0.1, 0.3, 0.05, links=links)
        seconds = {
            by: balance.slowest(
                network(), what, balance.splits(network(), what, by, master=master), master=master
            )
            for by in ("speed", "bandwidth")
        }
        same = {name: shares.equal(count, 3) for name, count in (("conv1", 10), ("conv2", 30))}
        equal = balance.slowest(network(), what, same, master=master)
        assert seconds["bandwidth"][0] <= min(seconds["speed"][0], equal[0])
        assert seconds["speed"][1] < equal[1], "proportional shares balance computing"


def test_what_reads_a_channel_by_itself_stays_with_the_rank_that_has_it():
    splits = {"conv1": (7, 0, 3), "conv2": (5, 20, 5)}
    kept = ways.filters(network(), {0: 1.0, 1: 1.0, 2: 1.0}, master=False, splits=splits)
    assert channels(kept, "conv1", 3) == channels(kept, "relu", 3) == (7, 0, 3)
    assert channels(kept, "conv2", 3) == (5, 20, 5)
    returned = ways.filters(network(), {0: 1.0, 1: 1.0, 2: 1.0}, master=True, splits=splits)
    assert channels(returned, "relu", 3) == (10, 0, 0)


def test_of_several_replicas_the_slowest_device_and_link_count():
    four = measured(0.1, 0.2, 0.3, 0.1, links=(None, FAST, None, SLOW)).of_a_replica(2)
    assert four.seconds_per_gflop == (0.3, 0.2)
    assert four.links == (None, SLOW)


def test_what_was_measured_goes_through_json_and_back_and_is_checked():
    one = measured(0.1, 1 / 3)
    assert RankSpeeds.model_validate_json(one.model_dump_json()) == one
    tree = json.loads(one.model_dump_json())
    for wrong in ({"seconds_per_gflop": [0.0, 1.0]}, {"links": [None]}, {"speed": 1}):
        with pytest.raises(ValidationError):
            RankSpeeds.model_validate_json(json.dumps({**tree, **wrong}))


def test_samples_of_the_network_decide_what_crosses():
    twice = dataclasses.replace(network()["conv1"], shape=(4, 8, 8, 10))
    small, large = (
        balance.costs(network(), one, measured(0.1, 0.1), master=True)[1].link_s
        for one in (network()["conv1"], twice)
    )
    assert large == 2 * small


def divided_for(*seconds, by="bandwidth"):
    return balance.splits(network(), measured(*seconds), by, master=False)


def is_worth(divided, *seconds, times=1000, cost_s=1.0, by="bandwidth"):
    """Whether filters that are divided so should be divided anew for devices that take these seconds now."""
    now = measured(*seconds)
    return balance.is_worth_dividing(network(), now, divided, by, master=False, times=times, cost_s=cost_s)


@pytest.mark.parametrize("by", ["speed", "bandwidth"])
def test_filters_are_divided_anew_for_a_device_that_slowed_down_and_for_one_that_recovered(by):
    same, unequal = divided_for(1.0, 1.0, by=by), divided_for(1.0, 4.0, by=by)
    assert is_worth(same, 1.0, 4.0, by=by) and is_worth(unequal, 1.0, 1.0, by=by)
    assert not is_worth(same, 1.0, 1.0, by=by) and not is_worth(unequal, 1.0, 4.0, by=by)
    assert not is_worth(same, 4.0, 4.0, by=by), "all are slower alike: nothing is gained"


def test_two_measurements_of_devices_that_differ_by_a_few_per_cent_never_divide_anew():
    draw = random.Random(5)
    for _ in range(200):
        speeds = [draw.uniform(0.2, 2.0) for _ in range(3)]
        first, second = ([one * draw.uniform(0.97, 1.03) for one in speeds] for _ in range(2))
        assert not is_worth(divided_for(*first), *second)


def test_a_division_that_does_not_earn_its_tracing_in_the_updates_that_are_left_is_not_made():
    same = divided_for(1.0, 1.0)
    before, after = (
        balance.slowest(network(), measured(1.0, 4.0), one, master=False)[0]
        for one in (same, divided_for(1.0, 4.0))
    )
    saved = 50 * (before - after)
    assert is_worth(same, 1.0, 4.0, times=50, cost_s=0.99 * saved)
    assert not is_worth(same, 1.0, 4.0, times=50, cost_s=1.01 * saved)


def test_a_network_without_convolutions_is_not_divided_anew():
    dense = OperationGraph((network().operations[0],), ("images",))
    now = measured(1.0, 4.0)
    assert not balance.is_worth_dividing(dense, now, {}, "speed", master=False, times=9, cost_s=0.0)
