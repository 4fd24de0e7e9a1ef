"""What a run does with `data.cache`, on one rank."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from shard_sets import SHAPE, flip_byte, make_mapped_set, make_shard_set, volume_of
from wording import fails_with

from trainer import config
from trainer.data.loading import memory
from trainer.data.loading.node_scratch import Lock, ScratchFolder, lock_of
from trainer.data.loading.patches import Patches
from trainer.data.shards.shards import ShardSet
from trainer.data.splits.splits import Split
from trainer.errors import CingulumError, ConfigError, ScratchError, ShardError, Stopped
from trainer.ranks.agreement import Agreed
from trainer.ranks.world import World
from trainer.runs import caching
from trainer.runs.preparation import Data

VOLUME = int(np.prod(SHAPE)) * 2


class Told:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.shown: list[tuple[int, int]] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    @contextlib.contextmanager
    def counting(self, what: str, unit: str):
        yield lambda done, total: self.shown.append((done, total))


def run_config(shards: Path, *overrides: str):
    return config.parse(f"name: x\ndata: {{shards: {shards}}}\nmodel: {{name: tiny}}", overrides)


def data_of(shards: ShardSet, *, dense: bool = False) -> Data:
    rows = range(len(shards))
    split = Split(train=tuple(rows[:-4]), validation=tuple(rows[-4:-2]), test=tuple(rows[-2:]))
    return Data(shards, SimpleNamespace(dense=dense), split)


@pytest.fixture
def shards(tmp_path) -> ShardSet:
    return make_shard_set(tmp_path / "shards", 12)


@pytest.fixture
def scratch(tmp_path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@contextlib.contextmanager
def cached(shards, *overrides, world=None, told=None, dense=False, data=None, is_stopping=lambda: False):
    beats: list[str] = []
    with caching.cached(
        run_config(shards.path, *overrides),
        data or data_of(shards, dense=dense),
        world or World(),
        reporter=told or Told(),
        beat=lambda what, *, collective=False: beats.append(what),
        is_stopping=is_stopping,
    ) as found:
        yield found


def test_without_a_cache_the_set_is_read_where_it_is(shards):
    with cached(shards) as found:
        assert found.data.shards is shards
        assert found.report() is None


@pytest.mark.parametrize("cache", ["none", "memory", "node-local"])
@pytest.mark.parametrize("wish", ["auto", "use"])
def test_a_set_larger_than_the_memory_is_read_past_the_page_cache(shards, scratch, monkeypatch, cache, wish):
    nbytes = sum(shard.nbytes for shard in shards.index.shards)
    monkeypatch.setattr(memory, "available_bytes", lambda: nbytes - 1)
    monkeypatch.setattr(os, "major", lambda device: 8)
    told = Told()
    overrides = (f"data.cache={cache}", f"data.scratch={scratch}", f"data.page_cache={wish}")
    with cached(shards, *overrides, told=told) as found:
        assert found.data.shards.past_cache == (wish == "auto")
        assert np.array_equal(found.data.shards.read(3), volume_of(3))
    assert any("read past the page cache" in note for note in told.notes) == (wish == "auto")


def test_from_scratch_the_same_is_read_and_nothing_is_left(shards, scratch):
    told = Told()
    with cached(shards, "data.cache=node-local", f"data.scratch={scratch}", told=told) as found:
        near = found.data.shards
        assert all(np.array_equal(near.read(row), volume_of(row)) for row in range(12))
        report = found.report()
    size = sum(shard.nbytes for shard in shards.index.shards)
    assert (report["kind"], report["bytes_copied"], report["copied_to"]) == (
        "node-local",
        size,
        [World().host],
    )
    assert shards.bytes_read == 0
    assert f"{scratch}/cingulum-" in told.notes[0] and "data.scratch" in told.notes[0]
    assert f"copied to {World().host} in" in told.notes[1]
    assert list(ScratchFolder.find(scratch).ours.iterdir()) == []


def test_a_copy_that_is_kept_is_used_again_and_by_evaluation(shards, scratch):
    options = ("data.cache=node-local", f"data.scratch={scratch}", "data.scratch_keep=true")
    with cached(shards, *options):
        pass
    told = Told()
    with cached(shards, *options, told=told) as again:
        assert again.report()["bytes_copied"] == 0
        assert again.report()["copied_to"] == []
    assert len(told.notes) == 1
    with caching.found(run_config(shards.path, *options), data_of(shards), World()) as data:
        data.shards.read(0)
    assert shards.bytes_read == 0
    assert len(ScratchFolder.find(scratch).contents()) == 1


def test_evaluation_makes_no_copy(shards, scratch):
    options = ("data.cache=node-local", f"data.scratch={scratch}")
    with caching.found(run_config(shards.path, *options), data_of(shards), World()) as data:
        assert data.shards is shards
    assert list(scratch.iterdir()) == []
    with caching.found(run_config(shards.path), data_of(shards), World()) as data:
        assert data.shards is shards


def test_damage_ends_the_run_with_the_file(shards, scratch):
    flip_byte(shards.path / "shard-00001.h5", 99)
    with (
        pytest.raises(Agreed) as agreed,
        cached(shards, "data.cache=node-local", f"data.scratch={scratch}"),
    ):
        pass
    assert isinstance(agreed.value.error, ShardError)
    assert str(shards.path / "shard-00001.h5") in agreed.value.error.message


def test_a_place_that_cannot_be_used_ends_the_run(shards, tmp_path):
    with (
        pytest.raises(Agreed) as agreed,
        cached(shards, "data.cache=node-local", f"data.scratch={tmp_path / 'none'}"),
    ):
        pass
    assert isinstance(agreed.value.error, ScratchError)
    assert agreed.value.error.exit_code == 2


def test_a_copy_without_progress_ends_the_run_with_the_host(shards, scratch):
    """Another process holds the lock and does nothing."""
    copy = ScratchFolder.find(scratch).open() / shards.content_hash
    held = Lock.take(lock_of(copy), alone=True)
    options = ("data.cache=node-local", f"data.scratch={scratch}", "guards.timeout_s=0.3")
    with pytest.raises(Agreed) as agreed, cached(shards, *options):
        pass
    held.close()
    assert type(agreed.value.error) is CingulumError
    assert agreed.value.error.message.startswith(
        f"{World().host}: no progress for 0.3 s while waiting for another"
    )


def test_who_is_told_to_stop_stops_copying(shards, scratch):
    options = ("data.cache=node-local", f"data.scratch={scratch}")
    with pytest.raises(Agreed) as agreed, cached(shards, *options, is_stopping=lambda: True):
        pass
    assert isinstance(agreed.value.error, Stopped)


def test_a_copy_made_by_another_process_meanwhile_is_progress(shards, scratch):
    """What lies in the folder grows, so that who waits for it is not stuck."""
    copy = ScratchFolder.find(scratch).open() / shards.content_hash
    held = Lock.take(lock_of(copy), alone=True)
    copy.mkdir(mode=0o700)
    beats = 0

    def growing() -> bool:
        nonlocal beats
        beats += 1
        (copy / ".partial").write_bytes(b"x" * beats)
        if beats == 6:
            held.close()
        return False

    options = ("data.cache=node-local", f"data.scratch={scratch}", "guards.timeout_s=0.7")
    with cached(shards, *options, is_stopping=growing) as found:
        assert found.report()["bytes_copied"] > 0
    assert beats > 6


def test_memory_keeps_what_fits_and_tells_how_often_it_served(shards):
    told = Told()
    options = ("data.cache=memory", f"data.cache_bytes={6 * VOLUME} B")
    with cached(shards, *options, told=told) as found:
        for _ in range(2):
            for row in range(12):
                assert np.array_equal(found.data.shards.read(row), volume_of(row))
        report = found.report()
    # Rows 0 to 3 of the training, and 8 and 9 of validation, for which two of the six places were held.
    assert report == {
        "kind": "memory",
        "hits": 6,
        "misses": 18,
        "hit_rate": 0.25,
        "kept": 6,
        "kept_bytes": 6 * VOLUME,
        "budget_bytes": 6 * VOLUME,
    }
    assert "25% of all reads" in told.notes[0]


def test_the_ranks_of_a_host_share_its_budget(shards):
    world = World()
    world.local_size = 3
    with cached(shards, "data.cache=memory", f"data.cache_bytes={9 * VOLUME} B", world=world) as found:
        assert found.data.shards.budget == 3 * VOLUME


def test_without_a_number_half_of_what_is_left_is_taken(shards, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 10 * VOLUME)
    with cached(shards, "data.cache=memory") as found:
        assert found.data.shards.budget == 5 * VOLUME


def test_more_than_there_is_is_refused(shards, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**30)
    with pytest.raises(Agreed) as agreed, cached(shards, "data.cache=memory", "data.cache_bytes=2 GiB"):
        pass
    assert isinstance(agreed.value.error, ConfigError)
    assert (
        f"2 GiB is more than the 1.0 GiB of memory that {World().host} has left" in agreed.value.error.message
    )


def test_less_than_a_volume_is_refused(tmp_path):
    shards = make_mapped_set(tmp_path)
    each = 2 * VOLUME + VOLUME // 2  # two contrasts, and a map of bytes
    options = ("data.cache=memory", f"data.cache_bytes={each - 1} B")
    with cached(shards, *options):
        pass
    with fails_with(Agreed), cached(shards, *options, dense=True):
        pass


@pytest.mark.parametrize("text", ["4", "4 GB", "lots"])
def test_a_budget_without_a_unit_is_refused(shards, text):
    with fails_with(ConfigError):
        run_config(shards.path, f"data.cache_bytes='{text}'")


@pytest.mark.parametrize("kind", ["memory", "node-local"])
def test_patches_are_looked_for_where_volumes_are_read(shards, scratch, kind):
    patches = Patches.build(config.PatchConfig(size=(2, 2, 2)), shards)
    plain = dataclasses.replace(data_of(shards), patches=patches)
    options = (f"data.cache={kind}", f"data.scratch={scratch}")
    with cached(shards, *options, data=plain) as found:
        assert found.data.shards is not shards
        assert found.data.patches.shards is found.data.shards
