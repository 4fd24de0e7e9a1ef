"""A shard set is whole or refused, readable by any HDF5 tool, and damage is named."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import hashlib
import json
import math
import multiprocessing
import os
import pickle
import shlex
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401  registers the filter for the reference reader
import numpy as np
import pytest
from numcodecs import blosc
from shard_sets import META, SHAPE, flip_byte, make_shard_set, meta_of, rows_of, volume_of
from wording import fails_with

from trainer.data.shards import codecs, shard_writer
from trainer.data.shards.index import FORMAT_VERSION, canonical_json
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.shards import ShardSet
from trainer.errors import CingulumError, ShardError


def rewrite_index(folder: Path, change, *, sign: bool = False) -> None:
    """Apply `change` to the parsed index; `sign` makes its content hash right again."""
    path = folder / "index.json"
    document = json.loads(path.read_text())
    change(document)
    if sign:
        del document["content_hash"]
        document["content_hash"] = hashlib.sha256(canonical_json(document).encode()).hexdigest()
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("codec", codecs.CODECS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "uint16", "uint8"])
@pytest.mark.parametrize("channels", [1, 3])
def test_our_reader_the_reference_reader_and_the_source_agree(tmp_path, codec, dtype, channels):
    shape = (*SHAPE[:3], channels)
    shards = make_shard_set(tmp_path, 5, per_shard=3, shape=shape, dtype=dtype, codec=codec)
    assert (shards.shape, shards.dtype, shards.codec, len(shards)) == (shape, np.dtype(dtype), codec, 5)
    for volume in shards.volumes:
        with h5py.File(tmp_path / volume.shard) as file:
            stored = file["volumes"][volume.row]
            assert file["volumes"].chunks == (1, *shape)
        ours = shards.read(volume.id)
        assert ours.dtype == stored.dtype == np.dtype(dtype)
        assert np.array_equal(ours, volume_of(volume.id, shape, dtype))
        assert np.array_equal(ours, stored)


def test_gzip_shards_need_no_plugin(tmp_path):
    make_shard_set(tmp_path, codec="gzip")
    with h5py.File(tmp_path / "shard-00000.h5") as file:
        assert (file["volumes"].compression, file["volumes"].shuffle) == ("gzip", True)


def test_incompressible_volumes_come_back_too(tmp_path):
    noise = np.random.default_rng(0).integers(0, 2**16, SHAPE, np.uint16)
    for codec in codecs.CODECS:
        writer = ShardWriter(tmp_path / codec, SHAPE, "uint16", codec, meta=META)
        writer.finish([writer.write_shard(0, [(noise, meta_of(0))])])
        assert np.array_equal(ShardSet.open(tmp_path / codec).read(0), noise)
        with h5py.File(tmp_path / codec / "shard-00000.h5") as file:
            assert np.array_equal(file["volumes"][0], noise)


def test_a_shard_tells_its_subjects_labels_affines_and_normalisation(tmp_path):
    make_shard_set(tmp_path, 4, per_shard=4)
    with h5py.File(tmp_path / "shard-00000.h5") as file:
        assert list(file["subjects"].asstr()) == ["sub-00", "sub-01", "sub-02", "sub-03"]
        assert list(file["labels"].asstr()) == ["AD", "NC", "AD", "NC"]
        assert np.array_equal(file["affines"][3], np.diag([2, 2, 2.5, 1]))
        assert list(file.attrs["voxel_size"]) == [2, 2, 2.5]
        assert json.loads(file.attrs["normalisation"]) == {"method": "zscore", "clip": 5.0}
        assert file.attrs["label_name"] == "diagnosis"


def test_the_index_tells_everything_about_a_volume(tmp_path):
    shards = make_shard_set(tmp_path, 6, per_shard=4)
    volume = shards.volumes[5]
    known = dataclasses.asdict(meta_of(5))
    assert {key: getattr(volume, key) for key in known} == known
    assert (volume.id, volume.shard, volume.row) == (5, "shard-00001.h5", 1)
    chunk = (tmp_path / volume.shard).read_bytes()[volume.offset :][: volume.nbytes]
    assert hashlib.sha256(chunk).hexdigest() == volume.checksum
    assert (shards.labels, shards.label_name, shards.voxel_size) == (
        ("AD", "NC"),
        "diagnosis",
        (2.0, 2.0, 2.5),
    )
    assert (shards.normalisation, shards.preprocessing) == (META.normalisation, META.preprocessing)


def test_the_index_has_a_line_per_volume(tmp_path):
    make_shard_set(tmp_path)
    lines = (tmp_path / "index.json").read_text().splitlines()
    (line,) = [line for line in lines if '"sub-07"' in line]
    assert json.loads(line.rstrip(","))["shard"] == "shard-00001.h5"


@pytest.mark.parametrize("codec", codecs.CODECS)
def test_the_same_volumes_give_the_same_bytes(tmp_path, codec):
    first = make_shard_set(tmp_path / "a", codec=codec)
    make_shard_set(tmp_path / "b", codec=codec)
    names = [path.name for path in sorted((tmp_path / "a").iterdir())]
    assert names == ["index.json", "shard-00000.h5", "shard-00001.h5", "shard-00002.h5"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert ShardSet.open(tmp_path / "b").content_hash == first.content_hash


def test_compressed_bytes_do_not_depend_on_threads():
    volume = np.random.default_rng(0).normal(size=(128, 128, 128, 1)).round(1).astype("float16")
    threads = blosc.set_nthreads(4)
    try:
        assert len({codecs.encode("blosc-lz4", volume) for _ in range(20)}) == 1
    finally:
        blosc.set_nthreads(threads)


def test_the_content_hash_changes_with_one_voxel_and_with_one_label(tmp_path):
    hashes = set()
    for name, value, label in (("a", 1, "AD"), ("b", 2, "AD"), ("c", 1, "NC")):
        writer = ShardWriter(tmp_path / name, SHAPE, "uint8", meta=META)
        volume = np.zeros(SHAPE, np.uint8)
        volume[3, 2, 1, 0] = value
        writer.finish([writer.write_shard(0, [(volume, meta_of(0, label))])])
        hashes.add(ShardSet.open(tmp_path / name).content_hash)
    assert len(hashes) == 3


def test_an_interrupted_writing_goes_on_and_ends_byte_identical(tmp_path):
    make_shard_set(tmp_path / "whole", 6, per_shard=2)
    writer = ShardWriter(tmp_path / "resumed", SHAPE, "float16", meta=META)
    early = writer.write_shard(2, rows_of(4, 2))
    again = pickle.loads(pickle.dumps(ShardWriter(tmp_path / "resumed", SHAPE, "float16", meta=META)))  # noqa: S301
    found = [again.whole_shard(number) for number in range(3)]
    assert found == [None, None, early]
    again.finish([again.write_shard(0, rows_of(0, 2)), again.write_shard(1, rows_of(2, 2)), early])
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "resumed" / path.name).read_bytes()


def test_a_shard_of_other_inputs_or_parameters_is_written_again(tmp_path):
    def writer(codec="gzip", **changes):
        return ShardWriter(tmp_path, SHAPE, "float16", codec, meta=dataclasses.replace(META, **changes))

    writer().write_shard(0, rows_of(0, 2), "these images")
    assert writer().whole_shard(0, "these images")
    assert writer().whole_shard(0, "other images") is None
    assert writer("none").whole_shard(0, "these images") is None
    assert writer(label_name="sex").whole_shard(0, "these images") is None


def test_a_shard_with_any_byte_wrong_is_written_again(tmp_path):
    writer = ShardWriter(tmp_path, SHAPE, "float16", meta=META)
    writer.write_shard(0, rows_of(0, 2))
    path = tmp_path / "shard-00000.h5"
    good = path.read_bytes()
    for offset in range(5, len(good), 97):
        path.write_bytes(good)
        flip_byte(path, offset)
        assert writer.whole_shard(0) is None, offset
    path.write_bytes(good[:-1])
    assert writer.whole_shard(0) is None


def test_writing_a_shard_takes_back_the_index(tmp_path):
    make_shard_set(tmp_path, 4)
    ShardWriter(tmp_path, SHAPE, "float16", meta=META).write_shard(0, rows_of(4, 4))
    with fails_with(ShardError):
        ShardSet.open(tmp_path)


def test_finishing_removes_shards_and_temporary_files_of_an_earlier_import(tmp_path):
    make_shard_set(tmp_path, 10, per_shard=2)
    (tmp_path / ".shard-00007.h5.123.partial").touch()
    (tmp_path / "qc.html").touch()
    make_shard_set(tmp_path, 3, per_shard=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "index.json",
        "qc.html",
        "shard-00000.h5",
        "shard-00001.h5",
    ]


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_full_disk_is_named_and_leaves_no_half_shard(tmp_path, monkeypatch, failing):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = ShardWriter(tmp_path, SHAPE, "float16", meta=META)
    if failing == "replace":
        monkeypatch.setattr(Path, "replace", full)
    else:
        monkeypatch.setattr(os, "fsync", full)
    with fails_with(CingulumError) as error:
        writer.write_shard(0, rows_of(0, 2))
    assert "goes on" in error.value.cure
    assert list(tmp_path.iterdir()) == []


def test_a_really_full_disk_is_named(tmp_path):
    with fails_with(CingulumError):
        shard_writer.write_atomically(FullDisk(tmp_path / "shard-00000.h5"), b"x" * 10)


class FullDisk(type(Path())):
    """A path whose temporary neighbour is /dev/full, where every write fails."""

    def with_name(self, name):
        link = Path(self.parent) / name
        link.symlink_to("/dev/full")
        return link


def test_the_writer_refuses_what_does_not_fit(tmp_path):
    writer = ShardWriter(tmp_path, SHAPE, "float16", meta=META)
    with pytest.raises(ValueError, match="sub-00"):
        writer.write_shard(0, rows_of(0, 1, dtype="float32"))
    with pytest.raises(ValueError, match="sub-00"):
        writer.write_shard(0, rows_of(0, 1, shape=(6, 5, 4, 2)))
    with pytest.raises(ValueError, match="no volume"):
        writer.write_shard(0, [])
    with pytest.raises(ValueError, match="at least one shard"):
        writer.finish([])
    with fails_with(ShardError):
        ShardWriter(tmp_path, SHAPE, "float16", "zip", meta=META)
    with fails_with(ShardError):
        ShardWriter(tmp_path, (1024, 1024, 1024, 1), "float32", meta=META)
    (tmp_path / "file").touch()
    with fails_with(ShardError):
        ShardWriter(tmp_path / "file", SHAPE, "float16", meta=META)


def test_a_flipped_byte_names_shard_volume_subject_and_cure(tmp_path):
    shards = make_shard_set(tmp_path)
    volume = shards.volumes[6]
    flip_byte(tmp_path / volume.shard, volume.offset + volume.nbytes // 2)
    shards = ShardSet.open(tmp_path)
    message = r"shard-00001.h5, byte \d+: volume 6 \(subject sub-06\) .* checksum"
    with pytest.raises(ShardError, match=message) as error:
        shards.read(6)
    assert "cingulum verify" in error.value.cure
    assert np.array_equal(shards.read(5), volume_of(5))


@pytest.mark.parametrize("codec", codecs.CODECS)
def test_a_chunk_that_cannot_be_decoded_is_named(tmp_path, codec):
    make_shard_set(tmp_path, codec=codec)
    rewrite_index(tmp_path, lambda index: index.update(shape=[6, 5, 4, 3]), sign=True)
    with fails_with(ShardError):
        ShardSet.open(tmp_path).read(0)


def test_a_shard_that_goes_away_while_reading_is_named(tmp_path):
    shards = make_shard_set(tmp_path)
    (tmp_path / "shard-00001.h5").unlink()
    with fails_with(ShardError):
        shards.read(4)
    os.truncate(tmp_path / "shard-00000.h5", 100)
    with fails_with(ShardError):
        shards.read(0)


def missing_folder(path):
    return path / "nowhere"


def no_shard_set(path):
    for child in path.iterdir():
        child.unlink()
    return path


def half_written(path):
    (path / "index.json").unlink()
    return path


def half_written_first_shard(path):
    no_shard_set(path)
    (path / ".shard-00000.h5.17.partial").touch()
    return path


def missing_shard(path):
    (path / "shard-00001.h5").unlink()
    return path


def truncated_shard(path):
    os.truncate(path / "shard-00001.h5", 1000)
    return path


def not_json(path):
    (path / "index.json").write_text('{"format": "cingulum-sha')
    return path


def not_text(path):
    (path / "index.json").write_bytes(b"\xff\xfe\x00\x9f" * 50)
    return path


def nested(path):
    (path / "index.json").write_text("[" * 100_000)
    return path


def index_is_a_list(path):
    (path / "index.json").write_text("[]")
    return path


def index_of_something_else(path):
    (path / "index.json").write_text('{"shards": []}')
    return path


def by_index(change, **how):
    def damage(path):
        rewrite_index(path, change, **how)
        return path

    return damage


DAMAGES = {
    "there is no such folder": missing_folder,
    "is not a shard set, it has no index.json": no_shard_set,
    "is incomplete": half_written,
    "incomplete: it has shards but no index": half_written_first_shard,
    "the shard shard-00001.h5 is missing": missing_shard,
    r"shard-00001.h5: has 1000 bytes, not \d+": truncated_shard,
    "is not JSON .Unterminated": not_json,
    "is not JSON .*decode": not_text,
    "is not the index of a shard set": index_is_a_list,
    "not the index": index_of_something_else,
    f"has format version {FORMAT_VERSION + 1}; this cingulum reads up to {FORMAT_VERSION}": by_index(
        lambda index: index.update(format_version=FORMAT_VERSION + 1)
    ),
    "unknown format version": by_index(lambda index: index.update(format_version="1")),
    "the key 'codec' is missing": by_index(lambda index: index.pop("codec")),
    "the key 'offset' is missing": by_index(lambda index: index["volumes"][2].pop("offset")),
    "wrong type .*codec 'zip'": by_index(lambda index: index.update(codec="zip")),
    "wrong type .*shape": by_index(lambda index: index.update(shape=[6, 5, 4, 0])),
    "wrong type": by_index(lambda index: index.update(shape=[6, 5, 4])),
    "is damaged: a value": by_index(lambda index: index.update(dtype="float17")),
    "a value has the wrong type": by_index(lambda index: index.update(volumes=7)),
    "not numbered from 0": by_index(lambda index: index["volumes"].pop(0)),
    "volumes in no shard": by_index(lambda index: index["shards"].pop()),
    "not together": by_index(lambda index: index["shards"].reverse()),
    "was changed after it was written": by_index(lambda index: index["volumes"][0].update(label="NC")),
    "places volume 3 outside shard-00000.h5": by_index(
        lambda index: index["volumes"][3].update(offset=10**6), sign=True
    ),
    "wrong type .*outside": by_index(lambda index: index["shards"][0].update(file="../x.h5")),
    "label of volume 0: .'AD'.": by_index(lambda index: index["volumes"][0].update(label=["AD"]), sign=True),
    "offset of volume 1: True": by_index(lambda index: index["volumes"][1].update(offset=True), sign=True),
    "age of volume 2: 'old'": by_index(lambda index: index["volumes"][2].update(age="old"), sign=True),
    "affine of volume 3": by_index(lambda index: index["volumes"][3].update(affine=[[1]]), sign=True),
    "dtype: 'object'": by_index(lambda index: index.update(dtype="object"), sign=True),
    r"shape: .10000, 10000, 10000, 1.": by_index(lambda index: index.update(shape=[10**4] * 3 + [1])),
    "Out of range float": by_index(lambda index: index.update(normalisation={"a": math.inf})),
    "is not JSON .maximum recursion": nested,
    "wrong type.*offset of volume 0": by_index(lambda index: index["volumes"][0].update(offset="12")),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_what_is_no_whole_shard_set_is_refused_with_a_reason_and_a_cure(tmp_path, message):
    make_shard_set(tmp_path)
    with pytest.raises(ShardError, match=message) as error:
        ShardSet.open(DAMAGES[message](tmp_path))
    assert error.value.exit_code == 2
    assert error.value.cure


def test_many_threads_read_the_same_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "trainer.data.shards.stored_bytes.MOST_OPEN", 2
    )  # files are closed under other threads
    shards = make_shard_set(tmp_path, 24, per_shard=3)
    rows = np.random.default_rng(0).integers(0, 24, 400)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for row, volume in zip(rows, pool.map(shards.read, rows), strict=True):
            assert np.array_equal(volume, volume_of(row))


def test_at_most_so_many_files_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.data.shards.stored_bytes.MOST_OPEN", 2)
    shards = make_shard_set(tmp_path, 12, per_shard=1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for row in range(12):
        shards.read(row)
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 2


def test_a_command_that_is_proposed_means_the_folder_also_where_its_name_has_blanks(tmp_path):
    images = tmp_path / "my study; $HOME"
    images.mkdir()
    with pytest.raises(ShardError) as error:
        ShardSet.open(images)
    words = shlex.split(str(error.value.cure).partition(": ")[2])
    assert words == ["cingulum", "import", str(images), "SHARDS", "--label", "diagnosis"]


def test_opening_a_set_opens_no_shard(tmp_path):
    make_shard_set(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    shards = ShardSet.open(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(shards) == 10


def read_in_child(shards: ShardSet, connection) -> None:
    connection.send([int(shards.read(row).astype(int).sum()) for row in range(len(shards))])


def test_a_forked_child_reads_even_when_a_thread_held_the_lock(tmp_path):
    shards = make_shard_set(tmp_path)
    shards.read(0)
    here, there = multiprocessing.Pipe()
    with shards._stored._files._lock:
        child = multiprocessing.get_context("fork").Process(
            target=read_in_child, args=(shards, there), daemon=True
        )
        child.start()
    assert here.poll(20), "the child waits for ever"
    assert here.recv() == [int(volume_of(row).astype(int).sum()) for row in range(10)]
    child.join()
    assert np.array_equal(shards.read(0), volume_of(0))


def test_a_part_of_a_volume_is_that_part(tmp_path):
    shards = make_shard_set(tmp_path, 3)
    whole = volume_of(1)
    part = np.empty((2, 3, 2, 1), np.float32)
    shards.read_into(1, part, (1, 0, 2))
    assert np.array_equal(part, whole[1:3, :3, 2:4])


@pytest.mark.parametrize("origin", [(5, 0, 0), (0, -1, 0), (0, 0, 3)])
def test_a_part_outside_the_volume_is_refused(tmp_path, origin):
    shards = make_shard_set(tmp_path, 1)
    with pytest.raises(ValueError, match="no part from"):
        shards.read_into(0, np.empty((2, 2, 2, 1), np.float32), origin)


def test_an_array_of_another_shape_is_no_place_for_a_volume(tmp_path):
    shards = make_shard_set(tmp_path, 1)
    with pytest.raises(ValueError, match="an array of"):
        shards.read_into(0, np.empty((2, 2, 2, 1), np.float32))


def test_bytes_read_are_counted(tmp_path):
    shards = make_shard_set(tmp_path, 3)
    shards.read(0)
    shards.read(2)
    assert shards.bytes_read == shards.volumes[0].nbytes + shards.volumes[2].nbytes
