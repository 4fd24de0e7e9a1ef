"""A hypergraph divided over more ranks than messages are listed of: what is found, and what it costs."""

from __future__ import annotations

import pytest
from planned_networks import small
from wording import fails_with

from trainer import models
from trainer.errors import ConfigError
from trainer.planning.hypergraph import judging, nested, planning, reference
from trainer.planning.hypergraph.candidates import tilings
from trainer.planning.hypergraph.choices import cuts
from trainer.planning.hypergraph.groups import groups
from trainer.planning.hypergraph.nets import hypergraph
from trainer.planning.hypergraph.planning import Estimates, uniform
from trainer.planning.hypergraph.wanted import PartitionGoal
from trainer.strategies.placed.reading import read


def resnet(samples=1, size=16):
    return read(models.build("resnet10", (size, size, size, 1), 2, width=8), samples)


@pytest.mark.parametrize("ranks", [2, 6])
def test_bytes_and_balance_of_layouts_are_those_of_the_task_lists(ranks):
    network = resnet(samples=2)
    profile = reference.profile(network, ranks)
    estimates = Estimates(network, profile, ranks, 1)
    for label, layouts in uniform(network, ranks, [1.0] * ranks).items():
        found = estimates.judged(label, layouts)
        listed = judging.judged(label, network, layouts, profile, ranks)
        assert found.bytes == listed.bytes, label
        assert found.imbalance == pytest.approx(listed.imbalance)
        assert found.layer_imbalance == pytest.approx(listed.layer_imbalance)


@pytest.mark.parametrize("objective, balance", [("time", "total"), ("volume", "total"), ("volume", "layers")])
def test_a_plan_of_many_ranks_is_no_worse_than_a_rule_and_its_bytes_are_those_of_the_lists(
    objective, balance, monkeypatch
):
    network, ranks = read(models.build("tiny", (16, 16, 16, 1), 2), 1), 12
    monkeypatch.setattr(judging, "MOST_LISTED", 8)
    monkeypatch.setattr("trainer.planning.hypergraph.candidates.MOST_LISTED", 8)
    wanted = PartitionGoal(objective, balance, imbalance=0.5)
    found = planning.plan(network, ranks, wanted)
    worth = [planning._worth(one, wanted) for one in (found.best, *found.uniform)]
    assert min(worth) == worth[0]
    assert {piece.rank for held in found.best.layouts.values() for piece in held.pieces} <= set(range(ranks))
    profile = reference.profile(network, ranks)
    assert judging.judged("", network, found.best.layouts, profile, ranks).bytes == found.best.bytes
    if balance == "total":
        assert found.hypergraphs


def test_a_partition_over_groups_is_divided_inside_them_without_gaps():
    network = resnet()
    some = groups(network)
    graph = hypergraph(network, some, dict(tilings(some, 4, None))["depth in 8"])
    outer = graph.layouts(some, [number % 4 for number in range(len(graph.weights))])
    for _, divided in nested.inside(outer, 80, 4):
        for held, before in zip(divided, outer, strict=True):
            held.check("divided")
            assert len(held.pieces) == len(held.ranks)
            for piece in held.pieces:
                assert any(box.contains(piece.box) for box in before.of(piece.rank // 20))


def test_cuts_over_fewer_ranks_leave_out_the_others():
    found = nested.over_fewer((1, 8, 8, 8, 16), 256)
    assert {len(one.layout.ranks) for one in found} == {4, 16, 64}
    assert all(rank % 4 == 0 for one in found for rank in one.layout.ranks)
    assert not nested.over_fewer((1, 8, 8, 8, 16), 65)
    assert cuts((1, 8, 8, 8, 16), [1.0] * 256)


def test_too_little_to_divide_is_refused_with_how_many_ranks_it_is_enough_for():
    with fails_with(ConfigError) as caught:
        planning.plan(small(samples=1), 100, PartitionGoal())
    assert "32 ranks or fewer" in caught.value.cure
    assert nested.most_parts([(7,)], 100) == 7
