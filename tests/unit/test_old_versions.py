"""Sets that earlier versions of cingulum wrote are read as they were: `sets_of_old/` was written by them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from shard_sets import CLASSES, SHAPE, flip_byte, make_shard_set, map_of, volume_of
from wording import fails_with

from trainer.data.shards.index import FORMAT_VERSION
from trainer.data.shards.shards import ShardSet
from trainer.data.shards.summary import summary
from trainer.data.shards.verify import verify
from trainer.errors import ShardError

OLD = Path(__file__).parent / "sets_of_old"


@pytest.mark.parametrize(("version", "count", "channels"), [(1, 3, 1), (2, 4, 2)])
def test_sets_of_old_are_read_and_verified(version, count, channels):
    shards = ShardSet.open(OLD / f"version-{version}")
    assert (shards.index.format_version, len(shards), shards.bricks) == (version, count, None)
    shape = (*SHAPE[:3], channels)
    for row in range(count):
        assert np.array_equal(shards.read(row), volume_of(row, shape))
        if version == 2:
            assert np.array_equal(shards.read_map(row), map_of(row))
    assert shards.maps == (CLASSES if version == 2 else ())
    assert verify(shards.path) == []
    assert summary(shards)["format_version"] == version
    written = json.loads((shards.path / "index.json").read_text())
    assert shards.index.content_hash == written["content_hash"]


@pytest.mark.parametrize("version", [1, 2])
def test_damage_in_sets_of_old_is_seen(tmp_path, version):
    folder = tmp_path / "set"
    shutil.copytree(OLD / f"version-{version}", folder)
    volume = ShardSet.open(folder).volumes[1]
    flip_byte(folder / volume.shard, volume.offset + volume.nbytes // 2)
    with fails_with(ShardError):
        ShardSet.open(folder).read(1)


def test_what_is_written_today_is_the_newest_version(tmp_path):
    make_shard_set(tmp_path)
    document = json.loads((tmp_path / "index.json").read_text())
    assert document["format_version"] == FORMAT_VERSION == 3
    assert document["bricks"] is None
    assert all(len(volume["xxh3"]) == 16 for volume in document["volumes"])
