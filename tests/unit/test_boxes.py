"""Boxes: intersections, differences, unions and divisions, against sets of indices."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.planning.placement import boxes
from trainer.planning.placement.boxes import Box, divided, hull, joined, subtract, whole

RANGES = st.tuples(st.integers(0, 5), st.integers(1, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def box(axes: int) -> st.SearchStrategy[Box]:
    return st.tuples(*[RANGES] * axes).map(Box)


def indices(one: Box | None) -> set[tuple[int, ...]]:
    return set() if one is None else set(itertools.product(*(range(a, b) for a, b in one.ranges)))


@given(box(3), box(3))
def test_intersection_and_difference_are_those_of_the_indices(one, other):
    assert indices(one & other) == indices(one) & indices(other)
    left = one.minus(other)
    assert sum(part.size for part in left) == len(indices(one) - indices(other))
    assert set().union(*map(indices, left)) == indices(one) - indices(other)


@given(box(2), st.lists(box(2), max_size=4))
def test_subtracting_several_leaves_disjoint_boxes(one, others):
    left = subtract(one, others)
    rest = indices(one) - set().union(*map(indices, others))
    assert set().union(*map(indices, left)) == rest
    assert sum(part.size for part in left) == len(rest)


@given(st.sets(st.tuples(*[st.integers(0, 3)] * 3), max_size=16))
def test_joined_boxes_hold_the_same_indices(wanted):
    together = joined([Box(tuple((i, i + 1) for i in index)) for index in wanted])
    assert set().union(*map(indices, together)) == wanted
    assert sum(piece.size for piece in together) == len(wanted)


def test_all_cells_of_a_box_join_to_the_box():
    one = Box(((1, 3), (0, 2), (4, 6)))
    cells = [Box(tuple((i, i + 1) for i in index)) for index in indices(one)]
    assert joined(cells) == [one]


def test_slices_are_relative_to_the_outer_box():
    assert Box(((3, 5), (1, 2))).slices_in(Box(((2, 6), (1, 4)))) == (slice(1, 3), slice(0, 1))
    with pytest.raises(ValueError, match=r"\[0:2\] is not inside \[1:3\]"):
        Box(((0, 2),)).slices_in(Box(((1, 3),)))


def test_hull_and_whole():
    assert whole((2, 3)) == Box(((0, 2), (0, 3)))
    assert hull([Box(((0, 1), (4, 5))), Box(((2, 3), (1, 2)))]) == Box(((0, 3), (1, 5)))


@pytest.mark.parametrize("ranges", [((2, 2),), ((3, 1),), ((-1, 2),)])
def test_an_empty_range_is_refused(ranges):
    with pytest.raises(ValueError, match="is empty or starts below 0"):
        Box(ranges)


@given(st.integers(0, 60), st.lists(st.floats(0, 10), min_size=1, max_size=6).filter(sum))
def test_division_covers_the_axis_and_is_within_one_of_the_exact_share(length, shares):
    ranges = divided(length, shares)
    assert [i for one in ranges if one for i in range(*one)] == list(range(length))
    for one, share in zip(ranges, shares, strict=True):
        count = one[1] - one[0] if one else 0
        assert abs(count - length * share / math.fsum(shares)) < 1 + 1e-9


def test_division_by_the_largest_remainder():
    assert divided(10, [1, 1, 1]) == [(0, 4), (4, 7), (7, 10)]
    assert divided(7, [4, 2, 1]) == [(0, 4), (4, 6), (6, 7)]
    assert divided(2, [1, 0, 1]) == [(0, 1), None, (1, 2)]


@pytest.mark.parametrize("shares", [[0, 0], [-1, 2], [math.nan], [math.inf, 1]])
def test_impossible_shares_are_refused(shares):
    with pytest.raises(ValueError, match="shares must be finite"):
        boxes.divided(4, shares)
