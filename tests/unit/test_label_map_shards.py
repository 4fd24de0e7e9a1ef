"""Label maps in shards: exact, checked like volumes, and only in sets that have them."""

from __future__ import annotations

import dataclasses
import json
import shutil

import h5py
import hdf5plugin  # noqa: F401  registers the filter for the reference reader
import numpy as np
import pytest
from shard_sets import CLASSES, META, SHAPE, flip_byte, make_mapped_set, make_shard_set, map_of, rows_of
from test_shards import rewrite_index
from wording import fails_with

from cingulum.cli.data import inspect_shards
from trainer.data.shards import codecs, shard_image
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.shards import ShardSet
from trainer.data.shards.summary import summary
from trainer.data.shards.verify import ShardFault, verify
from trainer.errors import ShardError

MAPPED = dataclasses.replace(META, map_classes=CLASSES)


@pytest.mark.parametrize("codec", codecs.CODECS)
def test_maps_come_back_as_they_were_and_hdf5_reads_the_same(tmp_path, codec):
    shards = make_mapped_set(tmp_path, codec=codec)
    assert (shards.maps, shards.contrasts, shards.shape) == (CLASSES, ("T1w", "T2w"), (*SHAPE[:3], 2))
    for volume in shards.volumes:
        ours = shards.read_map(volume.id)
        assert (ours.shape, ours.dtype) == (SHAPE[:3], np.dtype("uint8"))
        assert np.array_equal(ours, map_of(volume.id))
        with h5py.File(tmp_path / volume.shard) as file:
            assert file["maps"].chunks == (1, *SHAPE[:3])
            assert np.array_equal(file["maps"][volume.row], ours)
            assert file["map_checksums"].asstr()[volume.row] == volume.map_checksum
            assert json.loads(file.attrs["map_classes"]) == list(CLASSES)
    assert verify(tmp_path) == []


def test_a_set_without_maps_and_contrasts_says_nothing_of_them(tmp_path):
    shards = make_shard_set(tmp_path)
    document = json.loads((tmp_path / "index.json").read_text())
    assert (shards.maps, shards.contrasts) == ((), ())
    assert not [key for key in document["volumes"][0] if "map" in key or key == "further_sources"]
    with h5py.File(tmp_path / "shard-00000.h5") as file:
        assert "maps" not in file
        assert "map_classes" not in file.attrs
    with fails_with(ShardError) as error:
        shards.read_map(0)
    assert "--maps" in error.value.cure


def test_a_set_with_contrasts_needs_no_maps(tmp_path):
    contrasts = dataclasses.replace(META, contrasts=("T1w", "FLAIR"))
    writer = ShardWriter(tmp_path / "contrasts", (6, 5, 4, 2), "float16", meta=contrasts)
    writer.finish([writer.write_shard(0, rows_of(0, 2, (6, 5, 4, 2)))])
    alone = ShardSet.open(tmp_path / "contrasts")
    assert (alone.contrasts, alone.maps, alone.volumes[0].map_offset) == (("T1w", "FLAIR"), (), None)
    assert verify(tmp_path / "contrasts") == []


def test_the_content_hash_changes_with_one_voxel_of_a_map_and_with_a_class_name(tmp_path):
    hashes = set()
    for name, value, white in (("a", 1, "white"), ("b", 2, "white"), ("c", 1, "White")):
        meta = dataclasses.replace(META, map_classes=("background", "grey", white))
        writer = ShardWriter(tmp_path / name, SHAPE, "float16", meta=meta)
        label_map = np.zeros(SHAPE[:3], np.uint8)
        label_map[3, 2, 1] = value
        hashes.add(writer.finish([writer.write_shard(0, rows_of(0, 1), maps=[label_map])]).content_hash)
    assert len(hashes) == 3


def test_an_interrupted_writing_of_maps_goes_on_and_ends_byte_identical(tmp_path):
    whole = make_mapped_set(tmp_path / "whole", 5)
    resumed = tmp_path / "resumed"
    shutil.copytree(tmp_path / "whole", resumed)
    (resumed / "index.json").unlink()
    (resumed / "shard-00001.h5").unlink()
    writer = ShardWriter(resumed, whole.shape, "float16", meta=whole.index.meta)
    assert writer.whole_shard(1) is None
    first = writer.whole_shard(0)
    assert first is not None
    rest = writer.write_shard(1, rows_of(3, 2, whole.shape), maps=[map_of(3), map_of(4)])
    writer.finish([first, rest])
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (resumed / path.name).read_bytes()


def test_a_shard_with_a_damaged_map_is_written_again(tmp_path):
    shards = make_mapped_set(tmp_path, 3)
    writer = ShardWriter(tmp_path, shards.shape, "float16", meta=shards.index.meta)
    assert writer.whole_shard(0) is not None
    flip_byte(tmp_path / "shard-00000.h5", shards.volumes[1].map_offset + 20)
    assert writer.whole_shard(0) is None


def test_the_writer_refuses_maps_that_do_not_fit(tmp_path):
    def write(maps, meta=MAPPED):
        ShardWriter(tmp_path, SHAPE, "float16", meta=meta).write_shard(0, rows_of(0, 1), maps=maps)

    with pytest.raises(ValueError, match="0 label maps of 3 classes for 1 volumes"):
        write(None)
    with pytest.raises(ValueError, match="1 label maps of 0 classes"):
        write([map_of(0)], META)
    with pytest.raises(ValueError, match=r"sub-00.*int64"):
        write([map_of(0).astype(np.int64)])
    with pytest.raises(ValueError, match=r"sub-00.*\(5, 5, 4\)"):
        write([map_of(0)[:5]])
    with pytest.raises(ValueError, match="class 3 of 3"):
        write([map_of(0) + 1])
    with fails_with(ShardError):
        write([map_of(0)], dataclasses.replace(META, map_classes=tuple(map(str, range(257)))))


def test_a_flipped_byte_of_a_map_names_it_and_leaves_the_volume_readable(tmp_path):
    shards = make_mapped_set(tmp_path)
    volume = shards.volumes[4]
    flip_byte(tmp_path / volume.shard, volume.map_offset + volume.map_nbytes // 2)
    shards = ShardSet.open(tmp_path)
    message = r"shard-00001.h5, byte \d+: the label map of volume 4 \(subject sub-04\) is damaged: its"
    with pytest.raises(ShardError, match=message) as error:
        shards.read_map(4)
    assert "cingulum verify" in error.value.cure
    shards.read(4)
    assert np.array_equal(shards.read_map(3), map_of(3))
    assert verify(tmp_path) == [
        ShardFault("shard-00001.h5", "label map: its checksum does not match", 4, "sub-04")
    ]


def test_a_map_whose_hdf5_reads_otherwise_is_a_problem(tmp_path, monkeypatch):
    """Correct checksums over wrong places: only the reference reader can see it."""
    build = shard_image.build

    def swapped(content, *how):
        image = build(content, *how)
        content.maps.reverse()
        return dataclasses.replace(image, map_offsets=image.map_offsets[::-1])

    monkeypatch.setattr(shard_image, "build", swapped)
    writer = ShardWriter(tmp_path, SHAPE, "float16", meta=MAPPED)
    writer.finish([writer.write_shard(0, rows_of(0, 2), maps=[map_of(0), map_of(1)])])
    assert [problem.what for problem in verify(tmp_path)] == [
        "label map: HDF5 and cingulum read different values"
    ] * 2


DAMAGES = {
    "the key 'map_classes' is missing": lambda index: index.pop("map_classes"),
    "the key 'map_offset' is missing": lambda index: index["volumes"][1].pop("map_offset"),
    "map_nbytes of volume 1": lambda index: index["volumes"][1].update(map_nbytes="7"),
    "wrong type .*map_classes 7": lambda index: index.update(map_classes=7),
    "wrong type .*3 contrasts of 2 channels": lambda index: index.update(contrasts=["a", "b", "c"]),
    "places volume 2 outside shard-00000.h5": lambda index: index["volumes"][2].update(map_offset=10**6),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_an_index_that_is_wrong_about_maps_is_refused(tmp_path, message):
    make_mapped_set(tmp_path)
    rewrite_index(tmp_path, DAMAGES[message], sign=True)
    with pytest.raises(ShardError, match=message) as error:
        ShardSet.open(tmp_path)
    assert error.value.cure


def test_inspect_shows_contrasts_and_classes(tmp_path, capsys):
    shards = make_mapped_set(tmp_path)
    content = summary(shards)
    assert (content["contrasts"], content["maps"]) == (["T1w", "T2w"], list(CLASSES))
    assert content["bytes_decoded"] == 5 * 6 * 5 * 4 * (2 * 2 + 1)
    inspect_shards(tmp_path)
    shown = capsys.readouterr().out
    assert "background, grey, white" in shown
    assert "T1w, T2w" in shown
