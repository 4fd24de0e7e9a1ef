"""Sliding windows: exact where one window is all, and without seams."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import ndimage

from trainer.errors import ConfigError
from trainer.inference import sliding
from trainer.inference.sliding import Windows


def volume(shape=(23, 30, 27), channels=2, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(*shape, channels)).astype(np.float32)


def pointwise(windows: np.ndarray) -> np.ndarray:
    """A 1x1x1 convolution from two channels to three outputs."""
    return windows @ np.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]], np.float32)


def smoothing(windows: np.ndarray) -> np.ndarray:
    """A 3x3x3 convolution, padded with zeros at the border of each window as networks do."""
    kernel = np.random.default_rng(1).normal(size=(3, 3, 3))
    return np.stack([ndimage.correlate(w[..., 0], kernel, mode="constant") for w in windows])[..., None]


def test_one_window_over_the_whole_volume_is_the_network_itself():
    data = volume()

    def network(windows: np.ndarray) -> np.ndarray:
        return np.tanh(pointwise(windows)) * windows.mean()

    for blending in ("gaussian", "constant"):
        found = sliding.whole(data, network, Windows(data.shape[:3], blending=blending))
        np.testing.assert_array_equal(found, network(data[None])[0])


@pytest.mark.parametrize("blending", ["gaussian", "constant"])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("size", [(8, 8, 8), (23, 7, 11), (10, 30, 16)])
def test_a_pointwise_network_shows_no_seams(size, overlap, blending):
    data = volume()
    found = sliding.whole(data, pointwise, Windows(size, overlap, blending, batch=3))
    np.testing.assert_allclose(found, pointwise(data), rtol=1e-5, atol=1e-5)


def test_a_convolution_shows_no_seams_where_windows_do_not_end():
    """At its rim a window misses neighbours; elsewhere the blended output is the convolution's own.

    Windows of 12 overlap by 6 or more, so that one's rim (5.5 voxels from its middle, weight
    exp(-0.5 (5.5 / 1.5)^2) = 0.0012) lies within 2.5 of another's middle (weight 0.25): a rim has at most
    0.5 % of the say along an axis, and on three axes 1.5 %.
    """
    data = volume((20, 22, 24), channels=1)
    expected = smoothing(data[None])[0]
    found = sliding.whole(data, smoothing, Windows((12, 12, 12), 0.5, "gaussian"))
    ends = [sliding.starts(n, 12, 0.5) for n in data.shape[:3]]
    rims = [
        sorted({s for s in e if s} | {s + 11 for s in e if s + 12 < n})
        for e, n in zip(ends, data.shape[:3], strict=True)
    ]
    free = np.ones(data.shape[:3], bool)
    for axis, places in enumerate(rims):
        free[tuple(places if a == axis else slice(None) for a in range(3))] = False
    np.testing.assert_allclose(found[free], expected[free], atol=1e-4)
    scale = np.abs(expected).max()
    assert np.abs(found - expected).max() < 0.015 * scale  # Gaussian weights hide what the rims miss,
    constant = sliding.whole(data, smoothing, Windows((12, 12, 12), 0.5, "constant"))
    assert np.abs(constant - expected).max() > 0.1 * scale  # and constant ones do not


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 23, 100])
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5, 0.75])
def test_windows_cover_an_axis_with_the_overlap_asked_for(length, overlap):
    first = sliding.starts(length, 8, overlap)
    assert first[0] == 0 and first[-1] == max(0, length - 8)
    assert all(0 < b - a <= max(1, int(8 * (1 - overlap))) for a, b in itertools.pairwise(first))
    for blending in ("gaussian", "constant"):
        total = np.zeros(max(length, 8))
        for start, share in zip(first, sliding.weights(length, 8, first, blending), strict=True):
            total[start : start + 8] += share
        np.testing.assert_allclose(total, 1.0, rtol=1e-6)


def test_a_volume_smaller_than_the_window_is_continued_by_its_edge():
    data = volume((5, 30, 6))
    seen = []

    def network(windows: np.ndarray) -> np.ndarray:
        seen.append(windows)
        return pointwise(windows)

    found = sliding.whole(data, network, Windows((8, 16, 8)))
    np.testing.assert_allclose(found, pointwise(data), rtol=1e-5, atol=1e-5)
    assert {w.shape for w in seen} == {(1, 8, 16, 8, 2)}
    np.testing.assert_array_equal(seen[0][0, 7], seen[0][0, 4])


def test_slabs_follow_one_another_and_batches_change_nothing():
    data = volume((40, 20, 20))
    windows = Windows((16, 16, 16), 0.5)
    firsts = [(first, slab.shape) for first, slab in sliding.blend(data, pointwise, windows)]
    assert firsts == [(0, (8, 20, 20, 3)), (8, (8, 20, 20, 3)), (16, (8, 20, 20, 3)), (24, (16, 20, 20, 3))]
    for used in (windows, Windows((16, 16, 16), batch=7)):
        labels = sliding.whole(data, pointwise, used).argmax(-1)
        np.testing.assert_array_equal(labels, pointwise(data).argmax(-1))


@pytest.mark.parametrize(
    "wrong", [{"size": (0, 8, 8)}, {"overlap": 1.0}, {"overlap": -0.1}, {"blending": "x"}, {"batch": 0}]
)
def test_impossible_windows_are_refused(wrong):
    with pytest.raises(ConfigError):
        Windows(**{"size": (8, 8, 8), **wrong})
