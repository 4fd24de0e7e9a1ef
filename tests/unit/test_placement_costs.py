"""Predicted seconds and memory of a placement: figures that follow by hand, and what holds of any of them."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_networks import small
from wording import fails_with

from trainer.errors import ConfigError, InputError
from trainer.planning.placement import costs, ways
from trainer.planning.placement.boxes import whole
from trainer.planning.placement.checking import check
from trainer.planning.placement.layouts import layout, replicated
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.memory import memory
from trainer.planning.placement.tasks import Receive, Send
from trainer.planning.placement.units import place
from trainer.planning.profile import Profile

NETWORK = small()
# Forward seconds of each operation for 2 samples; backward is twice that.
FORWARD = {"x": 0.0, "conv": 8.0, "relu": 4.0, "mean": 2.0, "loss": 1.0}
RATE, LATENCY = 64.0, 0.5


def profile(ranks, *, factors=None, rate=RATE, latency=LATENCY, flops=None, hosts="a"):
    """Rank r takes `factors[r]` times the seconds; hosts have names of one letter, the last one the rest."""
    factors = factors or [1.0] * ranks
    operations = [
        {
            "name": one.name, "kind": one.kind, "layer": one.layer, "measured": one.name,
            "flops": (flops or {}).get(one.name, one.flops), "parameter_bytes": 0, "output_bytes": 0,
            "forward_s": [FORWARD[one.name] * f for f in factors], "forward_spread_s": [0.0] * ranks,
            "backward_s": [2 * FORWARD[one.name] * f for f in factors], "backward_spread_s": [0.0] * ranks,
        }
        for one in NETWORK.operations
    ]  # fmt: skip
    link = {"latency_s": latency, "bytes_per_second": rate}
    tree = {
        "version": 1, "network": "small", "sample_shape": [8, 2], "batch": 2, "precision": "float32",
        "made": {"time": "", "versions": {}},
        "devices": [
            {"host": host, "name": "CPU", "threads": 1} for host in hosts.ljust(ranks, hosts[-1])
        ],
        "operations": operations,
        "update": {"parameters": 24, "seconds": [3.0 * f for f in factors], "spread_s": [0.0] * ranks},
        "links": [[None if a == b else link for b in range(ranks)] for a in range(ranks)],
    }  # fmt: skip
    return Profile.parse(json.dumps(tree), "-")


def placed(layouts, network=NETWORK):
    placement = place(network, layouts)
    lists = task_lists(placement)
    check(placement, lists)
    return placement, lists


def on(rank, network=NETWORK, **others):
    """Everything on one rank, but some operations on others."""
    shapes = {one.name: ways.placed_shape(one) for one in network.operations if one.readings}
    return {name: replicated(shape, [others.get(name, rank)]) for name, shape in shapes.items()}


def test_one_rank_alone_takes_the_seconds_of_its_operations_and_sends_nothing():
    placement, lists = placed(on(0))
    cost = costs.predict(placement, lists, profile(1), 1)
    assert (cost.step_s, cost.busy_s, cost.waiting_s) == (3 * 15.0 + 3.0, (48.0,), (0.0,))
    assert cost.imbalance == 0.0 and costs.sent(lists, 1) == (costs.Sent(0, 0),)
    # On a rank twice as slow, of half the samples.
    other = placed(on(1, small(1)), small(1))
    slower = costs.predict(*other, profile(2, factors=[1, 2]), 2)
    assert slower.busy_s == (0.0, 3 * 15.0 + 6.0) and slower.waiting_s == (slower.step_s, 0.0)
    assert slower.imbalance == 1.0


def test_a_message_takes_latency_and_bytes_over_bandwidth_and_only_its_receiver_waits():
    # relu on rank 1: conv's output, 2 x 8 x 4 x 4 bytes, goes there, relu's comes back, and their gradients.
    placement, lists = placed(on(0, relu=1))
    cost = costs.predict(placement, lists, profile(2), 2)
    trip = LATENCY + 256 / RATE
    assert cost.busy_s == (3 * (8.0 + 2.0 + 1.0) + 3.0, 3 * 4.0)
    assert cost.step_s == sum(cost.busy_s) + 4 * trip
    assert cost.waiting_s == (12.0 + 4 * trip, cost.step_s - 12.0)
    assert costs.sent(lists, 2) == (costs.Sent(512, 2), costs.Sent(512, 2))
    assert cost.imbalance == 36.0 / 24.0 - 1


def test_a_sender_and_a_receiver_handle_a_message_each_for_its_own_seconds():
    layouts = on(0, relu=1, mean=1, loss=1)
    placement, lists = placed(layouts)
    plain = profile(2)
    told = plain.model_dump() | {"handling": {"message_s": [1.0, 2.0], "byte_s": [0.25, 0.5]}}
    slower = Profile.parse(json.dumps(told), "-")
    (send,) = [task for task in lists[0] if isinstance(task, Send)]
    size = send.messages[0].bytes
    of = costs.Durations(placement, slower, {}).of
    assert of(0, send) == 1 + size / 4 and of(1, send) == 2 + size / 2
    before, after = (costs.predict(placement, lists, one, 2) for one in (plain, slower))
    # Features there, and their gradient back: each is sent by one and received by the other.
    assert after.step_s == before.step_s + 2 * (3 + 0.75 * size)
    assert after.busy_s == before.busy_s


def test_of_all_that_send_to_all_no_two_begin_with_the_same_one():
    _, lists = placed(ways.spatial(NETWORK, (4,), range(4)))
    for rank, tasks in lists.items():
        to = [task.messages[0].target for task in tasks if isinstance(task, Send)]
        by = [task.messages[0].source for task in tasks if isinstance(task, Receive)]
        # The last exchange is of weights, with all others.
        assert to[-3:] == [(rank + step) % 4 for step in (1, 2, 3)]
        assert by[-3:] == [(rank - step) % 4 for step in (1, 2, 3)]


def test_a_network_none_of_whose_maps_can_be_cut_is_refused_and_not_left_to_one_rank() -> None:
    with fails_with(ConfigError):
        ways.spatial(NETWORK, (100,), range(100))


def test_a_part_costs_its_share_of_the_output_and_of_a_sum_its_share_of_the_input():
    placement, lists = placed(ways.spatial(NETWORK, (2,), range(2)))
    by_name = {(unit.operation, unit.rank): unit for unit in placement.units}
    for name in ("conv", "relu", "mean"):
        assert costs.share(NETWORK[name], by_name[name, 1]) == 0.5
    assert costs.share(NETWORK["loss"], by_name["loss", 0]) == 1.0
    assert costs.flops(placement, 2) == (510.0, 510.0)
    cost = costs.predict(placement, lists, profile(2, latency=0.0, rate=1e12), 2)
    # Half of all but the loss, and the update: the kernel, 24 numbers, is owned half and half.
    half = 3 * 14.0 / 2 + 1.5
    assert cost.busy_s == (half + 3.0, half)
    assert cost.step_s == pytest.approx(half + 3.0)


def test_a_task_takes_its_own_seconds_however_small_its_part_is():
    placement, lists = placed(ways.spatial(NETWORK, (2,), range(2)))
    plain = profile(2, latency=0.0, rate=1e12)
    each = Profile.parse(json.dumps(plain.model_dump() | {"task_s": [0.5, 0.25]}), "-")
    before, after = (costs.predict(placement, lists, one, 2).busy_s for one in (plain, each))
    computed = [
        sum(isinstance(task, costs.Compute | costs.Differentiate) for task in lists[rank]) for rank in (0, 1)
    ]
    assert after == (before[0] + 0.5 * computed[0], before[1] + 0.25 * computed[1])


@pytest.mark.parametrize(
    ("hosts", "arrives"),
    # From one host to another, the third bundle leaves when the second one has left.
    [("aaa", LATENCY + 1.0), ("aab", LATENCY + 1.0), ("abc", (LATENCY + 2.0) + LATENCY + 1.0)],
)
def test_bundles_of_one_link_or_interface_follow_each_other(hosts, arrives):
    class Of:  # a message of 64 bytes
        def __init__(self, source, target, number):
            self.source, self.target, self.number, self.bytes = source, target, number, 64

    first, second, other = ((Of(0, 1, 0),), (Of(0, 1, 1),), (Of(0, 2, 2),))
    lists = {
        0: tuple(map(Send, (first, second, other))),
        1: tuple(map(Receive, (first, second))),
        2: (Receive(other),),
    }
    playing = costs._Playing(placed(on(0))[0], profile(3, hosts=hosts), {}, 3)
    for rank, tasks in lists.items():
        for task in tasks:
            assert playing.do(rank, task)
    assert playing.now == [0.0, 2 * (LATENCY + 1.0), arrives]
    assert not playing.do(1, Receive((Of(0, 1, 3),)))


def test_what_every_rank_updates_may_be_more_than_it_owns():
    placement, lists = placed(on(0))
    cost = costs.predict(placement, lists, profile(1), 1, updated={0: 48})
    assert cost.step_s == 45.0 + 6.0


def test_a_profile_of_fewer_ranks_or_of_another_network_is_refused():
    costs.check_profile(profile(2), small(5), 2)
    with fails_with(InputError):
        costs.check_profile(profile(2), NETWORK, 3)
    with fails_with(InputError) as caught:
        costs.check_profile(profile(1, flops={"conv": 1200.0}), NETWORK, 1)
    assert caught.value.key == "operations.conv.flops"
    renamed = dataclasses.replace(NETWORK.operations[0], name="y")
    with fails_with(InputError):
        costs.check_profile(profile(1), dataclasses.replace(NETWORK, operations=(renamed,)), 1)


def test_lists_that_cannot_go_on_are_no_prediction():
    placement, lists = placed(on(0, relu=1))
    without = {rank: tuple(t for t in tasks if not isinstance(t, Send)) for rank, tasks in lists.items()}
    with pytest.raises(ValueError, match="for ever"):
        costs.predict(placement, without, profile(2), 2)


@st.composite
def random_layouts(draw):
    """Each operation cut along its second axis, each part on one of three ranks."""
    found = {}
    for one in NETWORK.operations:
        if one.readings:
            everything = whole(ways.placed_shape(one))
            axis = min(1, len(everything.ranges) - 1)
            length = everything.shape[axis]
            ends = sorted({0, length, *draw(st.lists(st.integers(1, length), max_size=2))})
            held = {}
            for start, stop in itertools.pairwise(ends):
                part = everything.with_range(axis, (start, stop))
                held.setdefault(draw(st.integers(0, 2)), []).append(part)
            found[one.name] = layout(everything.shape, held)
    return found


@settings(max_examples=60, deadline=None)
@given(random_layouts())
def test_work_is_divided_and_none_is_lost_whatever_the_layout(layouts):
    placement, lists = placed(layouts)
    cost = costs.predict(placement, lists, profile(3), 3)
    assert sum(cost.busy_s) == pytest.approx(48.0)
    assert sum(costs.flops(placement, 3)) == pytest.approx(1020.0)
    assert cost.step_s >= max(cost.busy_s) - 1e-9 and min(cost.waiting_s) >= -1e-9
    faster = costs.predict(placement, lists, profile(3, latency=0.0, rate=1e9), 3)
    assert max(cost.busy_s) - 1e-9 <= faster.step_s <= cost.step_s + 1e-9
    crossing = 4 * sum(placement.elements_sent().values())
    assert sum(one.bytes for one in costs.sent(lists, 3)) == crossing
    found = memory(placement, lists, 3, slots=2)
    assert sum(one.slots for one in found) == 2 * 4 * 24
    for rank, one in enumerate(found):
        computed = max((4 * unit.box.size for unit in placement.units if unit.rank == rank), default=0)
        assert one.working >= max(computed, one.kept) and one.total == one.variables + one.slots + one.working


def test_memory_of_one_rank_is_that_of_its_tensors_where_they_are_most():
    (found,) = memory(*placed(on(0)), 1, slots=2)
    x, features, mean = 4 * 32, 4 * 64, 4 * 8
    assert (found.variables, found.slots) == (4 * 24, 2 * 4 * 24)
    # Gradients need what conv has read, relu's output and what the loss has read, and no output of conv.
    assert found.kept == x + features + mean
    # When mean is differentiated: also its gradient, and that of what it reads.
    assert found.working == x + features + mean + features


def test_memory_of_two_ranks_counts_what_they_receive_put_together_and_own_beside_what_they_hold():
    one, other = memory(*placed(ways.spatial(NETWORK, (2,), range(2))), 2, slots=1)
    # Each holds the kernel, and owns half of it, which is no block that it computes with.
    assert one.variables == other.variables == 4 * 24 + 4 * 12 and one.slots == 4 * 12
    half, with_halo, mean = 4 * 32, 4 * 2 * 5 * 2, 4 * 8
    # Of mean, rank 0 keeps the sum of both parts, which the loss has read; rank 1 its part, which is sent.
    assert one.kept == other.kept == with_halo + half + mean
    # When conv is differentiated: what it has read, the same with a border, gradients of output and kernel.
    assert other.working == with_halo + 4 * 2 * 6 * 2 + half + 4 * 24
    everyones = memory(*placed(ways.spatial(NETWORK, (2,), range(2))), 2, slots=1, whole_update=True)
    assert everyones[0].variables == 4 * 24 and everyones[0].slots == 4 * 24


def test_memory_of_a_received_box_is_freed_once_it_is_a_part_of_what_is_read():
    # conv's channels on two ranks, relu on rank 0: half of conv's output arrives and is joined with its own.
    layouts = on(0) | {"conv": ways.filters(NETWORK, {0: 1.0, 1: 1.0}, master=True)["conv"]}
    one, other = memory(*placed(layouts), 2, slots=0)
    x, half, whole_, mean = 4 * 32, 4 * 32, 4 * 64, 4 * 8
    assert one.kept == x + whole_ + mean and other.kept == x + half
    # When relu is computed: own half, the other one, both joined, and relu.
    assert one.working == x + half + half + whole_ + whole_
    # Rank 1: x, the same with a border, the gradient that it receives, and that of its weights.
    assert other.working == x + 4 * 2 * 10 * 2 + half + 4 * 12
