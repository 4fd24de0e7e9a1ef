"""The engine: nothing is lost, nothing is early, and without sharing it is the model of `placement.costs`."""

from __future__ import annotations

import itertools

import pytest
import schedule_bounds
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_networks import small
from test_placement_costs import profile, random_layouts

from trainer.planning.placement import costs, ways
from trainer.planning.placement.costs import Durations
from trainer.planning.placement.layouts import replicated
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.tasks import Message, Receive, Send
from trainer.planning.placement.units import place
from trainer.planning.profile import Profile
from trainer.planning.simulation import engine
from trainer.planning.simulation.fabric import PairLinks, Path

RANKS = 3
rates = st.floats(1.0, 1e6)
latencies = st.floats(0.0, 5.0)


class Shared:
    """Ranks with ports of their own at a switch, and a trunk between the even and the odd ones."""

    def __init__(self, rate, trunk, latency=0.0):
        self.rate, self.trunk, self.latency = rate, trunk, latency

    def path(self, source, target):
        across = (("trunk", source % 2),) if source % 2 != target % 2 else ()
        return Path(self.latency, (("out", source), *across, ("in", target)))

    def capacity(self, resource):
        return self.trunk if resource[0] == "trunk" else self.rate


@st.composite
def work(draw):
    """Task lists of a random layout, and what tells their seconds."""
    placement = place(small(), draw(random_layouts()))
    factors = draw(st.lists(st.floats(0.5, 4.0), min_size=RANKS, max_size=RANKS))
    measured = profile(RANKS, factors=factors, rate=draw(rates), latency=draw(latencies))
    handled = draw(st.tuples(*[st.floats(0.0, 2.0)] * RANKS))
    handling = {"message_s": handled, "byte_s": tuple(one / 64 for one in handled)}
    measured = Profile.model_validate(measured.model_dump() | {"handling": handling})
    return placement, task_lists(placement), measured


def seconds_of(placement, measured):
    return Durations(placement, measured, dict(enumerate(costs.owned(placement, RANKS)))).of


@settings(max_examples=60, deadline=None)
@given(work())
def test_without_shared_links_it_is_the_prediction_of_a_plan(drawn):
    placement, lists, measured = drawn
    predicted = costs.predict(placement, lists, measured, RANKS)
    played = engine.play(lists, seconds_of(placement, measured), PairLinks(measured), RANKS)
    assert played.step_s == pytest.approx(predicted.step_s, rel=1e-12)
    assert played.busy_s == pytest.approx(predicted.busy_s, rel=1e-12)
    assert played.waiting_s == pytest.approx(predicted.waiting_s, rel=1e-9, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(work(), rates, rates, latencies)
def test_all_that_is_sent_arrives_nothing_is_early_and_no_bound_is_beaten(drawn, rate, trunk, latency):
    placement, lists, measured = drawn
    fabric, seconds = Shared(rate, trunk, latency), seconds_of(placement, measured)
    played = engine.play(lists, seconds, fabric, RANKS)
    sends = [task for tasks in lists.values() for task in tasks if isinstance(task, Send)]
    assert len(played.transfers) == len(sends)
    for rank in range(RANKS):
        sent = sum(m.bytes for task in sends for m in task.messages if m.source == rank)
        received = sum(m.bytes for task in sends for m in task.messages if m.target == rank)
        assert sum(one.bytes for one in played.transfers if one.source == rank) == sent
        assert sum(one.bytes for one in played.transfers if one.target == rank) == received
        assert played.loads.get(("out", rank), engine.Load(0, 0)).bytes == sent
        assert played.loads.get(("in", rank), engine.Load(0, 0)).bytes == received
    for one in played.transfers:
        least = latency + one.bytes / min(rate, trunk if (one.source + one.target) % 2 else rate)
        assert one.sent <= one.start and one.end - one.start >= least * (1 - 1e-9)
    for rank in range(RANKS):  # one task at a time
        spans = [span for span in played.spans if span.rank == rank]
        assert all(one.end <= other.start + 1e-9 for one, other in itertools.pairwise(spans))
        _check_inputs(lists.get(rank, ()), rank, played)
    longest = schedule_bounds.critical_path(lists, seconds, fabric)
    busiest = schedule_bounds.busiest_link(played.loads, fabric)
    most = max(longest, busiest, *played.busy_s)
    assert played.step_s >= most * (1 - 1e-9)
    for resource, load in played.loads.items():
        assert load.bytes / fabric.capacity(resource) <= load.busy_s * (1 + 1e-9)


def _check_inputs(tasks, rank, played):
    """No task of a rank begins before all bundles that the list receives ahead of it have arrived."""
    coming = {
        source: iter([one for one in played.transfers if (one.source, one.target) == (source, rank)])
        for source in range(RANKS)
    }
    done = [span for span in played.spans if span.rank == rank and not isinstance(span.task, Receive)]
    arrived = 0.0
    for task in tasks:
        if isinstance(task, Receive):
            arrived = max(arrived, next(coming[task.messages[0].source]).end)
        elif done and done[0].task == task:
            assert done.pop(0).start >= arrived - 1e-9
    assert not done


@settings(max_examples=60, deadline=None)
@given(work(), rates, st.floats(1.0, 100.0))
def test_faster_links_that_nobody_shares_never_make_it_longer(drawn, rate, factor):
    placement, lists, measured = drawn
    seconds = seconds_of(placement, measured)
    slow, fast = (
        engine.play(lists, seconds, PairLinks(profile(RANKS, rate=one)), RANKS).step_s
        for one in (rate, rate * factor)
    )
    assert fast <= slow * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(work(), rates, st.floats(1.0, 100.0))
def test_faster_shared_links_shorten_both_bounds(drawn, rate, factor):
    placement, lists, measured = drawn
    seconds = seconds_of(placement, measured)
    slow, fast = Shared(rate, rate), Shared(rate * factor, rate * factor)
    played = [engine.play(lists, seconds, one, RANKS) for one in (slow, fast)]
    paths = [schedule_bounds.critical_path(lists, seconds, one) for one in (slow, fast)]
    assert paths[1] <= paths[0] * (1 + 1e-9)
    busiest = [
        schedule_bounds.busiest_link(one.loads, of) for one, of in zip(played, (slow, fast), strict=True)
    ]
    assert busiest[1] <= busiest[0] * (1 + 1e-9)


def test_faster_shared_links_may_make_it_longer_where_a_message_then_meets_another():
    """Fair sharing is not monotone; a known anomaly of list schedules (Graham, 1969), kept to be known of."""
    small_one, large, critical = of(3, 1, 15), of(1, 2, 40), of(0, 2, 5)
    works = {0: 10.0, 2: 100.0}
    lists = {
        0: ("work", Send(critical)),
        1: (Receive(small_one), Send(large)),
        2: (Receive(critical), "work", Receive(large)),
        3: (Send(small_one),),
    }
    slow, fast = (
        engine.play(
            lists, lambda rank, task: works[rank] if task == "work" else 0.0, Shared(rate, 1e9), 4
        ).step_s
        for rate in (1.0, 1.5)
    )
    assert slow == 115.0 and fast == pytest.approx(100 + 10 + 5 / 0.75)


def of(source, target, size, number=0):
    return (Message("output", "x", number, source, target, size, 1),)


def test_two_flows_share_a_link_evenly_and_the_rest_of_the_longer_one_has_it_alone():
    first, second = of(0, 2, 100), of(1, 2, 300)
    lists = {0: (Send(first),), 1: (Send(second),), 2: (Receive(first), Receive(second))}
    played = engine.play(lists, lambda rank, task: 0.0, Shared(100.0, 1e9, latency=1.0), 3)
    # 100 bytes of each at 50 bytes/s, then 200 at 100.
    assert [one.end for one in played.transfers] == [3.0, 5.0]
    assert played.loads["in", 2] == engine.Load(400, 4.0)
    assert [(span.start, span.end) for span in played.spans] == [(0.0, 3.0), (3.0, 5.0)]


def test_bundles_of_two_ranks_follow_each_other_with_their_latencies():
    first, second = of(0, 1, 100), of(0, 1, 100, 1)
    lists = {0: (Send(first), Send(second)), 1: (Receive(second), Receive(first))}
    played = engine.play(lists, lambda rank, task: 0.0, Shared(100.0, 1e9, latency=0.5), 2)
    assert [(one.sent, one.start, one.end) for one in played.transfers] == [(0.0, 0.0, 1.5), (0.0, 1.5, 3.0)]
    assert played.step_s == 3.0


def test_a_slow_rank_computes_longer_and_lists_that_cannot_go_on_are_refused():
    placement = place(
        small(), {o.name: replicated(ways.placed_shape(o), [0]) for o in small().operations if o.readings}
    )
    lists, measured = task_lists(placement), profile(RANKS)
    seconds = seconds_of(placement, measured)
    assert engine.play(lists, seconds, PairLinks(measured), RANKS, slowdown={0: 1.5}).step_s == 72.0
    stuck = {0: (Receive(of(1, 0, 1)),), 1: (Receive(of(0, 1, 1)),)}
    with pytest.raises(ValueError, match="for ever"):
        engine.play(stuck, seconds, PairLinks(measured), RANKS)
    with pytest.raises(ValueError, match="for ever"):
        schedule_bounds.critical_path(stuck, seconds, PairLinks(measured))


@given(
    st.lists(st.sets(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=8),
    st.lists(st.floats(0.1, 100.0), min_size=6, max_size=6),
)
def test_rates_are_max_min_fair(paths, capacities):
    found = engine.fair(dict(enumerate(map(tuple, paths))), lambda resource: capacities[resource])
    used = [sum(found[f] for f, path in enumerate(paths) if r in path) for r in range(6)]
    assert all(one <= most * (1 + 1e-9) for one, most in zip(used, capacities, strict=True))
    for flow, path in enumerate(paths):
        # Some link of its way is full, and no flow there has more.
        assert any(
            used[r] >= capacities[r] * (1 - 1e-9)
            and all(found[o] <= found[flow] * (1 + 1e-9) for o, other in enumerate(paths) if r in other)
            for r in path
        )
