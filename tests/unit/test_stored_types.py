"""Every stored type comes back as promised: rounded once, never again, and as any HDF5 tool reads it."""

from __future__ import annotations

import h5py
import hdf5plugin  # noqa: F401  registers the filter for the reference reader
import ml_dtypes
import numpy as np
import pytest
from shard_sets import META, SHAPE, meta_of

from trainer.data.shards import codecs, stored_types
from trainer.data.shards.casting import cast_into
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.shards import ShardSet
from trainer.data.shards.verify import verify

VALUES = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
# The largest rounding error of a value, relative to the value; of int16 relative to the largest one.
ERRORS = {"float16": 2.0**-11, "float32": 0.0, "bfloat16": 2.0**-8, "int16": 2.0**-15}


def written(path, values, dtype, codec="blosc-lz4", bricks=None) -> ShardSet:
    writer = ShardWriter(path, values.shape, dtype, codec, bricks, meta=META)
    given = values.astype(dtype) if dtype == "float16" else values
    writer.finish([writer.write_shard(0, [(given, meta_of(0))])])
    return ShardSet.open(path)


@pytest.mark.parametrize("codec", codecs.CODECS)
@pytest.mark.parametrize("dtype", stored_types.STORED_TYPES)
def test_what_is_read_is_what_was_rounded_and_what_hdf5_holds(tmp_path, codec, dtype):
    shards = written(tmp_path, VALUES, dtype, codec)
    read = shards.read(0)
    assert read.dtype == (np.float16 if dtype == "float16" else np.float32)
    assert np.array_equal(read, stored_types.rounded(VALUES, dtype))
    out = np.empty(SHAPE, np.float32)
    shards.read_into(0, out)
    assert np.array_equal(out, read)
    with h5py.File(tmp_path / "shard-00000.h5") as file:
        assert file.attrs["value_type"] == dtype
        held = file["volumes"][0]
        if dtype == "bfloat16":
            held = held.view(ml_dtypes.bfloat16).astype(np.float32)
        elif dtype == "int16":
            assert held.dtype == np.int16
            held = held * np.float32(file["scales"][0])
    assert np.array_equal(held, read)
    assert verify(tmp_path) == []


@pytest.mark.parametrize("dtype", stored_types.STORED_TYPES)
def test_rounding_is_as_good_as_the_type_allows_and_done_once(dtype):
    once = stored_types.rounded(VALUES, dtype).astype(np.float32)
    relative_to = np.abs(VALUES).max() if dtype == "int16" else np.abs(VALUES)
    error = np.abs(once - VALUES) / relative_to
    assert error.max() <= ERRORS[dtype]
    assert error.max() >= ERRORS[dtype] / 4
    assert np.array_equal(stored_types.rounded(once, dtype), once)


def test_a_scale_is_no_larger_than_it_must_be():
    for largest, wanted in ((32767.0, 1.0), (32768.0, 2.0), (32767 / 4, 0.25), (1.0, 2.0**-14)):
        assert stored_types.pack(np.array([largest], np.float32), np.dtype("<i2"))[1] == wanted


@pytest.mark.parametrize("largest", [32767.0, 32767.5, 1.0, 3e-5, 1e-44, 3e38])
def test_a_scale_is_the_smallest_power_of_two_that_fits(largest):
    values = np.array([0, -largest], np.float32)
    stored, scale = stored_types.pack(values, np.dtype("<i2"))
    assert np.log2(scale) == round(np.log2(scale))
    assert stored.dtype == np.int16
    if largest > 1e-40:
        assert 16383 <= -int(stored[1]) <= 32767
    assert abs(float(values[1]) - int(stored[1]) * scale) <= scale / 2


def test_nothing_but_zeros_has_the_scale_1(tmp_path):
    shards = written(tmp_path, np.zeros(SHAPE, np.float32), "int16")
    assert shards.volumes[0].scale == 1.0
    assert not shards.read(0).any()


def test_whole_numbers_are_stored_as_int16_as_they_are(tmp_path):
    numbers = np.arange(120, dtype=np.int16).reshape(SHAPE) * 251 - 9
    writer = ShardWriter(tmp_path, SHAPE, "int16", meta=META)
    writer.finish([writer.write_shard(0, [(numbers, meta_of(0))])])
    shards = ShardSet.open(tmp_path)
    assert shards.volumes[0].scale == 1.0
    assert np.array_equal(shards.read(0), numbers)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_have_no_scale(tmp_path, bad):
    values = VALUES.copy()
    values[1, 2, 3, 0] = bad
    with pytest.raises(ValueError, match=r"sub-00.*not finite"):
        written(tmp_path, values, "int16")


@pytest.mark.parametrize("dtype", ["float64", "uint8"])
def test_values_of_another_type_are_refused(dtype):
    with pytest.raises(ValueError, match="is not stored as"):
        stored_types.pack(VALUES.astype(dtype), stored_types.stored_dtype("bfloat16"))


@pytest.mark.parametrize("dtype", stored_types.STORED_TYPES)
def test_casting_fills_arrays_of_any_stride_and_type(dtype):
    stored, scale = stored_types.pack(
        VALUES.astype("float16" if dtype == "float16" else "float32"), stored_types.stored_dtype(dtype)
    )
    for wanted in ("float32", "float64"):
        out = np.full((*SHAPE, 3), 7, wanted)
        cast_into(stored, out[..., 1], scale)
        assert np.array_equal(out[..., 1], stored_types.rounded(VALUES, dtype))
        assert (out[..., 0] == 7).all()
        assert (out[..., 2] == 7).all()


@pytest.mark.parametrize("codec", codecs.CODECS)
def test_a_chunk_is_decoded_in_place_or_refused(codec):
    chunk = codecs.encode(codec, VALUES)
    out = np.empty_like(VALUES)
    codecs.decode_into(codec, memoryview(chunk), out)
    assert np.array_equal(out, VALUES)
    for wrong in (chunk[:-1], chunk[: len(chunk) // 2], b"", chunk[:9]):
        with pytest.raises(codecs.CodecError):
            codecs.decode_into(codec, wrong, out)
    with pytest.raises(codecs.CodecError):
        codecs.decode_into(codec, chunk, np.empty((*SHAPE, 2), np.float32))
    with pytest.raises(ValueError, match="not C-contiguous"):
        codecs.decode_into(codec, chunk, np.empty((*SHAPE, 2), np.float32)[..., 0])
