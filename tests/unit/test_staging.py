"""Stages of a network: their task lists, what is kept, predicted seconds, and what planners are told."""

from __future__ import annotations

import dataclasses

import pytest
from planned_networks import small
from test_placement_costs import profile
from wording import fails_with

from trainer.errors import ConfigError
from trainer.planning.placement import costs, partitioning, staging
from trainer.planning.placement.checking import check
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.memory import early, memory
from trainer.planning.placement.tasks import Compute, Differentiate, Receive, Recompute, Send
from trainer.planning.placement.units import place
from trainer.planning.stages import steps

NETWORK = small()
PARTS = [("conv",), ("relu",), ("mean", "loss")]


def listed(ranks, *, micro_batches=4, schedule="1f1b", network=NETWORK, recompute=False):
    layouts = staging.on_ranks(network, PARTS, ranks)
    placement = place(network, layouts)
    pipeline = staging.pipeline(network, layouts, micro_batches, schedule, recompute=recompute)
    return placement, task_lists(placement, pipeline)


def passes(tasks):
    """F and B of each micro-batch, and R what is computed again, in the order in which a rank does them."""
    letters, found = {Compute: "F", Recompute: "R", Differentiate: "B"}, []
    for task in tasks:
        if type(task) in letters:
            one = letters[type(task)] + str(task.micro)
            found += [one] if found[-1:] != [one] else []
    return " ".join(found)


def test_operations_of_a_layer_stay_together_and_inputs_are_no_group():
    assert staging.groups(NETWORK) == [("conv",), ("relu",), ("mean",), ("loss",)]


def test_ranks_take_the_turns_of_the_schedule():
    _, lists = listed((0, 0, 1))
    assert passes(lists[0]) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert passes(lists[1]) == "F0 B0 F1 B1 F2 B2 F3 B3"
    _, lists = listed((0, 0, 1), schedule="gpipe")
    assert passes(lists[0]) == passes(lists[1]) == "F0 F1 F2 F3 B0 B1 B2 B3"


def test_a_rank_computes_again_before_each_backward_pass_that_does_not_follow_its_forward_pass():
    _, lists = listed((0, 0, 1), recompute=True)
    assert passes(lists[0]) == "F0 F1 R0 B0 F2 R1 B1 F3 R2 B2 R3 B3"
    assert passes(lists[1]) == "F0 B0 F1 B1 F2 B2 F3 B3"
    _, lists = listed((0, 0, 1), micro_batches=2, schedule="gpipe", recompute=True)
    assert passes(lists[0]) == "F0 F1 R0 B0 R1 B1"
    # A mean over a feature map is less than the map.
    assert passes(lists[1]) == "F0 F1 B0 B1"
    _, lists = listed((0, 0, 0), micro_batches=2, schedule="gpipe", recompute=True)
    # The loss is what no gradient is computed from.
    again = [task.unit.operation for task in lists[0] if isinstance(task, Recompute)]
    assert again == 2 * ["conv", "relu", "mean"]
    assert passes(listed((0, 0, 1), micro_batches=1, recompute=True)[1][0]) == "F0 B0"


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("ranks", [(0, 0, 0), (0, 1, 2), (2, 1, 0), (0, 1, 0)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_lists_can_be_carried_out_and_features_cross_once_for_each_micro_batch(ranks, schedule, recompute):
    placement, lists = listed(ranks, schedule=schedule, recompute=recompute)
    check(placement, lists)
    sent = {}
    for task in (task for tasks in lists.values() for task in tasks if isinstance(task, Send)):
        for one in task.messages:
            sent[one.source, one.target] = sent.get((one.source, one.target), 0) + one.elements
    assert sent == {pair: 4 * count for pair, count in placement.elements_sent().items() if count}


def test_a_gradient_of_another_micro_batch_or_an_update_too_early_is_found():
    placement, lists = listed((0, 0, 1), recompute=True)

    def planted(rank, change):
        tasks = list(lists[rank])
        change(tasks)
        check(placement, {**lists, rank: tuple(tasks)})

    def swapped(tasks):  # what is received of micro-batch 1 before that of micro-batch 0
        first, second = [i for i, task in enumerate(tasks) if isinstance(task, Receive)][:2]
        tasks[first], tasks[second] = tasks[second], tasks[first]

    def early(tasks):  # the update before the last gradients
        tasks.insert(tasks.index(next(t for t in tasks if getattr(t, "micro", 0) == 3)), tasks.pop())

    def at_once(tasks):  # what is computed again before anything is computed
        tasks.insert(0, next(task for task in tasks if isinstance(task, Recompute)))

    with fails_with(ConfigError):
        planted(0, at_once)
    with fails_with(ConfigError):
        planted(1, swapped)
    with fails_with(ConfigError):
        planted(0, early)


def test_a_stage_keeps_as_many_micro_batches_as_stages_come_from_it_on_and_gpipe_keeps_all():
    def kept(micro_batches, schedule):
        found = listed((0, 0, 1), micro_batches=micro_batches, schedule=schedule)
        return [one.kept for one in memory(*found, 2, slots=0)]

    # The inputs are there all the time, and one micro-batch of them is 2 x 8 x 2 numbers of 4 bytes.
    (first, second), one_by_one, volume = kept(1, "1f1b"), kept(8, "1f1b"), 4 * 2 * 8 * 2
    assert first > volume and second > 0
    assert one_by_one == [2 * (first - volume) + 8 * volume, second]
    assert kept(8, "gpipe") == [8 * first, 8 * second]


def test_messages_come_early_as_far_as_the_others_need_nothing_of_this_rank():
    placement, lists = listed((0, 1, 1))
    features = 4 * 2 * 8 * 4
    # The first stage sends two micro-batches before it needs a gradient, the second one works on one; it may
    # have sent both gradients by then.
    assert [one.early for one in memory(placement, lists, 2, slots=0)] == [features, features]
    there = early(lists, 1)
    asked = {task.messages: n for n, task in enumerate(lists[1]) if isinstance(task, Receive)}
    assert there.keys() == asked.keys()
    numbers = {bundle[0].micro: n for bundle, n in there.items() if bundle[0].content == "output"}
    assert numbers[0] == numbers[1] == 0
    sends = [n for n, task in enumerate(lists[1]) if isinstance(task, Send)]
    assert [numbers[2], numbers[3]] == [sends[0] + 1, sends[1] + 1]
    # Under gpipe all may be there before the first one is asked for.
    gpipe = early(listed((0, 1, 1), schedule="gpipe")[1], 1)
    assert {gpipe[bundle] for bundle in gpipe if bundle[0].content == "output"} == {0}
    assert [one.early for one in memory(*listed((0, 1, 1), micro_batches=1), 2, slots=0)] == [0, 0]


def test_with_recompute_a_stage_keeps_what_it_reads_of_others_and_one_micro_batch_s_activations():
    def found(ranks, recompute):
        return memory(*listed(ranks, micro_batches=8, schedule="gpipe", recompute=recompute), 2, slots=0)

    # The batch is there all the time; relu's output is kept for its gradient, and is sent.
    volume, features = 4 * 2 * 8 * 2, 4 * 2 * 8 * 4
    kept, again = found((0, 0, 1), False), found((0, 0, 1), True)
    assert kept[0].kept == 8 * volume + 8 * features and again[0].kept == 8 * volume + features
    # While relu is computed again: what it reads, its gradient, and that of the kernel so far.
    assert again[0].working == 8 * volume + 3 * features + 4 * 24
    assert kept[0].working > 8 * volume + 8 * features
    assert again[1].kept == kept[1].kept, "it would have to keep what it receives, which is more"


def test_what_planners_are_told_adds_up_to_the_whole_network():
    one = partitioning.problem(
        NETWORK, PARTS, profile(2, factors=[1, 3]), devices=2, replicas=1, micro_batches=4,
        schedule="1f1b", slots=2,
    )  # fmt: skip
    whole = place(NETWORK, staging.on_ranks(NETWORK, PARTS, (0, 0, 0)))
    alone = memory(whole, task_lists(whole), 1, slots=2)[0]
    assert one.state_bytes.sum() == alone.variables + alone.slots
    assert one.forward_s.sum(axis=0).tolist() == [15.0, 45.0]
    assert one.backward_s.sum(axis=0).tolist() == [30.0, 90.0]
    assert one.update_s.sum(axis=0).tolist() == [3.0, 9.0]
    cut = place(NETWORK, staging.on_ranks(NETWORK, PARTS, (0, 1, 2)))
    crossing = {pair: 4 * n for pair, n in cut.elements_sent().items() if n}
    assert {(p, q): one.moved_bytes[p, q] for p, q in [(0, 1), (1, 2)]} == {
        pair: size for pair, size in crossing.items() if pair[0] < pair[1]
    }


def test_replicas_pay_for_the_sum_of_their_gradients():
    def reduced(replicas):
        found = partitioning.problem(
            NETWORK, PARTS, profile(4), devices=2, replicas=replicas, micro_batches=1, schedule="gpipe",
            slots=0,
        )  # fmt: skip
        return found.reduced_s[:, 0].tolist()

    # 24 parameters of 4 bytes in the first partition, at 64 bytes/s and 0.5 s, there and back.
    assert reduced(1) == [0.0, 0.0, 0.0]
    assert reduced(2)[0] == 2 * (0.5 + 24 * 4 / 2 / 64)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("ranks", [(0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 1, 0)])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_step_that_a_planner_goes_by_is_that_of_the_task_lists(ranks, schedule, recompute):
    # Without seconds on the way the order of sends within a stage does not matter.
    measured = profile(2, factors=[1, 2], latency=0.0, rate=1e12)
    one = partitioning.problem(
        NETWORK, PARTS, measured, devices=2, replicas=1, micro_batches=4, schedule=schedule, slots=0,
        recompute=recompute,
    )  # fmt: skip
    cost = costs.predict(*listed(ranks, schedule=schedule, recompute=recompute), measured, 2)
    assert cost.step_s == pytest.approx(float(steps.step_s(one, [ranks])[0]), rel=1e-6)
    spent = {}
    for played in cost.played:
        assert played.end > played.start
        spent[played.rank] = spent.get(played.rank, 0.0) + played.end - played.start
    updating = measured.update_s(ranks[0], 24)
    assert sum(spent.values()) + updating == pytest.approx(sum(cost.busy_s))


def test_partitions_are_cut_where_they_take_about_as_long():
    assert partitioning.partitions(NETWORK, profile(2), 2, 2) == [("conv",), ("relu", "mean", "loss")]
    assert len(partitioning.partitions(NETWORK, profile(2), 2, 9)) == 4
    heavy = dataclasses.replace(NETWORK.operations[-1], flops=1e9)
    network = dataclasses.replace(NETWORK, operations=(*NETWORK.operations[:-1], heavy))
    assert partitioning.partitions(network, None, 2, 2) == [("conv", "relu", "mean"), ("loss",)]
