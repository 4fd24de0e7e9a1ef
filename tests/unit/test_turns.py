"""A worker's bundles leave in one order, and not far ahead of what the server has answered."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.strategies.servers.client import Turns


def test_bundles_leave_in_the_order_of_their_numbers():
    turns = Turns({1: 8, 4: 8, 6: 8}, None)
    assert turns.computed(6) == []
    assert turns.computed(1) == [1]
    assert turns.computed(4) == [4, 6]


def test_no_more_is_under_way_than_was_allowed():
    turns = Turns({0: 8, 1: 8, 2: 8}, 16)
    assert [turns.computed(number) for number in (0, 1, 2)] == [[0], [1], []]
    assert turns.answered(0) == [2]
    assert turns.answered(1) == []


def test_a_bundle_that_is_larger_than_that_leaves_alone():
    turns = Turns({0: 4, 1: 100, 2: 4}, 16)
    assert [turns.computed(number) for number in (0, 1, 2)] == [[0], [], []]
    assert turns.answered(0) == [1]
    assert turns.answered(1) == [2]


def test_without_a_bound_all_leave_before_the_first_answer():
    turns = Turns(dict.fromkeys(range(5), 100), None)
    assert [turns.computed(number) for number in (4, 3, 2, 1)] == [[]] * 4
    assert turns.computed(0) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ahead", [None, 1, 20])
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12), workers=st.integers(1, 4), seed=st.integers()
)
def test_workers_that_compute_in_any_order_get_all_their_answers(ahead, sizes, workers, seed):
    """A server answers what it has of all; nothing is left over, in any of several steps."""
    chance = random.Random(seed)
    all_turns = [Turns(dict(enumerate(sizes)), ahead) for _ in range(workers)]
    for _ in range(2):
        happening = [(worker, number) for worker in range(workers) for number in range(len(sizes))]
        arrived = dict.fromkeys(range(len(sizes)), 0)
        answers: list[tuple[int, int]] = []
        left = [[] for _ in range(workers)]

        def take(worker, numbers, arrived=arrived, answers=answers, left=left):
            left[worker] += numbers
            for number in numbers:
                arrived[number] += 1
                if arrived[number] == workers:
                    answers.extend((each, number) for each in range(workers))

        while happening or answers:
            queue = chance.choice([one for one in (happening, answers) if one])
            worker, number = queue.pop(chance.randrange(len(queue)))
            turns = all_turns[worker]
            take(worker, turns.computed(number) if queue is happening else turns.answered(number))
        assert left == [list(range(len(sizes)))] * workers
