"""Reading past the page cache: the same values, nothing kept by the system, and when it is chosen."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from read_configs import reading
from shard_sets import make_mapped_set, make_shard_set, volume_of
from wording import fails_with

from trainer.bench.loader import page_cache
from trainer.data.loading import pipeline
from trainer.data.shards.shards import ShardSet
from trainer.errors import ShardError
from trainer.runs import caching as choice


def can_bypass(folder: Path) -> bool:
    probe = folder / "probe"
    probe.write_bytes(bytes(4096))
    try:
        os.close(os.open(probe, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


@pytest.fixture
def shards(tmp_path) -> ShardSet:
    """One that is read past the page cache, of several shards whose last volumes end the file."""
    if not can_bypass(tmp_path):
        pytest.skip("the file system of temporary files cannot read past the page cache")
    made = make_shard_set(tmp_path / "set", 10)
    made.go_past_cache()
    return made


@pytest.mark.parametrize("codec", ["none", "blosc-lz4", "gzip"])
@pytest.mark.parametrize("bricks", [None, 4])
def test_every_volume_map_and_part_is_the_same(tmp_path, codec, bricks):
    plain = make_mapped_set(tmp_path, 5, codec=codec, bricks=bricks)
    past = ShardSet.open(tmp_path)
    past.go_past_cache()
    out = np.empty((3, 2, 2, plain.shape[3]), np.float32)
    again = np.empty_like(out)
    for row in range(5):
        assert np.array_equal(past.read(row), plain.read(row))
        assert np.array_equal(past.read_map(row), plain.read_map(row))
        assert past.read_chunk(row) == plain.read_chunk(row)
        past.read_into(row, out, (2, 1, 1))
        plain.read_into(row, again, (2, 1, 1))
        assert np.array_equal(out, again)
    assert past.bytes_read == plain.bytes_read
    assert past.past_cache == can_bypass(tmp_path)


def test_the_page_cache_keeps_nothing_of_it(shards):
    files = sorted(shards.path.glob("*.h5"))
    page_cache.drop(files)
    before = page_cache.share(files)
    for row in range(10):
        shards.will_read(row)
        assert np.array_equal(shards.read(row), volume_of(row))
    assert page_cache.share(files) == before < 0.5
    assert shards.past_cache


def test_threads_read_at_once(shards):
    with ThreadPoolExecutor(8) as pool:
        for row, found in zip([*range(10)] * 20, pool.map(shards.read, [*range(10)] * 20), strict=True):
            assert np.array_equal(found, volume_of(row))


@pytest.mark.parametrize("where", ["open", "preadv"])
def test_where_the_file_system_cannot_all_threads_read_as_usual(tmp_path, monkeypatch, where):
    shards = make_shard_set(tmp_path)
    plain_open, plain_read = os.open, os.preadv
    direct: set[int] = set()
    barrier = threading.Barrier(4, timeout=20)
    refused = OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def opened(path, flags, *more):
        if not flags & os.O_DIRECT:
            descriptor = plain_open(path, flags, *more)
            direct.discard(descriptor)  # the number may have been that of a file that is closed by now
            return descriptor
        if where == "open":
            barrier.wait()  # all of them are refused, not only the first one
            raise refused
        descriptor = plain_open(path, flags & ~os.O_DIRECT, *more)
        direct.add(descriptor)
        return descriptor

    def preadv(descriptor, buffers, offset):
        if descriptor in direct:
            barrier.wait()
            raise refused
        return plain_read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "preadv", preadv)
    shards.go_past_cache()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(shards.read, range(4)))
    assert all(np.array_equal(volume, volume_of(row)) for row, volume in enumerate(found))
    assert not shards.past_cache


def test_a_shard_that_is_cut_short_is_named(shards):
    shards.read(0)
    path = shards.path / shards.volumes[0].shard
    with path.open("r+b") as file:
        file.truncate(shards.volumes[3].offset + 3)
    with fails_with(ShardError):
        shards.read(3)


def test_a_read_that_hangs_names_its_own_volume(shards, monkeypatch):
    waiting, go, plain = threading.Event(), threading.Event(), os.preadv

    def preadv(*arguments):
        waiting.set()
        assert go.wait(20)
        return plain(*arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    thread = threading.Thread(target=shards.read, args=(6,), daemon=True)
    thread.start()
    assert waiting.wait(20)
    while (error := shards.overdue(0.01)) is None:
        pass
    assert f"byte {shards.volumes[6].offset}: reading volume 6 (subject sub-06)" in error.message
    go.set()
    thread.join()


def test_a_forked_child_reads_past_it_too(shards):
    shards.read(0)
    child = os.fork()
    if child == 0:
        right = np.array_equal(shards.read(9), volume_of(9)) and shards.past_cache
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_batches_are_the_same_and_more_threads_wait_for_the_disk(shards, monkeypatch):
    started: list[int] = []
    plain = pipeline.Batches

    def counted(*arguments, threads, **more):
        started.append(threads)
        return plain(*arguments, threads=threads, **more)

    monkeypatch.setattr(pipeline, "Batches", counted)

    def batches(of: ShardSet) -> list[np.ndarray]:
        samples = pipeline.Samples(of, range(10), np.zeros(10, np.int32))
        made = pipeline.training_batches(samples, reading(1, 2), range(10))
        return [x.numpy() for x, _, _ in made]

    usual = batches(ShardSet.open(shards.path))
    assert all(np.array_equal(a, b) for a, b in zip(usual, batches(shards), strict=True))
    assert started == [2, 2 + pipeline.WAITING]


@pytest.mark.parametrize(
    ("wish", "left", "said"),
    [
        ("auto", 10**12, None),
        ("auto", 10, "do not fit into the 10 B of memory left"),
        ("use", 10, None),
        ("bypass", 10**12, "data.page_cache=bypass"),
    ],
)
def test_it_is_chosen_for_sets_that_are_larger_than_the_memory(tmp_path, monkeypatch, wish, left, said):
    shards = make_shard_set(tmp_path)
    monkeypatch.setattr(os, "major", lambda device: 8)
    why = choice.go_past(shards, wish, left)
    assert shards.past_cache == (why is not None) == (said is not None)
    assert said is None or said in why


def test_a_file_system_of_other_hosts_is_left_alone(tmp_path, monkeypatch):
    shards = make_shard_set(tmp_path)
    monkeypatch.setattr(os, "major", lambda device: 0)
    assert choice.go_past(shards, "auto", 10) is None
    assert not shards.past_cache
    assert choice.go_past(shards, "bypass", 10)
