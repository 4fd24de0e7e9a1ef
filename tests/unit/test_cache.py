"""Volumes kept in memory are those of the set, within the budget, decoded once."""

from __future__ import annotations

import concurrent.futures
import threading
import time
import tracemalloc

import numpy as np
import pytest
from shard_sets import SHAPE, flip_byte, make_mapped_set, make_shard_set, volume_of
from wording import fails_with

from trainer.data.loading.cache import KeptVolumes, Use
from trainer.data.shards.shards import ShardSet
from trainer.errors import ShardError

BYTES = int(np.prod(SHAPE)) * 2


class Counted:
    """Counts what is read of a set, and lets it take long."""

    def __init__(self, shards: ShardSet, monkeypatch, seconds: float = 0.0) -> None:
        self.rows: list[int] = []
        plain = ShardSet.read

        def read(itself, row):
            self.rows.append(row)
            time.sleep(seconds)
            return plain(itself, row)

        monkeypatch.setattr(ShardSet, "read", read)


def test_what_is_read_is_bit_for_bit_that_of_the_set(tmp_path):
    plain = make_mapped_set(tmp_path, 5)
    kept = KeptVolumes(plain, 2 * BYTES * 2 + 100, with_maps=True)
    for _ in range(3):
        for row in range(5):
            for origin, shape in ((None, (*SHAPE[:3], 2)), ((1, 2, 0), (3, 2, 4, 2))):
                ours, theirs = np.empty(shape, np.float32), np.empty(shape, np.float32)
                kept.read_into(row, ours, origin)
                plain.read_into(row, theirs, origin)
                assert ours.tobytes() == theirs.tobytes()
                ours, theirs = np.empty(shape[:3], np.uint8), np.empty(shape[:3], np.uint8)
                kept.read_map_into(row, ours, origin)
                plain.read_map_into(row, theirs, origin)
                assert ours.tobytes() == theirs.tobytes()
            assert kept.read(row).dtype == plain.read(row).dtype
            assert kept.read(row).tobytes() == plain.read(row).tobytes()
            assert kept.read_map(row).tobytes() == plain.read_map(row).tobytes()
    assert kept.use().hits and kept.use().misses


def test_it_is_the_same_set(tmp_path):
    plain = make_mapped_set(tmp_path)
    kept = KeptVolumes(plain, 10**6)
    assert isinstance(kept, ShardSet)
    assert (len(kept), kept.shape, kept.maps) == (5, plain.shape, plain.maps)
    assert kept.content_hash == plain.content_hash
    kept.read(0)
    assert kept.bytes_read == plain.bytes_read == plain.volumes[0].nbytes


def test_the_first_that_fit_are_kept_and_never_given_up(tmp_path):
    kept = KeptVolumes(make_shard_set(tmp_path), 3 * BYTES + 1)
    for _ in range(4):
        for row in (7, 2, 5, 0, 1):
            kept.read(row)
    assert kept.use() == Use(hits=3 * 3, misses=5 + 3 * 2, kept=3, kept_bytes=3 * BYTES)
    before = kept.bytes_read
    for row in (7, 2, 5):
        kept.read(row)
    assert kept.bytes_read == before


def test_the_hit_rate_is_the_share_that_is_kept(tmp_path):
    kept = KeptVolumes(make_shard_set(tmp_path, 20), 5 * BYTES)
    random = np.random.default_rng(0)
    for _ in range(10):
        for row in random.permutation(20):
            kept.read(int(row))
    assert kept.use().hits == 9 * 5


def test_the_memory_taken_is_what_is_told(tmp_path):
    shape = (32, 32, 32, 1)
    plain = make_shard_set(tmp_path, 12, per_shard=12, shape=shape)
    kept = KeptVolumes(plain, 6 * 2**16)
    kept.read(0)
    tracemalloc.start()
    for row in range(12):
        kept.read(row)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept.use().kept_bytes == 6 * 2**16
    assert 5 * 2**16 <= taken < 5.5 * 2**16


def test_only_rows_worth_keeping_are_kept(tmp_path):
    kept = KeptVolumes(make_shard_set(tmp_path), 10**6, rows={1, 2})
    for row in range(4):
        kept.read(row)
    assert kept.use().kept == 2


def test_room_is_held_for_what_comes_in_every_epoch(tmp_path):
    kept = KeptVolumes(make_shard_set(tmp_path), 4 * BYTES, preferred={8, 9}, preferred_count=2)
    for row in range(10):
        kept.read(row)
    before = kept.bytes_read
    for row in (0, 1, 8, 9):
        kept.read(row)
    assert kept.bytes_read == before


def test_a_volume_is_never_decoded_twice_at_once(tmp_path, monkeypatch):
    kept = KeptVolumes(make_shard_set(tmp_path), 10**6)
    counted = Counted(kept, monkeypatch, seconds=0.05)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        volumes = list(pool.map(kept.read, [3] * 8 + [4] * 8))
    assert sorted(counted.rows) == [3, 4]
    assert all(np.array_equal(volume, volume_of(3 + k // 8)) for k, volume in enumerate(volumes))


def test_many_threads_stay_within_the_budget(tmp_path):
    kept = KeptVolumes(make_shard_set(tmp_path, 24), 7 * BYTES)
    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, kept.use().kept_bytes)

    watching = threading.Thread(target=watch)
    watching.start()
    rows = np.random.default_rng(0).integers(0, 24, 600)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for row, volume in zip(rows, pool.map(kept.read, rows.tolist()), strict=True):
            assert np.array_equal(volume, volume_of(row))
    done.set()
    watching.join()
    assert most == 7 * BYTES


def test_a_kept_volume_cannot_be_changed(tmp_path):
    kept = KeptVolumes(make_shard_set(tmp_path), 10**6)
    with pytest.raises(ValueError, match="read-only"):
        kept.read(0)[0] = 1


def test_damage_is_told_each_time_and_takes_no_room(tmp_path):
    plain = make_shard_set(tmp_path)
    volume = plain.volumes[1]
    flip_byte(tmp_path / volume.shard, volume.offset + 5)
    kept = KeptVolumes(ShardSet.open(tmp_path), 10**6)
    for _ in range(2):
        with fails_with(ShardError):
            kept.read(1)
    assert kept.use() == Use(hits=0, misses=2, kept=0, kept_bytes=0)


def test_a_set_that_is_read_as_a_wider_type_stays_within_the_budget(tmp_path, monkeypatch):
    """Such as int16 with a scale, which `read` gives as float32."""
    plain = make_shard_set(tmp_path)
    narrow = ShardSet.read
    monkeypatch.setattr(ShardSet, "read", lambda itself, row: narrow(itself, row).astype(np.float32))
    kept = KeptVolumes(plain, 5 * BYTES)
    for row in range(10):
        kept.read(row)
    assert (kept.use().kept, kept.use().kept_bytes) == (2, 4 * BYTES)


@pytest.mark.parametrize("origin", [(5, 0, 0), (0, -1, 0)])
def test_a_part_outside_a_kept_volume_is_refused(tmp_path, origin):
    kept = KeptVolumes(make_shard_set(tmp_path), 10**6)
    with pytest.raises(ValueError, match="no part from"):
        kept.read_into(0, np.empty((2, 2, 2, 1), np.float32), origin)


def test_an_array_of_another_shape_is_no_place_for_a_kept_volume(tmp_path):
    kept = KeptVolumes(make_shard_set(tmp_path), 10**6)
    with pytest.raises(ValueError, match="an array of"):
        kept.read_into(0, np.empty((2, 2, 2, 1), np.float32))
