"""Mt-KaHyPar behind `Partitioner`: what it gives, what it is not given, and what becomes of its deaths."""

from __future__ import annotations

import dataclasses
import random
import sys
import time

import numpy as np
import pytest
from planned_networks import small, two_hosts
from wording import fails_with

from trainer import models
from trainer.planning.hypergraph import candidates, planning, reference
from trainer.planning.hypergraph.candidates import tilings
from trainer.planning.hypergraph.groups import groups
from trainer.planning.hypergraph.nets import hypergraph
from trainer.planning.hypergraph.partitioner import Partitioner, PartitionError
from trainer.planning.hypergraph.wanted import PartitionGoal
from trainer.strategies.placed.reading import read

NETWORK = small(samples=4)
GROUPS = groups(NETWORK)


@pytest.fixture(scope="module")
def partitioner():
    with Partitioner() as one:
        yield one


def resnet(samples=1, size=32, width=8):
    return read(models.build("resnet10", (size, size, size, 1), 2, width=width), samples)


def line_of(vertices):
    """A hypergraph whose tiles each share a net with the next one."""
    graph = hypergraph(NETWORK, GROUPS, [(1, 8, 1), (1,)])
    nets = tuple((one, one + 1) for one in range(vertices - 1))
    costs, counted = np.full(len(nets), 7), np.ones(len(nets), bool)
    return dataclasses.replace(graph, weights=np.ones(vertices), nets=nets, costs=costs, counted=counted)


def test_the_partitioner_finds_the_cut_of_two_clusters_and_is_the_same_each_time(partitioner):
    graph = hypergraph(NETWORK, GROUPS, [(1, 8, 1), (1,)])
    light = tuple((vertex, vertex + 1) for vertex in range(7))
    graph = dataclasses.replace(
        graph, weights=np.ones(9), nets=light, costs=np.array([9, 9, 9, 1, 9, 9, 9]), counted=np.ones(7, bool)
    )
    found = [partitioner.partition(graph, [1.0, 1.0], imbalance=0.2, seed=3) for _ in range(2)]
    assert found[0] == found[1]
    assert len(set(found[0][:4])) == len(set(found[0][4:8])) == 1 and found[0][0] != found[0][4]
    assert graph.connectivity(found[0]) == 1


@pytest.mark.parametrize(
    "shares, limit, change, told",
    [
        ([1.0], 0.1, {}, "two or more"),
        ([1.0, 0.0], 0.1, {}, "positive"),
        ([1.0, 1.0], -0.1, {}, "imbalance"),
        ([1.0] * 10, 0.1, {}, "cannot be divided into 10 parts"),
        ([1.0, 1.0], 0.1, {"nets": ((0, 0),)}, "twice"),
        ([1.0, 1.0], 0.1, {"nets": ((0, 99),)}, "not"),
        ([1.0, 1.0], 0.1, {"costs": np.array([-1])}, "costs"),
        ([1.0, 1.0], 0.1, {"weights": np.full(9, np.nan)}, "finite"),
    ],
)
def test_the_partitioner_gets_nothing_that_it_cannot_take(partitioner, shares, limit, change, told):
    graph = hypergraph(NETWORK, GROUPS, [(1, 8, 1), (1,)])
    graph = dataclasses.replace(graph, nets=((0, 1),), costs=np.array([1]), counted=np.ones(1, bool))
    with pytest.raises(ValueError, match=told):
        partitioner.partition(dataclasses.replace(graph, **change), shares, imbalance=limit, seed=0)


@pytest.mark.parametrize("tiles, part", [("whole layers", 0.01), ("depth in 4", 1), ("channels in 4", 1)])
def test_less_crosses_between_hosts_where_parts_are_mapped_onto_links(partitioner, tiles, part):
    network = resnet()
    some = groups(network)
    graph = hypergraph(network, some, dict(tilings(some, 4, 4))[tiles])
    far = candidates.distances(two_hosts(network), 4)
    assert far is not None and candidates.distances(reference.profile(network, 4), 4) is None
    found = [
        partitioner.partition(graph, [1.0] * 4, imbalance=0.1, seed=0, distances=one) for one in (None, far)
    ]
    before, after = (graph.connectivity([one // 2 for one in parts], counted=False) for parts in found)
    assert after <= part * before
    within = [graph.weights[np.array(found[1]) == one].sum() for one in range(4)]
    assert max(within) <= 1.1 * sum(within) / 4 + graph.weights.max()


def test_distances_that_are_none_are_refused(partitioner):
    graph = hypergraph(NETWORK, GROUPS, [(1, 8, 1), (1,)])
    for far in ([[0.0, 1.0]], [[0.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [float("nan"), 0.0]]):
        with pytest.raises(ValueError, match="distances"):
            partitioner.partition(graph, [1.0, 1.0], imbalance=0.1, seed=0, distances=far)


def test_unequal_ranks_get_unequal_parts(partitioner):
    network = resnet()
    some = groups(network)
    graph = hypergraph(network, some, dict(tilings(some, 4, 8))["depth in 8"])
    parts = np.array(partitioner.partition(graph, [1.0, 0.25], imbalance=0.05, seed=0))
    assert graph.weights[parts == 0].sum() / graph.weights.sum() == pytest.approx(0.8, abs=0.05)


def test_unequal_ranks_on_unequal_links_get_their_parts(partitioner):
    """What ended a run of three ranks with a segmentation fault, in one of its first ten partitions."""
    network = read(models.build("tiny", (24, 24, 24, 1), 2, width=4), 6)
    some = groups(network)
    draw = random.Random(0)
    for label, counts in tilings(some, 3, 8):
        graph = hypergraph(network, some, counts)
        shares = [draw.uniform(0.5, 1) for _ in range(3)]
        far = [
            [0.0 if a == b else draw.choice([1.0, 1.0, 2.0, 5.0, 30.0]) for b in range(3)] for a in range(3)
        ]
        parts = np.array(partitioner.partition(graph, shares, imbalance=0.1, seed=5, distances=far))
        assert len(parts) == len(graph.weights), label
        if len(parts) > 100:
            for rank, share in enumerate(shares):
                most = 1.1 * graph.weights.sum() * share / sum(shares)
                assert graph.weights[parts == rank].sum() <= 1.02 * most, label


def answering(tmp_path, code):
    """A partitioner whose process runs this code for each line that it reads."""
    program = tmp_path / "program.py"
    program.write_text(f"import os, signal, sys, time\nfor line in sys.stdin:\n    {code}\n")
    return [sys.executable, str(program)]


@pytest.mark.parametrize(
    "code, told",
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended with SIGSEGV"),
        ("sys.exit(3)", "ended with code 3"),
        ('print(\'{"refused": "too odd"}\', flush=True)', "refused: too odd"),
    ],
)
def test_a_death_is_an_answer_and_the_next_partition_is_tried(tmp_path, code, told):
    with Partitioner(program=answering(tmp_path, code)) as one:
        for _ in range(2):
            with pytest.raises(PartitionError, match=told):
                one.partition(line_of(4), [1.0, 1.0], imbalance=0.1, seed=0)


def test_what_takes_too_long_is_ended_and_not_tried_again(tmp_path):
    with Partitioner(0.5, answering(tmp_path, "time.sleep(60)")) as one:
        began = time.monotonic()
        with fails_with(PartitionError):
            one.partition(line_of(4), [1.0, 1.0], imbalance=0.1, seed=0)
        with fails_with(PartitionError):
            one.partition(line_of(4), [1.0, 1.0], imbalance=0.1, seed=0)
        assert time.monotonic() - began < 30


def test_no_process_is_left():
    with Partitioner() as one:
        one.partition(line_of(4), [1.0, 1.0], imbalance=0.1, seed=0)
        started = one._process
    assert started is not None and started.returncode == 0


def test_a_plan_is_made_without_the_partitions_that_cannot_be_had(monkeypatch, tmp_path):
    program = answering(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setattr(candidates, "Partitioner", lambda: Partitioner(program=program))
    network = read(models.build("tiny", (16, 16, 16, 1), 2, width=4), 1)
    found = planning.plan(network, 4, PartitionGoal("time", granularity=2), profile=two_hosts(network))
    assert found.best.step_s <= min(one.step_s for one in found.uniform)
    assert any(one.startswith("partition of ") for one in found.left_out)
    assert all(one.endswith(": it ended with SIGSEGV") for one in found.left_out)
