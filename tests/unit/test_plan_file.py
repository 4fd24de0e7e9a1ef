"""The file of a plan: it is read as it was written, and what is wrong in it is refused by name."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_networks import small
from wording import fails_with

from trainer.errors import InputError
from trainer.planning.placement import plan_file, ways
from trainer.planning.placement.boxes import Box, whole
from trainer.planning.placement.layouts import layout
from trainer.planning.placement.plan_file import PlanFile
from trainer.planning.placement.units import place

NETWORK = small()


def tree(**more):
    """A plan of two ranks: the convolution cut along space, all else on rank 0."""
    layouts = ways.spatial(NETWORK, (2,), range(2))
    made = PlanFile.of(place(NETWORK, layouts), name="small", strategy="spatial", ranks=2)
    return {**json.loads(made.text()), **more}


def with_operation(name, /, **changes):
    found = tree()
    number = [one["name"] for one in found["operations"]].index(name)
    found["operations"][number].update(changes)
    return found


def read(tmp_path, content, **more):
    path = tmp_path / "plan.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return plan_file.read(path, NETWORK, **{"name": "small", "ranks": 2, **more})


def refused(tmp_path, content, **more):
    with pytest.raises(InputError) as caught:
        read(tmp_path, content, **more)
    path = tmp_path / "plan.json"
    assert caught.value.message.startswith(f"{path}: ") and caught.value.path == path
    return caught.value.message.removeprefix(f"{path}: "), caught.value.key


def test_a_plan_is_read_as_it_was_written_and_has_a_line_for_each_operation(tmp_path):
    layouts = ways.spatial(NETWORK, (2,), range(2))
    text = PlanFile.of(place(NETWORK, layouts), name="small", strategy="spatial", ranks=2).text()
    found = read(tmp_path, text)
    assert found.layouts == layouts and found.placement == place(NETWORK, layouts)
    assert sorted(found.lists) == [0, 1]
    assert sum(line.strip().startswith('{"name"') for line in text.splitlines()) == 4


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_random_layouts_come_back_whatever_the_order_of_their_boxes(tmp_path_factory, data):
    layouts = {}
    for one in NETWORK.operations:
        if one.readings:
            shape = ways.placed_shape(one)
            held: dict[int, list[Box]] = {}
            for at in range(shape[1] if len(shape) > 1 else 1):
                box = whole(shape).with_range(1, (at, at + 1)) if len(shape) > 1 else whole(shape)
                held.setdefault(data.draw(st.integers(0, 2)), []).append(box)
            layouts[one.name] = layout(shape, held)
    made = json.loads(PlanFile.of(place(NETWORK, layouts), name="small", strategy="", ranks=3).text())
    for one in made["operations"]:
        one["pieces"] = data.draw(st.permutations(one["pieces"]))
    data.draw(st.randoms()).shuffle(made["operations"])
    assert read(tmp_path_factory.mktemp("plans"), made, ranks=3).layouts == layouts


def moved():
    return with_operation("relu", pieces=[[1, [[0, 2], [0, 8], [0, 4]]]])


def test_an_operation_that_is_moved_by_hand_is_computed_there(tmp_path):
    units = read(tmp_path, moved()).placement.of("relu")
    assert [(unit.rank, unit.box) for unit in units] == [(1, whole((2, 8, 4)))]


def without(name):
    found = tree()
    found["operations"] = [one for one in found["operations"] if one["name"] != name]
    return found


def twice(name):
    found = tree()
    found["operations"].append(copy.deepcopy(found["operations"][1]))
    return found


HALF = [0, [[0, 2], [0, 4], [0, 4]]]


@pytest.mark.parametrize(
    "content, key, said",
    [
        (tree(version=2), "version", "reads versions up to 1"),
        (tree(ranks=0), "ranks", "greater than or equal to 1"),
        (tree(more=1), "more", "extra inputs are not permitted"),
        (tree(operations=[]), "operations", "at least 1 item"),
        (tree(network="tiny"), "network", "is a plan for the network tiny, not for small"),
        (tree(ranks=4), "ranks", "is a plan for 4 rank(s), and 2 would train"),
        (tree(replicas=2), "replicas", "is a plan for 2 replica(s), not 1"),
        (twice("relu"), "operations.relu", "is there twice"),
        (without("relu"), "operations.relu", "does not say which ranks compute relu"),
        (with_operation("relu", name="rulu"), "operations.rulu", "has no operation rulu"),
        (with_operation("relu", shape=[2, 8, 5]), "operations.relu", "[2, 8, 5], here [2, 8, 4]"),
        (with_operation("relu", pieces=[HALF]), "operations.relu", "no rank holds [0:2, 4:8, 0:4]"),
        (with_operation("relu", pieces=[HALF, HALF]), "operations.relu", "which overlap"),
        (
            with_operation("conv", pieces=[[0, [[0, 2], [0, 8], [0, 4]]], [1, HALF[1]]]),
            "operations.conv",
            "ranks 0 and 1 both compute [0:2, 0:4, 0:4]",
        ),
        (with_operation("relu", pieces=[[0, [[0, 2], [0, 9], [0, 4]]]]), "operations.relu", "not inside"),
        (with_operation("relu", pieces=[[0, [[0, 2], [0, 8]]]]), "operations.relu", "not inside"),
        (with_operation("relu", pieces=[[0, [[0, 2], [8, 8], [0, 4]]]]), "operations.relu", "8:8 is empty"),
        (with_operation("relu", pieces=[[2, HALF[1]]]), "operations.relu", "rank 2 is not one of 0 to 1"),
        (with_operation("relu", pieces=[["0", HALF[1]]]), "operations.relu.pieces.0.0", "valid integer"),
        (with_operation("relu", pieces=[]), "operations.relu.pieces", "at least 1 item"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_an_edited_plan_is_named_with_file_and_operation(tmp_path, content, key, said):
    message, named = refused(tmp_path, content)
    assert said in message and named == key


def test_a_plan_of_a_run_folder_or_no_json_is_refused(tmp_path):
    assert "is no JSON" in refused(tmp_path, "{")[0]
    assert "version: field required" in refused(tmp_path, {"strategy": "spatial", "micro_batch": 1})[0]
    with fails_with(InputError):
        plan_file.read(tmp_path / "nothing.json", NETWORK, name="small", ranks=2)


def test_a_plan_whose_ranks_wait_for_each_other_for_ever_is_refused(tmp_path, monkeypatch):
    whole_lists = plan_file.task_lists

    def late(placement, pipeline):
        lists = {rank: list(tasks) for rank, tasks in whole_lists(placement).items()}
        sends = next(task for task in lists[1] if type(task).__name__ == "Send")
        lists[1].remove(sends)
        lists[1].append(sends)
        return {rank: tuple(tasks) for rank, tasks in lists.items()}

    monkeypatch.setattr(plan_file, "task_lists", late)
    message, _ = refused(tmp_path, tree())  # as no list is that `task_lists` makes
    assert "wait for each other for ever: " in message


def test_samples_stay_with_their_replica(tmp_path):
    layouts = ways.replicas(NETWORK, 2, 1, lambda one: ways.spatial(one, (1,), [0]))
    made = PlanFile.of(place(NETWORK, layouts), name="small", strategy="spatial", ranks=2, replicas=2)
    content = json.loads(made.text())
    assert read(tmp_path, content, replicas=2).layouts == layouts
    for piece in content["operations"][-1]["pieces"]:
        piece[0] = 1 - piece[0]
    message, key = refused(tmp_path, content, replicas=2)
    assert key == "operations.loss"
    assert "loss: rank 0 needs samples 1:2, and its replica reads 0:1" in message


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 7])
def test_layouts_for_other_samples_cover_them_and_use_no_other_weights(samples):
    before = ways.replicas(small(4), 2, 2, lambda one: ways.filters(one, {0: 1.0, 1: 3.0}, master=False))
    other = small(samples)
    found = place(other, ways.resampled(before, other))
    held = place(small(4), before).holders["conv/kernel"]
    for piece in found.holders["conv/kernel"].pieces:
        assert any(box.contains(piece.box) for box in held.of(piece.rank))
