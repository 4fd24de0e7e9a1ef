"""Chunks of blosc-lz4 decoded straight into float32: what NumPy gives, or a refusal."""

from __future__ import annotations

import halves_for_any_processor
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.shards import codecs, halves

ALL = np.arange(2**16, dtype=np.uint16).view(np.float16)
KINDS = ("noise", "smooth", "sparse", "steps")


@pytest.fixture(autouse=True, params=["this processor", "any processor"])
def _compiled(request):
    assert halves.LIBRARY is not None, "the package was installed without a compiler"
    assert halves._lz4() is not None, "numcodecs does not show LZ4_decompress_safe"
    ours = halves.LIBRARY if request.param == "this processor" else halves_for_any_processor.library()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(halves, "LIBRARY", ours)
        yield


def chunk_of(values: np.ndarray, codec: str = "blosc-lz4") -> np.ndarray:
    return np.frombuffer(codecs.encode(codec, values), np.uint8)


def decoded(chunk: np.ndarray, size: int, beside: int = 16) -> np.ndarray | None:
    """The bits of the values; the memory before and behind them must stay as it was."""
    memory = np.full(size + 32, 0x5A5A5A5A, np.uint32)
    place = slice(beside, beside + size)
    done = halves.decode_into(chunk, memory[place].view(np.float32))
    assert (memory[:beside] == 0x5A5A5A5A).all() and (memory[beside + size :] == 0x5A5A5A5A).all()
    return memory[place] if done else None


def made(kind: str, size: int, seed: int) -> np.ndarray:
    chance = np.random.default_rng(seed)
    if kind == "noise":
        return chance.integers(0, 2**16, size).astype(np.uint16).view(np.float16)
    if kind == "smooth":
        return np.cumsum(chance.normal(size=size) / 64).astype(np.float16)
    if kind == "sparse":
        return np.where(chance.random(size) < 0.01, chance.normal(size=size), 0).astype(np.float16)
    return np.repeat(chance.normal(size=size // 50 + 1), 50)[:size].astype(np.float16)


def test_every_value_there_is_comes_back_bit_for_bit():
    values = np.tile(ALL, 40).reshape(40, 256, 256)
    found = decoded(chunk_of(values), values.size)
    assert found is not None
    np.testing.assert_array_equal(found, values.astype(np.float32).reshape(-1).view(np.uint32))


@pytest.mark.parametrize("beside", range(16))
def test_a_large_array_comes_back_wherever_it_lies(beside):
    """From 2 MiB on the result goes past the caches, in whole lines of them."""
    values = made("smooth", 700_001, 3)
    found = decoded(chunk_of(values), values.size, beside)
    assert found is not None
    np.testing.assert_array_equal(found, values.astype(np.float32).view(np.uint32))


@given(size=st.integers(64, 200_000), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32))
def test_arrays_of_any_size_come_back(size, kind, seed):
    values = made(kind, size, seed)
    chunk = chunk_of(values)
    found = decoded(chunk, size)
    if found is None:
        assert chunk[2] & 0x02, "only what Blosc has not compressed is left to others"
    else:
        np.testing.assert_array_equal(found, values.astype(np.float32).view(np.uint32))


def test_what_is_stored_in_another_way_is_left_to_others():
    values = np.linspace(0, 1, 70_000, dtype=np.float16)
    for codec in ("blosc-lz4-bit", "blosc-zstd-bit", "gzip", "none"):
        assert decoded(chunk_of(values, codec), values.size) is None, codec
    assert decoded(chunk_of(values.astype(np.float32)), values.size) is None
    assert decoded(chunk_of(values), values.size - 1) is None
    assert decoded(chunk_of(values)[:-1], values.size) is None
    assert decoded(chunk_of(values)[:10], values.size) is None


def test_an_array_with_gaps_is_left_to_others():
    values = np.zeros(1000, np.float16)
    assert not halves.decode_into(chunk_of(values), np.empty((1000, 2), np.float32)[:, 0])


@pytest.mark.parametrize("missing", ["LIBRARY", "_lz4"])
def test_without_a_compiler_or_that_function_numcodecs_does_it(monkeypatch, missing):
    monkeypatch.setattr(halves, missing, None if missing == "LIBRARY" else lambda: None)
    assert not halves.decode_into(chunk_of(np.zeros(1000, np.float16)), np.empty(1000, np.float32))
