"""The hypergraph of a network, its partitions, and the plan that is made of them."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_networks import small, two_hosts

from trainer import models
from trainer.planning.hypergraph import candidates, exact, judging, planning, reference
from trainer.planning.hypergraph.choices import cuts, imbalance, whole
from trainer.planning.hypergraph.groups import groups, layouts
from trainer.planning.hypergraph.nets import hypergraph
from trainer.planning.hypergraph.planning import uniform
from trainer.planning.hypergraph.search import Search
from trainer.planning.hypergraph.traffic import Traffic
from trainer.planning.hypergraph.wanted import PartitionGoal
from trainer.planning.placement import checking
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.tasks import Send
from trainer.planning.placement.units import place
from trainer.strategies.placed.reading import read

NETWORK = small(samples=4)
GROUPS = groups(NETWORK)


def resnet(samples=1, size=32, width=8):
    return read(models.build("resnet10", (size, size, size, 1), 2, width=width), samples)


def sent(lists):
    """Bytes of all messages."""
    return sum(
        one.bytes
        for some in lists.values()
        for task in some
        if isinstance(task, Send)
        for one in task.messages
    )


def indices(box):
    return itertools.product(*(range(*one) for one in box.ranges))


def counted(by_cause):
    return sum(size for cause, size in by_cause.items() if cause != "statistics")


def test_what_reads_single_elements_is_divided_with_what_it_reads():
    # Sums over the convolution's output are parts of it, too.
    assert [one.names for one in GROUPS] == [("conv", "relu", "mean"), ("loss",)]
    assert GROUPS[0].shape == (4, 8, 4) and GROUPS[0].flops == 4 * (500 + 5 + 5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32))
def test_connectivity_is_what_crosses_for_any_partition(samples, length, channels, seed):
    graph = hypergraph(NETWORK, GROUPS, [(samples, length, channels), (samples,)])
    draw = random.Random(seed)
    parts = [draw.randrange(3) for _ in graph.weights]
    divided = graph.layouts(GROUPS, parts)
    placement = place(NETWORK, layouts(GROUPS, divided))
    lists = task_lists(placement)
    checking.check(placement, lists)
    crossing = judging.sent_bytes(placement)
    assert sum(crossing.values()) == sent(lists)
    assert graph.connectivity(parts) == counted(crossing)
    assert Traffic(NETWORK, GROUPS).total(divided) == crossing
    twice = hypergraph(NETWORK, GROUPS, [(samples, length, channels), (samples,)], 2)
    assert twice.connectivity(parts) == counted(judging.sent_bytes(placement, 2))
    # Parts of a mean on one rank may lie apart: it has nothing of what is between them.
    made = {(unit.rank, one) for unit in placement.of("mean") for one in indices(unit.box)}
    have = placement.flows["mean"].have
    assert sum(have.elements(rank) for rank in have.ranks) == len(made)
    assert graph.weights.sum() == pytest.approx(sum(one.flops for one in GROUPS))


@pytest.mark.parametrize(
    "name",
    [
        "conv2",
        pytest.param("densenet121", marks=pytest.mark.deep),
        *("resattnet18", "resnet10", "sfcn", "tiny", "unet3d", "unet3d_residual", "vgg"),
    ],
)
def test_bytes_by_cause_are_those_that_cross_for_registered_networks(name):
    shape = (32, 32, 3) if name == "conv2" else (32, 32, 32, 1)
    network = read(models.build(name, shape, 2, width=4, dense=name.startswith("unet")), 2)
    some, draw = groups(network), random.Random(name)
    traffic = Traffic(network, some)
    for ranks in (2, 3):
        picked = [
            draw.choice(
                [*cuts(one.shape, [1.0] * ranks), *(whole(one.shape, r) for r in range(ranks))]
            ).layout
            for one in some
        ]
        placement = place(network, layouts(some, picked))
        assert traffic.total(picked) == judging.sent_bytes(placement)
        lists = task_lists(placement)
        checking.check(placement, lists)
        assert sum(traffic.total(picked).values()) == sent(lists)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_data_parallelism_is_a_partition_and_sends_what_a_ring_sends(ranks):
    network = resnet(samples=ranks)
    some = groups(network)
    graph = hypergraph(network, some, [(ranks, *(1 for _ in one.shape[1:])) for one in some])
    parts = [number % ranks for one in graph.tilings for number in range(one.size)]
    assert graph.connectivity(parts) == 2 * (ranks - 1) * 4 * network.parameters


def test_a_mapping_onto_links_is_looked_at(monkeypatch):
    network = read(models.build("tiny", (16, 16, 16, 1), 2, width=4), 1)
    labels = []
    judged = judging.judged
    monkeypatch.setattr(
        judging, "judged", lambda label, *rest: (labels.append(label), judged(label, *rest))[1]
    )
    planning.plan(network, 4, PartitionGoal("time", granularity=2), profile=two_hosts(network))
    assert any(label.startswith("mapping of ") for label in labels)


def test_the_exact_program_agrees_with_all_partitions_tried():
    graph = hypergraph(NETWORK, GROUPS, [(1, 4, 2), (1,)])
    limit = 1.3 / 2 * graph.weights.sum()
    least = min(
        graph.connectivity(parts, counted=False)
        for parts in itertools.product(range(2), repeat=len(graph.weights))
        if max(graph.weights[np.array(parts) == part].sum() for part in range(2)) <= limit + 1e-9
    )
    solved = exact.solve(graph, [1.0, 1.0], imbalance=0.3)
    assert solved.parts is not None and solved.bound == pytest.approx(least)
    assert graph.connectivity(solved.parts, counted=False) == least > 0


def test_the_search_changes_runs_of_layers_where_one_alone_would_lose():
    network = resnet(width=32)
    some = groups(network)
    profile = reference.profile(network, 2)
    offered = [[whole(one.shape, 0), whole(one.shape, 1), *cuts(one.shape, [1.0, 1.0])] for one in some]
    search = Search(
        Traffic(network, some), offered, candidates.machine(network, some, profile, 2), "volume",
        imbalance=0.1, tries=10_000,
    )  # fmt: skip
    everywhere = search.labelled("depth / 2", (0,) * len(some))
    chosen, value = search.descend(everywhere)
    assert value == search.value(chosen) and value.over == 0.0
    assert value.cost < 0.7 * search.value(everywhere).cost
    # With one try nothing is found that takes more.
    assert Search(
        Traffic(network, some), offered, candidates.machine(network, some, profile, 2), "volume",
        imbalance=0.1, tries=1,
    ).descend(everywhere)[1].cost > value.cost  # fmt: skip


@pytest.mark.parametrize(
    "ranks, objective, balance",
    [
        (2, "volume", "layers"),
        pytest.param(3, "volume", "total", marks=pytest.mark.deep),
        pytest.param(2, "time", "total", marks=pytest.mark.deep),
    ],
)
def test_a_plan_is_never_worse_than_a_way_that_follows_one_rule(ranks, objective, balance):
    network = resnet(samples=2, width=12)
    found = planning.plan(network, ranks, PartitionGoal(objective, balance))
    assert {"spatial", "filters", "filters, master", "layers"} <= {one.label for one in found.uniform}
    best = found.best
    placement = place(network, best.layouts)
    lists = task_lists(placement)
    checking.check(placement, lists)
    assert best.volume == sent(lists)
    for one in found.uniform:
        if objective == "time":
            assert best.step_s <= one.step_s
        elif max(one.imbalance, one.layer_imbalance if balance == "layers" else 0.0) <= 0.1:
            assert best.volume <= one.volume
    if objective == "volume":
        assert best.imbalance <= 0.1
        assert balance == "total" or best.layer_imbalance <= 0.1


@pytest.mark.deep
def test_a_plan_for_time_looks_at_all_that_plans_for_volume_do(monkeypatch):
    network = resnet(size=16)
    looked_at = []
    judged = judging.judged

    def noted(label, network, divided, *rest):
        looked_at[-1].append(divided)
        return judged(label, network, divided, *rest)

    monkeypatch.setattr(judging, "judged", noted)
    best = []
    for wanted in (PartitionGoal("time"), PartitionGoal("volume")):
        looked_at.append([])
        best.append(planning.plan(network, 2, wanted).best)
    assert all(divided in looked_at[0] for divided in looked_at[1])
    assert best[0].step_s <= best[1].step_s


@pytest.mark.deep
def test_every_layer_is_balanced_where_that_is_asked_for_and_no_rank_has_more_where_not():
    network = resnet(width=16)
    layers = planning.plan(network, 2, PartitionGoal("volume", "layers")).best
    total = planning.plan(network, 2, PartitionGoal("volume", "total")).best
    assert layers.layer_imbalance <= 0.1 and total.imbalance <= 0.1 < total.layer_imbalance
    assert total.volume < layers.volume


def test_cuts_of_unequal_ranks_follow_their_speeds():
    found = {one.label: one for one in cuts((1, 8, 8, 8, 16), [1.0, 0.5])}
    assert [found["channels / 2"].layout.elements(rank) for rank in (0, 1)] == [8**3 * 11, 8**3 * 5]
    assert imbalance(found["channels / 2"], [1.0, 0.5]) == pytest.approx(11 / 16 * 1.5 - 1)
    assert all(len(label.split(",")) == 1 for label in found)


def test_rules_that_cannot_divide_a_network_are_left_out():
    assert "data" not in uniform(small(samples=1), 2, [1.0, 1.0])
    assert "data" in uniform(small(samples=2), 2, [1.0, 1.0])
