"""An update that follows another: stages overlap, what all wait for does not, and nobody is overtaken."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from test_placement_costs import profile
from test_predicting import placed
from test_simulation_engine import RANKS, Shared, latencies, rates, seconds_of, work

from trainer.forecast import groups
from trainer.planning.placement.costs import Durations
from trainer.planning.placement.tasks import Message, Receive, Send, UpdateOwned
from trainer.planning.simulation import cluster, engine, steady
from trainer.planning.simulation.fabric import ClusterFabric

# On a rank, of each Update.
SECONDS = {0: 3.0, 1: 1.0}
FABRIC = Shared(rate=4.0, trunk=4.0)


def seconds(rank, task):
    return SECONDS[rank] if isinstance(task, UpdateOwned) else 0.0


def message(source, target):
    """Four bytes: a second on its way."""
    return (Message("output", "x", 0, source, target, 4, 1),)


def one_after_another(lists, *of):
    return steady.step_s(steady.two_updates(lists), *of)


def both(lists):
    return engine.play(lists, seconds, FABRIC, 2).step_s, one_after_another(lists, seconds, FABRIC, 2)


def test_a_stage_works_on_the_next_update_while_the_other_one_does_on_this_one():
    there = message(0, 1)
    assert both({0: (UpdateOwned(), Send(there)), 1: (Receive(there), UpdateOwned())}) == (5.0, 3.0)


def test_what_every_rank_waits_for_at_the_end_is_not_hidden():
    there, back = message(0, 1), message(1, 0)
    lists = {0: (UpdateOwned(), Send(there), Receive(back)), 1: (Receive(there), UpdateOwned(), Send(back))}
    assert both(lists) == (6.0, 6.0)


def test_the_first_half_is_over_when_the_last_rank_has_done_it():
    there = message(0, 1)
    lists = {0: (UpdateOwned(), Send(there)), 1: (Receive(there), UpdateOwned())}
    assert engine.play(lists, seconds, FABRIC, 2, halves=True).half_s == 4.0
    assert engine.play(lists, seconds, FABRIC, 2).half_s == 0.0


@settings(max_examples=60, deadline=None)
@given(work(), rates, latencies)
def test_no_update_takes_less_than_its_busiest_rank_computes(drawn, rate, latency):
    placement, lists, measured = drawn
    fabric = Shared(rate, rate / 2, latency)
    takes = seconds_of(placement, measured)
    alone = engine.play(lists, takes, fabric, RANKS)
    found = one_after_another(lists, takes, fabric, RANKS)
    assert found >= max(alone.busy_s) * (1 - 1e-9)


def test_ranks_without_a_share_do_not_matter():
    _, lists = placed()
    assert {rank for rank, tasks in lists.items() if tasks} == {0}
    lists = {**lists, 1: ()}
    assert one_after_another(lists, lambda rank, task: 1.0, FABRIC, 2) == pytest.approx(len(lists[0]))


def test_groups_take_as_long_as_a_step_that_follows_another():
    there = message(0, 1)
    lists = {0: (UpdateOwned(), Send(there)), 1: (Receive(there), UpdateOwned())}
    placement, owned, measured = placed()[0], (8, 8), profile(2)
    fabric = ClusterFabric(cluster.load("cpu-ethernet"), 2)
    seconds = Durations(placement, measured, dict(enumerate(owned))).of
    alone = engine.play(lists, seconds, fabric, 2).step_s
    found = groups.play(
        SimpleNamespace(placement=placement, owned=owned, rounds=[(lists, 3)]),
        measured,
        fabric,
        deviation=0.0,
    )
    assert found.played.step_s == alone
    assert found.step.step_s == pytest.approx(3 * one_after_another(lists, seconds, fabric, 2))
    assert found.step.step_s < 0.9 * 3 * alone
