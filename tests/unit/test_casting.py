"""Stored values become float32 fast, and bit for bit what NumPy makes of them one at a time."""

from __future__ import annotations

import halves_for_any_processor
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from trainer.data.shards import casting, halves
from trainer.data.shards.casting import cast_into, is_finite

# Every float16 there is: subnormal ones, both zeros, infinities and all that are not a number.
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE = HALVES[np.isfinite(HALVES)]


@pytest.fixture(params=["compiled", "compiled for any processor", "numpy"])
def way(request, monkeypatch):
    """All ways to cast float16."""
    if request.param == "numpy":
        monkeypatch.setattr(halves, "LIBRARY", None)
    else:
        assert halves.LIBRARY is not None, "the package was installed without a compiler"
    if request.param == "compiled for any processor":
        monkeypatch.setattr(halves, "LIBRARY", halves_for_any_processor.library())
    return request.param


def filled(stored: np.ndarray, kind: type = np.float32, scale: float | None = None) -> np.ndarray:
    out = np.full(stored.shape, 77, kind)
    cast_into(stored, out, scale)
    return out


def assert_same_bits(one: np.ndarray, other: np.ndarray) -> None:
    assert one.dtype == other.dtype == np.float32
    assert np.array_equal(one.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("block", [1, 1000, 1 << 17])
def test_every_float16_comes_out_as_numpy_has_it(monkeypatch, way, block):
    monkeypatch.setattr(casting, "BLOCK", block * 64)
    values = HALVES.reshape(64, -1).T if block > 1 else HALVES.reshape(1024, -1)
    assert_same_bits(filled(values), values.astype(np.float32))
    finite = FINITE.reshape(64, -1)
    assert_same_bits(filled(finite), finite.astype(np.float32))


@pytest.mark.parametrize("beside", [0, 1, 5])
@pytest.mark.parametrize("shape", [(13, 200, 257), (3, 1, 200_003), (9, 2**16)])
def test_large_arrays_come_out_the_same_wherever_they_lie(way, shape, beside):
    """From 2 MiB on the result goes past the caches, in pieces that begin at a multiple of 32 bytes."""
    values = np.resize(HALVES, shape)
    size = values.size
    memory = np.full(size + 16, 77, np.float32)
    cast_into(values, memory[beside : beside + size].reshape(shape))
    assert_same_bits(memory[beside : beside + size].reshape(shape), values.astype(np.float32))
    assert (memory[:beside] == 77).all() and (memory[beside + size :] == 77).all()
    rows = np.full((*shape[:-1], shape[-1] + 3), 77, np.float32)
    cast_into(values, rows[..., :-3])
    assert_same_bits(rows[..., :-3].copy(), values.astype(np.float32))
    assert (rows[..., -3:] == 77).all()


def test_a_block_with_a_value_that_is_not_finite_does_not_spoil_others(monkeypatch, way):
    monkeypatch.setattr(casting, "BLOCK", 8)
    values = np.linspace(-70000, 70000, 64).astype(np.float32).reshape(16, 4)
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    assert np.isinf(halves).any() and np.isfinite(halves).any()
    assert_same_bits(filled(halves), halves.astype(np.float32))


def test_one_value_that_is_not_finite_is_found():
    assert is_finite(FINITE.reshape(64, -1))
    for value in HALVES[~np.isfinite(HALVES)]:
        assert not is_finite(np.array([[0], [value], [1]], np.float16))


def test_values_known_to_be_finite_come_out_the_same(way):
    out = np.empty(FINITE.shape, np.float32)
    cast_into(FINITE, out, finite=lambda: True)
    assert_same_bits(out, FINITE.astype(np.float32))


def test_subnormal_values_survive_a_thread_that_takes_them_for_zero(way):
    """TensorFlow's threads do; the check must see it."""
    tiny = HALVES[1:1024]
    told = []

    def cast() -> np.ndarray:
        told.append(bool(np.multiply(casting._TINY, casting._RISE)[0]))
        return filled(tiny)

    out = tf.data.Dataset.range(1).map(lambda _: tf.numpy_function(cast, [], tf.float32))
    assert_same_bits(next(iter(out)).numpy(), tiny.astype(np.float32))
    assert told == [False]


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (3, 4, 5), (3, 4, 5, 2), (0, 3, 2)])
def test_arrays_of_few_axes(way, shape):
    halves_ = HALVES[: int(np.prod(shape))].reshape(shape)
    assert_same_bits(np.asarray(filled(halves_)), np.asarray(halves_.astype(np.float32)))


def test_boxes_rows_and_turned_arrays_touch_nothing_beside_them(way):
    values = HALVES[: 6 * 7 * 8 * 2].reshape(6, 7, 8, 2)
    parts = {
        "box": np.s_[1:4, 2:6, 3:7],
        "whole rows": np.s_[2:5, 1:],
        "every other voxel": np.s_[:, :, ::2],
        "every other row": np.s_[::2, ::3],
        "mirrored": np.s_[::-1, :, ::-1],
        "one channel": np.s_[..., :1],
    }
    for name, part in parts.items():
        around = np.full(values.shape, 77, np.float32)
        cast_into(values[part], around[part])
        expected = np.full(values.shape, 77, np.float32)
        expected[part] = values[part].astype(np.float32)
        assert np.array_equal(around.view(np.uint32), expected.view(np.uint32)), name
        assert_same_bits(filled(values[part]), values[part].astype(np.float32))
    turned = np.full((2, 8, 7, 6), 77, np.float32)
    cast_into(values, turned.T)
    assert_same_bits(turned, np.ascontiguousarray(values.T.astype(np.float32)))


def test_the_compiled_cast_is_what_whole_volumes_and_boxes_take():
    values = HALVES[: 6 * 7 * 8].reshape(6, 7, 8, 1)
    for part in (np.s_[:], np.s_[1:4, 2:6, 3:7]):
        assert halves.widen_into(values[part], np.empty(values.shape, np.float32)[part])
    assert not halves.widen_into(values[:, :, ::2], np.empty((6, 7, 4, 1), np.float32))


def test_every_bfloat16_comes_out_as_numpy_has_it():
    values = HALVES.view(ml_dtypes.bfloat16).reshape(32, -1)
    assert_same_bits(filled(values), values.view(np.uint16).astype(np.uint32).__lshift__(16).view(np.float32))
    known = ~np.isnan(filled(values))
    assert np.array_equal(filled(values)[known], values[known].astype(np.float32))


@pytest.mark.parametrize("scale", [2.0**-7, 0.1, 3.0])
def test_scaled_integers_are_rounded_once(scale):
    stored = np.arange(-(1 << 15), 1 << 15, dtype=np.int16).reshape(64, -1)
    assert_same_bits(filled(stored, scale=scale), stored.astype(np.float32) * np.float32(scale))


@pytest.mark.parametrize("kind", ["float16", "float32", "int16", "uint8", ml_dtypes.bfloat16])
@pytest.mark.parametrize("wanted", [np.float32, np.float64])
def test_arrays_with_gaps_are_filled_too(kind, wanted):
    values = (np.arange(2 * 6 * 5 * 4) % 100).reshape(12, 5, 4).astype(kind)[::2, :, ::-1]
    whole = np.full((6, 10, 4), 77, wanted)
    cast_into(values, whole[:, ::2])
    assert np.array_equal(whole[:, ::2], values.astype(wanted))
    assert (whole[:, 1::2] == 77).all()


def test_an_empty_array_and_a_single_value_are_no_trouble():
    assert filled(np.zeros((0, 3), np.float16)).shape == (0, 3)
    assert filled(np.array(1.5, np.float16)) == 1.5
    assert filled(np.array(3, np.int16), scale=0.5) == 1.5


def test_another_shape_is_refused():
    with pytest.raises(ValueError, match="an array of"):
        cast_into(np.zeros((2, 3), np.float16), np.zeros((3, 2), np.float32))
