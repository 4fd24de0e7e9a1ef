"""A volume goes straight into the place it is wanted in, checked at every reading, in memory used again."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import tracemalloc

import h5py
import hdf5plugin  # noqa: F401  registers the filter for the reference reader
import numpy as np
import pytest
import xxhash
from shard_sets import SHAPE, make_mapped_set, make_shard_set, map_of, volume_of
from wording import fails_with

from trainer.data.shards import codecs, thread_memory
from trainer.data.shards.stored_bytes import ReadFault
from trainer.data.shards.whole_chunks import ChunkPlace, WholeChunks
from trainer.errors import ShardError


@pytest.mark.parametrize("codec", codecs.CODECS)
@pytest.mark.parametrize("stored", ["float16", "float32", "uint16", "uint8"])
def test_what_is_read_into_an_array_is_what_the_reference_reader_reads(tmp_path, codec, stored):
    shards = make_shard_set(tmp_path, 3, per_shard=3, dtype=stored, codec=codec)
    batch = np.full((3, *SHAPE), -1, np.float32)
    for row in range(3):
        shards.read_into(row, batch[row])
    with h5py.File(tmp_path / "shard-00000.h5") as file:
        assert np.array_equal(batch, file["volumes"][:].astype(np.float32))


@pytest.mark.parametrize("codec", codecs.CODECS)
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_arrays_of_any_type_and_with_gaps_are_filled(tmp_path, codec, kind):
    shards = make_shard_set(tmp_path, 2, codec=codec)
    wide = np.full((*SHAPE[:3], 2), -1, kind)
    shards.read_into(1, wide[..., 1:])
    assert np.array_equal(wide[..., 1:], volume_of(1).astype(kind))
    assert (wide[..., 0] == -1).all()
    part = np.full((2, 3, 2, 1), -1, kind)
    shards.read_into(1, part, (1, 0, 2))
    assert np.array_equal(part, volume_of(1)[1:3, :3, 2:4].astype(kind))


@pytest.mark.parametrize("codec", codecs.CODECS)
def test_maps_and_their_parts_are_read_into_arrays(tmp_path, codec):
    shards = make_mapped_set(tmp_path, 3, codec=codec)
    whole, part = np.empty(SHAPE[:3], np.uint8), np.empty((2, 3, 2), np.uint8)
    shards.read_map_into(2, whole)
    shards.read_map_into(2, part, (1, 0, 2))
    assert np.array_equal(whole, map_of(2))
    assert np.array_equal(part, map_of(2)[1:3, :3, 2:4])


@pytest.mark.parametrize("codec", codecs.CODECS)
def test_damage_that_comes_after_the_first_reading_is_seen(tmp_path, codec):
    shards = make_shard_set(tmp_path, codec=codec)
    out = np.empty(SHAPE, np.float32)
    shards.read_into(2, out)
    volume = shards.volumes[2]
    damage(tmp_path / volume.shard, volume.offset + volume.nbytes - 1)
    with fails_with(ShardError):
        shards.read_into(2, out)
    shards.read_into(3, out)
    assert np.array_equal(out, volume_of(3))


def test_damage_of_a_map_that_comes_after_the_first_reading_is_seen(tmp_path):
    shards = make_mapped_set(tmp_path)
    shards.read_map(1)
    volume = shards.volumes[1]
    damage(tmp_path / volume.shard, volume.map_offset + 20)
    with fails_with(ShardError):
        shards.read_map(1)


def damage(path, offset: int) -> None:
    """In place, as a disk does that rots: the file's size and times stay."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        (value,) = file.read(1)
        file.seek(offset)
        file.write(bytes([value ^ 0xFF]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


class Told:
    """Stands for the stored bytes: a chunk that the test chooses."""

    def __init__(self, chunk: bytes) -> None:
        self.chunk = chunk

    def read_into(self, _shard: str, _offset: int, target: memoryview) -> None:
        target[:] = self.chunk


def test_a_stated_xxh3_decides_alone_and_from_the_first_reading_on(monkeypatch):
    chunk = np.arange(8, dtype=np.uint8).tobytes()
    told = Told(chunk)
    chunks = WholeChunks(told, "none")
    monkeypatch.setattr("hashlib.sha256", None)  # slow: must not be called where XXH3 is known
    place = ChunkPlace("s", 0, 8, "", xxhash.xxh3_64_hexdigest(chunk))
    out = np.empty(8, np.float32)
    chunks.read_into(place, (8,), np.dtype(np.uint8), out)
    assert out.tolist() == list(range(8))
    told.chunk = b"\1" + chunk[1:]
    with fails_with(ReadFault):
        chunks.read_into(place, (8,), np.dtype(np.uint8), out)


def test_values_that_are_not_finite_come_out_at_every_reading():
    stored = np.array([1, np.inf, -2, np.nan], np.float16)
    chunk = stored.tobytes()
    place = ChunkPlace("s", 0, len(chunk), "", xxhash.xxh3_64_hexdigest(chunk))
    chunks = WholeChunks(Told(chunk), "none")
    for _ in range(2):
        out = np.empty(4, np.float32)
        chunks.read_into(place, (4,), stored.dtype, out)
        assert np.array_equal(out, stored.astype(np.float32), equal_nan=True)


def test_scaled_values_are_multiplied_and_never_taken_as_they_are():
    stored = np.array([-3, 0, 5, 16383], np.int16)
    chunk = stored.tobytes()
    place = ChunkPlace("s", 0, len(chunk), "", xxhash.xxh3_64_hexdigest(chunk))
    for kind in (np.float32, np.float64, np.int16):
        out = np.empty(4, kind)
        WholeChunks(Told(chunk), "none").read_into(place, (4,), stored.dtype, out, scale=2.0)
        assert np.array_equal(out, (stored * 2.0).astype(kind))


@pytest.mark.parametrize("codec", ["none", "blosc-lz4"])
def test_reading_again_takes_no_further_memory(tmp_path, codec):
    shape = (32, 32, 32, 1)
    shards = make_shard_set(tmp_path, 4, shape=shape, codec=codec)
    out = np.empty(shape, np.float32)
    shards.read_into(0, out)
    tracemalloc.start()
    try:
        for row in (1, 2, 3):
            shards.read_into(row, out)
        assert tracemalloc.get_traced_memory()[1] < 32**3  # a volume has twice that, as it is stored
    finally:
        tracemalloc.stop()


def test_each_thread_has_scratch_memory_of_its_own():
    meet = threading.Barrier(3)

    def address(_: int) -> int:
        memory = thread_memory.scratch("voxels", 1000)
        meet.wait(10)
        return int(memory.ctypes.data)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(address, range(3)))
    assert len(set(found)) == 3


def test_scratch_memory_grows_and_is_used_again():
    def look() -> None:
        small = thread_memory.scratch("voxels", 100)
        large = thread_memory.scratch("voxels", 10_000)
        again = thread_memory.scratch("voxels", 200)
        assert (small.size, large.size, again.size) == (100, 10_000, 200)
        assert again.ctypes.data == large.ctypes.data != small.ctypes.data
        assert thread_memory.scratch("chunk", 100).ctypes.data != again.ctypes.data

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(look).result()


@pytest.mark.parametrize("shape", [(3, 5), (1,), (7, 6, 5, 4, 1)])
def test_aligned_arrays_begin_where_tensorflow_wants_them(shape):
    for kind in (np.float32, np.uint8, np.int64):
        array = thread_memory.aligned(shape, kind)
        assert array.ctypes.data % 64 == 0
        assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, np.dtype(kind), True)


def test_threads_that_share_a_set_do_not_mix_volumes(tmp_path):
    shards = make_shard_set(tmp_path, 12, codec="none")

    def read(row: int) -> bool:
        out = np.empty(SHAPE, np.float32)
        shards.read_into(row, out)
        return np.array_equal(out, volume_of(row))

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, np.random.default_rng(0).integers(0, 12, 300)))
