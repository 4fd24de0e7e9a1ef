"""Volumes in bricks: any HDF5 tool reads them; a box reads the bricks that it touches and no byte more."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib

import h5py
import hdf5plugin  # noqa: F401  registers the filter for the reference reader
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_sets import META, flip_byte, make_mapped_set, make_shard_set, map_of, rows_of, volume_of
from test_shards import rewrite_index
from wording import fails_with

from trainer.data.shards import bricks, codecs, stored_types
from trainer.data.shards.layout import StorageLayout
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.shards import ShardSet
from trainer.data.shards.verify import verify
from trainer.errors import ShardError

SHAPE = (7, 6, 8, 2)


def sizes(shards: ShardSet, row: int, numbers) -> int:
    table = bricks.unpack_table(shards.volumes[row].brick_table)
    return int(table["nbytes"][list(numbers)].sum())


@pytest.mark.parametrize("codec", codecs.CODECS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int16"])
@pytest.mark.parametrize("edge", [2, 3, 7])
def test_any_hdf5_tool_reads_bricks_and_so_do_we(tmp_path, codec, dtype, edge):
    shards = make_shard_set(tmp_path, 3, per_shard=2, shape=SHAPE, dtype=dtype, codec=codec, bricks=edge)
    assert (shards.bricks, shards.index.bricks) == (edge, edge)
    for volume in shards.volumes:
        wanted = volume_of(volume.id, SHAPE, "float32")
        assert np.array_equal(shards.read(volume.id), wanted)
        with h5py.File(tmp_path / volume.shard) as file:
            assert file["volumes"].chunks == (1, *(min(edge, size) for size in SHAPE[:3]), 2)
            assert json.loads(file.attrs["bricks"]) == edge
            if dtype == "float16":
                assert np.array_equal(file["volumes"][volume.row], wanted)
    assert verify(tmp_path) == []


def test_a_reader_needs_no_more_than_the_page_on_the_format_tells(tmp_path):
    make_shard_set(tmp_path, 2, shape=SHAPE, dtype="int16", codec="gzip", bricks=3)
    index = json.loads((tmp_path / "index.json").read_text())
    volume = index["volumes"][1]
    file = (tmp_path / volume["shard"]).read_bytes()
    whole, stored = np.full((9, 6, 9, 2), np.nan, np.float32), b""
    places = [(d, h, w) for d in range(3) for h in range(2) for w in range(3)]
    table = struct.iter_unpack("<QIQ", base64.b64decode(volume["brick_table"]))
    for (d, h, w), (offset, nbytes, xxh3) in zip(places, table, strict=True):
        chunk = file[offset : offset + nbytes]
        assert xxhash.xxh3_64(chunk).intdigest() == xxh3
        low, high = np.frombuffer(zlib.decompress(chunk), np.uint8).reshape(2, -1)
        numbers = np.stack([low, high], axis=1).reshape(-1).view("<i2").reshape(3, 3, 3, 2)
        whole[3 * d :, 3 * h :, 3 * w :][:3, :3, :3] = numbers * np.float32(volume["scale"])
        stored += chunk
    assert np.array_equal(whole[:7, :6, :8], volume_of(1, SHAPE))
    assert not whole[7:].any()
    assert (len(stored), hashlib.sha256(stored).hexdigest()) == (volume["nbytes"], volume["checksum"])


boxes = st.tuples(
    *(
        st.integers(0, size - 1).flatmap(lambda a, size=size: st.tuples(st.just(a), st.integers(1, size - a)))
        for size in SHAPE[:3]
    )
)


@pytest.fixture(scope="module", params=[2, 3, 5])
def bricked(request, tmp_path_factory) -> ShardSet:
    return make_shard_set(tmp_path_factory.mktemp("bricks"), 2, shape=SHAPE, bricks=request.param)


@given(box=boxes)
@settings(max_examples=60)
def test_a_box_is_that_part_and_reads_exactly_the_bricks_it_touches(bricked, box):
    origin, size = zip(*box, strict=True)
    edge = bricked.bricks
    seen: set[int] = set()
    grid = [-(-s // edge) for s in SHAPE[:3]]
    for d in range(origin[0], origin[0] + size[0]):  # voxel by voxel: which brick is it in?
        for h in range(origin[1], origin[1] + size[1]):
            for w in range(origin[2], origin[2] + size[2]):
                seen.add((d // edge * grid[1] + h // edge) * grid[2] + w // edge)
    before = bricked.bytes_read
    out = np.full((*size, 2), np.nan, np.float32)
    bricked.read_into(1, out, origin)
    part = tuple(slice(a, a + n) for a, n in box)
    assert np.array_equal(out, volume_of(1, SHAPE)[part])
    assert bricked.bytes_read - before == sizes(bricked, 1, seen)


def test_bricks_are_the_chunks_that_hdf5_itself_would_write(tmp_path):
    shards = make_shard_set(tmp_path, 1, shape=SHAPE, codec="none", bricks=5)
    with h5py.File("reference", "w", driver="core", backing_store=False) as file:
        dataset = file.create_dataset("volumes", data=volume_of(0, SHAPE)[None], chunks=(1, 5, 5, 5, 2))
        origins = shards._layout.origins()
        theirs = b"".join(dataset.id.read_direct_chunk((0, *origin))[1] for origin in origins)
    assert shards.read_chunk(0) == theirs


def test_bricks_side_by_side_are_read_at_once(tmp_path, monkeypatch):
    shards = make_shard_set(tmp_path, 1, shape=(8, 8, 8, 1), bricks=4)
    table = bricks.unpack_table(shards.volumes[0].brick_table)
    assert (table["offset"][1:] == (table["offset"] + table["nbytes"])[:-1]).all()
    calls = []
    read_into = shards._stored.read_into

    def counted(shard, offset, target):
        calls.append((offset, len(target)))
        read_into(shard, offset, target)

    monkeypatch.setattr(shards._stored, "read_into", counted)
    shards.read(0)
    assert calls == [(shards.volumes[0].offset, shards.volumes[0].nbytes)]
    calls.clear()
    shards.read_into(0, np.empty((4, 8, 4, 1)), (4, 0, 4))  # the bricks 5 and 7: 6 lies between them
    assert calls == [(table["offset"][n], table["nbytes"][n]) for n in (5, 7)]


def test_label_maps_are_in_bricks_too(tmp_path):
    shards = make_mapped_set(tmp_path, bricks=3)
    shape = shards.shape[:3]
    for row in range(5):
        assert np.array_equal(shards.read_map(row), map_of(row, shape))
    before = shards.bytes_read
    part = np.full((3, 2, 1), 9, np.uint8)
    shards.read_map_into(4, part, (3, 0, 3))
    assert np.array_equal(part, map_of(4, shape)[3:, :2, 3:])
    table = bricks.unpack_table(shards.volumes[4].map_brick_table)
    assert shards.bytes_read - before == table["nbytes"][5]  # of 2 x 2 x 2 bricks the one at (1, 0, 1)
    with h5py.File(tmp_path / "shard-00001.h5") as file:
        assert file["maps"].chunks == (1, 3, 3, 3)
        assert np.array_equal(file["maps"][1], map_of(4, shape))
    assert verify(tmp_path) == []


def test_a_flipped_byte_names_volume_and_brick_each_time_and_leaves_other_bricks_readable(tmp_path):
    shards = make_shard_set(tmp_path, 2, shape=(8, 8, 8, 1), bricks=4)
    table = bricks.unpack_table(shards.volumes[1].brick_table)
    flip_byte(tmp_path / "shard-00000.h5", int(table["offset"][3] + table["nbytes"][3] // 2))
    shards = ShardSet.open(tmp_path)  # the set opened before sees that the file was written to
    for _ in range(2):
        with fails_with(ShardError) as error:
            shards.read(1)
        assert "cingulum verify" in error.value.cure
    part = np.empty((4, 4, 4, 1), np.float32)
    shards.read_into(1, part, (4, 0, 0))
    assert np.array_equal(part, volume_of(1, shards.shape)[4:, :4, :4])
    (problem,) = verify(tmp_path)
    assert (problem.volume, problem.what) == (1, "the checksum of its brick 3 does not match")


def test_the_same_volumes_in_bricks_give_the_same_bytes_and_go_on_byte_identical(tmp_path):
    make_shard_set(tmp_path / "a", 4, per_shard=2, shape=SHAPE, dtype="int16", bricks=3)
    writer = ShardWriter(tmp_path / "b", SHAPE, "int16", bricks=3, meta=META)
    writer.write_shard(0, rows_of(0, 2, SHAPE, "float32"))
    first = writer.whole_shard(0)
    assert first is not None
    assert ShardWriter(tmp_path / "b", SHAPE, "int16", bricks=4, meta=META).whole_shard(0) is None
    assert ShardWriter(tmp_path / "b", SHAPE, "int16", meta=META).whole_shard(0) is None
    writer.finish([first, writer.write_shard(1, rows_of(2, 2, SHAPE, "float32"))])
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


@pytest.mark.parametrize("edge", [0, 8, 9])
def test_bricks_no_smaller_than_a_volume_are_refused(tmp_path, edge):
    with pytest.raises(
        ShardError, match=f"bricks of {edge} voxels are impossible in volumes of 7 x 6 x 8"
    ) as error:
        ShardWriter(tmp_path, SHAPE, "float16", bricks=edge, meta=META)
    assert "under 8" in error.value.cure


def in_table(change):
    def damage(index):
        table = bricks.unpack_table(index["volumes"][1]["brick_table"]).copy()
        index["volumes"][1]["brick_table"] = base64.b64encode(change(table).tobytes()).decode()

    return damage


def set_field(name, value):
    def change(table):
        table[name][2] = value
        return table

    return change


DAMAGES = {
    "the key 'bricks' is missing": lambda index: index.pop("bricks"),
    "wrong type .*bricks 'x'": lambda index: index.update(bricks="x"),
    "wrong type .*bricks 9": lambda index: index.update(bricks=9),
    "wrong type .*bricks of volume 0": lambda index: index.update(bricks=2),
    "the key 'brick_table' is missing": lambda index: index["volumes"][1].pop("brick_table"),
    "wrong type .*invalid brick table": lambda index: index["volumes"][1].update(brick_table="ab!"),
    "wrong type .*bricks of volume 1": in_table(lambda table: table[1:]),
    "is damaged.*bricks of volume 1": in_table(set_field("nbytes", 0)),
    "damaged: a value.*bricks of volume 1": in_table(set_field("offset", 2**63)),
    "places volume 1 outside": in_table(set_field("offset", 10**6)),
    "the key 'map_brick_table' is missing": lambda index: index["volumes"][2].pop("map_brick_table"),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_an_index_that_is_wrong_about_bricks_is_refused(tmp_path, message):
    make_mapped_set(tmp_path, bricks=3)
    rewrite_index(tmp_path, DAMAGES[message], sign=True)
    with pytest.raises(ShardError, match=message):
        ShardSet.open(tmp_path)


def test_a_box_of_another_rank_or_number_of_channels_is_refused(tmp_path):
    shards = make_shard_set(tmp_path, 1, shape=SHAPE, bricks=3)
    with pytest.raises(ValueError, match="an array of"):
        shards.read_into(0, np.empty((2, 2, 2, 1), np.float32), (0, 0, 0))
    with pytest.raises(ValueError, match="no part from"):
        shards.read_into(0, np.empty((2, 2, 2, 2), np.float32), (6, 0, 0))
    with pytest.raises(ValueError, match="an array of"):
        shards.read_into(0, np.empty((2, 2, 2, 2), np.float32))


def test_what_bricks_add_to_a_volume_counts_for_its_largest_size(tmp_path):
    shape = (1000, 1000, 1000, 1)
    ShardWriter(tmp_path, shape, "float16", bricks=500, meta=META)
    with fails_with(ShardError):
        ShardWriter(tmp_path, shape, "float16", bricks=600, meta=META)


def test_numbers_of_bricks_are_in_c_order():
    layout = StorageLayout((8, 8, 8, 1), stored_types.stored_dtype("float16"), "none", 4)
    assert bricks.touched(layout, (3, 4, 0), (2, 4, 4)).tolist() == [2, 6]
    assert list(layout.origins())[6] == (4, 4, 0, 0)
