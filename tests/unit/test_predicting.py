"""Predicted steps whose messages share interfaces: what one host receives at once, and steps in a row."""

from __future__ import annotations

import pytest
from planned_networks import small
from test_placement_costs import profile

from trainer.planning.placement import costs, ways
from trainer.planning.placement.layouts import replicated
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.units import place
from trainer.planning.profile import Profile
from trainer.planning.simulation import steady


def placed(**ranks):
    """The small network with operations on the ranks that are named; the others on rank 0."""
    network = small()
    layouts = {
        one.name: replicated(ways.placed_shape(one), [ranks.get(one.name, 0)])
        for one in network.operations
        if one.readings
    }
    placement = place(network, layouts)
    return placement, task_lists(placement)


def on_hosts(measured, *hosts):
    told = measured.model_dump()
    devices = tuple({**one, "host": host} for one, host in zip(told["devices"], hosts, strict=True))
    return Profile.model_validate(told | {"devices": devices})


def test_on_one_rank_it_is_the_prediction_of_a_plan_without_links():
    placement, lists = placed()
    alone = steady.predict(placement, lists, profile(1), 1)
    expected = costs.predict(placement, lists, profile(1), 1)
    assert alone.step_s == pytest.approx(expected.step_s)
    assert alone.busy_s == expected.busy_s and alone.played == expected.played


def test_a_rank_that_is_done_begins_the_next_step_before_the_others_are():
    placement, lists = placed(relu=1)
    first = costs.predict(placement, lists, profile(2), 2)
    row = steady.predict(placement, lists, profile(2), 2)
    assert max(row.busy_s) <= row.step_s <= first.step_s + 1e-9
    assert row.waiting_s == pytest.approx([row.step_s - busy for busy in row.busy_s])


def test_what_several_hosts_send_to_one_shares_its_interface():
    layouts = ways.replicas(
        small(3), 3, 1, lambda network: {
            one.name: replicated(ways.placed_shape(one), [0]) for one in network.operations if one.readings
        },
    )  # fmt: skip
    placement = place(small(3), layouts)
    lists = task_lists(placement)
    measured = profile(3, latency=0.0, rate=1.0)
    together, apart = (
        steady.predict(placement, lists, on_hosts(measured, *hosts), 3).step_s
        for hosts in (("a", "b", "c"), ("a", "a", "a"))
    )
    assert together > apart, "ranks of one host have links of their own"
