"""Windows: an operation applied to the range that is needed gives the range that was wanted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainer.planning.placement.windows import Grouped, Pointwise, Repeating, Shifted, Sliding, Spreading

SMALL = st.integers(1, 4)
PADDING = st.sampled_from(["valid", "same"])


def slide(values: np.ndarray, kernel: np.ndarray, axis: Sliding) -> np.ndarray:
    """Convolution without padding, one output after the other."""
    count = (values.size - axis.reach) // axis.stride + 1
    taps = np.arange(kernel.size) * axis.dilation
    return np.array([values[i * axis.stride + taps] @ kernel for i in range(count)])


def spread(values: np.ndarray, kernel: np.ndarray, axis: Spreading) -> np.ndarray:
    """All outputs that the inputs add to, none cut off."""
    out = np.zeros((values.size - 1) * axis.stride + axis.reach)
    for i, value in enumerate(values):
        out[i * axis.stride + np.arange(kernel.size) * axis.dilation] += value * kernel
    return out


def whole_slide(values: np.ndarray, kernel: np.ndarray, axis: Sliding) -> np.ndarray:
    return slide(np.pad(values, axis.pads(values.size)), kernel, axis)


def whole_spread(values: np.ndarray, kernel: np.ndarray, axis: Spreading) -> np.ndarray:
    out = spread(values, kernel, axis)[axis.cut(values.size) :]
    return np.pad(out, (0, max(axis.length(values.size) - out.size, 0)))[: axis.length(values.size)]


@st.composite
def wanted(draw, length: int) -> tuple[int, int]:
    start = draw(st.integers(0, length - 1))
    return start, draw(st.integers(start + 1, length))


@given(st.data(), st.builds(Sliding, SMALL, SMALL, SMALL, PADDING), st.integers(1, 20))
def test_a_convolution_of_what_is_needed_gives_what_is_wanted(data, axis, size):
    assume(axis.padding == "same" or size >= axis.reach)
    values = np.arange(1.0, size + 1) ** 2
    kernel = np.arange(2.0, axis.kernel + 2)
    out = whole_slide(values, kernel, axis)
    assert out.size == axis.length(size)
    part = data.draw(wanted(out.size))
    need = axis.need(part, size)
    found = slide(np.pad(values[slice(*need.range)], (need.before, need.after)), kernel, axis)
    np.testing.assert_array_equal(found[: part[1] - part[0]], out[slice(*part)])


@given(st.data(), st.builds(Spreading, SMALL, SMALL, SMALL, PADDING), st.integers(1, 12))
def test_a_transposed_convolution_of_what_is_needed_gives_what_is_wanted(data, axis, size):
    values = np.arange(1.0, size + 1) ** 2
    kernel = np.arange(2.0, axis.kernel + 2)
    out = whole_spread(values, kernel, axis)
    assert out.size == axis.length(size)
    part = data.draw(wanted(out.size))
    need = axis.need(part, size)
    found = spread(values[slice(*need.range)], kernel, axis)
    count = part[1] - part[0]
    padded = np.pad(found, (max(-need.skip, 0), count + max(need.skip, 0)))
    start = max(need.skip, 0)
    np.testing.assert_array_equal(padded[start : start + count], out[slice(*part)])


@given(st.builds(Sliding, SMALL, SMALL, SMALL, PADDING), st.integers(1, 20))
def test_transposed_convolution_is_the_adjoint_of_convolution(axis, size):
    assume(axis.padding == "same" or ((size - axis.reach) % axis.stride == 0 and size >= axis.reach))
    assume(axis.padding == "valid" or size % axis.stride == 0)
    back = Spreading(axis.kernel, axis.stride, axis.dilation, axis.padding)
    outputs = axis.length(size)
    assume(back.length(outputs) == size)
    rng = np.random.default_rng(size)
    x, y, kernel = rng.normal(size=size), rng.normal(size=outputs), rng.normal(size=axis.kernel)
    assert whole_slide(x, kernel, axis) @ y == pytest.approx(x @ whole_spread(y, kernel, back))


@given(st.data(), SMALL, st.integers(1, 9))
def test_upsampling_needs_every_input_once(data, times, size):
    axis = Repeating(times)
    values = np.arange(size)
    part = data.draw(wanted(axis.length(size)))
    need = axis.need(part, size)
    found = np.repeat(values[slice(*need.range)], times)[need.skip :][: part[1] - part[0]]
    np.testing.assert_array_equal(found, np.repeat(values, times)[slice(*part)])


def test_axes_that_do_not_slide():
    assert Pointwise().need((2, 5), 9).range == (2, 5)
    # Channels 4 to 7 of 10 are those of the second input of a concatenation.
    second = Shifted(offset=4, outputs=10)
    assert second.need((2, 6), 4) == ((0, 2), 0, 0, -2)
    assert second.need((5, 9), 4) == ((1, 4), 0, 0, 0)
    assert second.need((0, 4), 4) is None
    # 6 inputs and 4 outputs in two groups: outputs 1 and 2 need both.
    halves = Grouped(inputs=3, outputs=2)
    assert (halves.length(6), halves.need((1, 3), 6)) == (4, ((0, 6), 0, 0, 1))
    assert halves.need((2, 3), 6) == ((3, 6), 0, 0, 0)


def test_the_window_of_a_strided_convolution_by_hand():
    # 7 wide, stride 2, of 96: 48 outputs, 2 zeros before and 3 after, as TensorFlow pads.
    stem = Sliding(7, 2, padding="same")
    assert (stem.length(96), stem.pads(96)) == (48, (2, 3))
    assert stem.need((0, 24), 96) == ((0, 51), 2, 0, 0)
    assert stem.need((24, 48), 96) == ((46, 96), 0, 3, 0)


def test_too_short_an_input_is_refused():
    with pytest.raises(ValueError, match="a window of 5 does not fit into 4"):
        Sliding(5).length(4)
