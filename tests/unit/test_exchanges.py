"""Exchanges: every needed element comes from one holder, and the adjoint satisfies <Ax, y> = <x, A*y>."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wording import fails_with

from trainer.errors import ConfigError
from trainer.planning.placement.boxes import Box, subtract, whole
from trainer.planning.placement.exchanges import Redistribution, exchange
from trainer.planning.placement.layouts import Piece, TensorLayout, cut, grid, layout, replicated
from trainer.planning.placement.windows import Sliding

Values = dict[Piece, np.ndarray]


def forward(plan: Redistribution, x: Values) -> Values:
    found = {piece: np.zeros(piece.box.shape) for piece in plan.need.pieces}
    for move in plan.moves:
        found[move.target][move.box.slices_in(move.target.box)] += x[move.source][
            move.box.slices_in(move.source.box)
        ]
    return found


def adjoint(plan: Redistribution, y: Values) -> Values:
    found = {piece: np.zeros(piece.box.shape) for piece in plan.have.pieces}
    for move in plan.moves:
        found[move.source][move.box.slices_in(move.source.box)] += y[move.target][
            move.box.slices_in(move.target.box)
        ]
    return found


@st.composite
def layouts(draw, shape: tuple[int, ...], ranks: int = 4, *, covers: bool = True) -> TensorLayout:
    """Random boxes: split again and again, each part on a random rank, some on a second one as well."""
    parts = [whole(shape)]
    for _ in range(draw(st.integers(0, 5))):
        number = draw(st.integers(0, len(parts) - 1))
        long = [axis for axis, length in enumerate(parts[number].shape) if length > 1]
        if long:
            axis = draw(st.sampled_from(long))
            start, stop = parts[number].ranges[axis]
            middle = draw(st.integers(start + 1, stop - 1))
            box = parts.pop(number)
            parts += [box.with_range(axis, (start, middle)), box.with_range(axis, (middle, stop))]
    held: dict[int, list[Box]] = {}
    for part in parts:
        owners = draw(st.sets(st.integers(0, ranks - 1), min_size=int(covers), max_size=2))
        for rank in owners:
            held.setdefault(rank, []).append(part)
    return layout(shape, held)


@settings(max_examples=60)
@given(st.data(), st.tuples(*[st.integers(1, 5)] * 3), st.booleans())
def test_a_random_exchange_delivers_what_is_needed_and_has_an_adjoint(data, shape, sums):
    have = data.draw(layouts(shape))
    need = data.draw(layouts(shape, covers=False))
    have.check("x")
    plan = exchange(have, need, sums=sums)
    rng = np.random.default_rng(0)
    everything = rng.integers(1, 9, size=shape).astype(float)
    x = {piece: everything[piece.box.slices_in(whole(shape))] for piece in have.pieces}
    holders = np.zeros(shape)
    for piece in have.pieces:
        holders[piece.box.slices_in(whole(shape))] += 1
    expected = everything * holders if sums else everything
    for piece, values in forward(plan, x).items():
        np.testing.assert_array_equal(values, expected[piece.box.slices_in(whole(shape))])
    copies = {piece: rng.normal(size=piece.box.shape) for piece in have.pieces}  # replicas may differ
    y = {piece: rng.normal(size=piece.box.shape) for piece in need.pieces}
    back = adjoint(plan, y)
    ax = forward(plan, copies)
    left = sum(float((ax[piece] * y[piece]).sum()) for piece in y)
    right = sum(float((copies[piece] * back[piece]).sum()) for piece in copies)
    assert left == pytest.approx(right, abs=1e-9)


@settings(max_examples=60)
@given(
    st.integers(1, 4),
    st.builds(Sliding, st.integers(1, 5), st.integers(1, 3), st.integers(1, 2), st.just("same")),
    st.integers(8, 24),
)
def test_halos_of_random_windows_come_from_neighbours_and_have_an_adjoint(ranks, axis, size):
    have = cut((1, size, 3), 1, dict.fromkeys(range(ranks), 1.0))
    made = cut((1, axis.length(size), 3), 1, dict.fromkeys(range(ranks), 1.0))
    need = layout(
        have.shape,
        {
            piece.rank: [whole(have.shape).with_range(1, axis.need(piece.box.ranges[1], size).range)]
            for piece in made.pieces
        },
    )
    plan = exchange(have, need)
    rng = np.random.default_rng(size)
    x = {piece: rng.normal(size=piece.box.shape) for piece in have.pieces}
    y = {piece: rng.normal(size=piece.box.shape) for piece in need.pieces}
    left = sum(float((value * y[piece]).sum()) for piece, value in forward(plan, x).items())
    right = sum(float((x[piece] * value).sum()) for piece, value in adjoint(plan, y).items())
    assert left == pytest.approx(right)


def test_what_a_rank_has_does_not_cross_and_replicas_share_the_sending():
    have = replicated((4, 6), [0, 1])
    upper, lower = Box(((0, 2), (0, 6))), Box(((2, 4), (0, 6)))
    need = layout((4, 6), {0: [whole((4, 6))], 1: [whole((4, 6))], 2: [upper], 3: [lower]})
    assert exchange(have, need).elements_sent() == {(0, 2): 12, (1, 3): 12}


def test_the_halo_of_a_volume_cut_in_two_is_one_plane_each_way():
    have = cut((1, 8, 5, 5, 2), 1, {0: 1.0, 1: 1.0})
    axis = Sliding(3, padding="same")
    need = layout(
        have.shape,
        {p.rank: [p.box.with_range(1, axis.need(p.box.ranges[1], 8).range)] for p in have.pieces},
    )
    assert exchange(have, need).elements_sent() == {(0, 1): 50, (1, 0): 50}


def test_gathering_channels_is_reduce_scatter_backwards():
    have = cut((2, 3, 6), -1, {0: 2.0, 1: 1.0})
    plan = exchange(have, replicated((2, 3, 6), [0, 1]))
    ones = {piece: np.ones(piece.box.shape) for piece in plan.need.pieces}
    assert all((value == 2).all() for value in adjoint(plan, ones).values())


def test_what_nobody_holds_is_named():
    have = layout((4,), {0: [Box(((0, 2),))]})
    with fails_with(ConfigError):
        exchange(have, layout((4,), {1: [Box(((1, 4),))]}), "relu")


@pytest.mark.parametrize(
    "pieces, said",
    [
        ([Piece(0, Box(((0, 3),)))], r"x: no rank holds \[3:4\]\."),
        ([Piece(0, Box(((0, 5),)))], r"x: rank 0: \[0:5\] is not inside the tensor, whose shape is \[4\]"),
        (
            [Piece(1, Box(((0, 3),))), Piece(1, Box(((2, 4),)))],
            r"rank 1 holds \[0:3\] and \[2:4\]",
        ),
    ],
)
def test_a_layout_that_is_wrong_is_refused_by_name(pieces, said):
    with pytest.raises(ConfigError, match=said):
        TensorLayout((4,), tuple(pieces)).check("x")


def test_a_grid_of_two_axes():
    made = grid((1, 4, 4, 2), {1: 2, 2: 2}, [0, 1, 2, 3])
    made.check("x")
    assert made.of(1) == (Box(((0, 1), (0, 2), (2, 4), (0, 2))),)
    assert subtract(whole(made.shape), [piece.box for piece in made.pieces]) == []
    with fails_with(ConfigError):
        grid((1, 4), {1: 5}, range(5))
    with fails_with(ConfigError):
        grid((1, 4), {1: 2}, range(3))
