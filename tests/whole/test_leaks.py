"""A planted leak is found, and phantoms of different seeds are not taken for one another."""

from __future__ import annotations

import dataclasses
import json

import nibabel as nib
import numpy as np
import pytest
from scipy import ndimage
from shard_sets import META, make_shard_set, meta_of

from cingulum.cli import app
from trainer.config import SplitConfig
from trainer.data.images import preprocess
from trainer.data.phantom import image, people, template
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.shards import ShardSet
from trainer.data.splits import leaks
from trainer.data.splits.leaks import EDGE, check, duplicates, miniature
from trainer.data.splits.splits import Split, split
from trainer.errors import LeakError

SIZE = 32
RECIPE = preprocess.Recipe.of_size(SIZE)


@pytest.fixture(scope="module")
def scans():
    """60 phantoms as scanned: the template's affine, and each T1 (32, 32, 32) int16."""
    average = template.build(SIZE)
    drawn = [people.draw(11, number, ("AD", "NC")) for number in range(60)]
    return average.affine, [image.make(average, person, 11, 1.5).t1 for person in drawn]


@pytest.fixture(scope="module")
def stored(scans, tmp_path_factory):
    """What an import makes of a T1, as a function, and of all phantoms: (32, 32, 32, 1) float16."""
    folder = tmp_path_factory.mktemp("scans")

    def prepare(t1: np.ndarray, zoom: float = 1.0) -> np.ndarray:
        affine = scans[0].copy()
        affine[:3, :3] /= zoom
        nib.save(nib.Nifti1Image(t1.astype(np.float32), affine), folder / "t1.nii")
        return preprocess.prepare(folder / "t1.nii", RECIPE).array

    return prepare, [prepare(t1) for t1 in scans[1]]


def shards_of(path, volumes, **changed) -> ShardSet:
    """One subject a volume; `changed` replaces what is known of a row, as in `row_3={"subject": "x"}`."""
    rows = [
        (volume, dataclasses.replace(meta_of(row), **changed.get(f"row_{row}", {})))
        for row, volume in enumerate(volumes)
    ]
    writer = ShardWriter(path, (SIZE, SIZE, SIZE, 1), "float16", "blosc-lz4", meta=META)
    writer.finish([writer.write_shard(0, rows)])
    return ShardSet.open(path)


@pytest.mark.parametrize("count", [8, 40, 60])
def test_phantoms_of_different_seeds_are_not_taken_for_one_another(stored, tmp_path, count):
    shards = shards_of(tmp_path, stored[1][:count])
    progress = []
    found = check(
        shards,
        split(shards.volumes, ("AD", "NC"), SplitConfig()),
        stop=True,
        progress=lambda done, total: progress.append((done, total)),
    )
    assert found == duplicates(shards) == []
    assert progress == [(done, count) for done in range(1, count + 1)]


def noisy(stored, scans):
    return (stored[1][5] + np.random.default_rng(1).normal(0, 0.2, stored[1][5].shape)).astype(np.float16)


def cropped(stored, scans):
    return stored[0](scans[1][5][1:, :, :-1])


def shifted(stored, scans):
    return np.roll(stored[1][5], 1, axis=1)


def brighter(stored, scans):
    return stored[0](scans[1][5] * 3.0)


def resampled(stored, scans):
    return stored[0](ndimage.zoom(scans[1][5].astype(np.float32), 1.25, order=1), zoom=1.25)


@pytest.mark.parametrize("count", [40, 59])
@pytest.mark.parametrize("change", [noisy, cropped, shifted, brighter, resampled])
def test_a_scan_that_was_changed_a_little_is_found_under_another_name(stored, scans, tmp_path, change, count):
    shards = shards_of(tmp_path, [*stored[1][:count], change(stored, scans)])
    assert shards.volumes[5].checksum != shards.volumes[count].checksum
    (leak,) = duplicates(shards)
    assert (leak.kind, leak.rows, leak.subjects) == ("look-alike", (5, count), ("sub-05", f"sub-{count}"))
    assert leak.similarity > 0.8


def test_a_planted_leak_stops_the_run_and_says_what_to_do(stored, scans, tmp_path):
    shards = shards_of(tmp_path, [*stored[1][:40], noisy(stored, scans)])
    where = Split(train=tuple(range(30)), validation=tuple(range(30, 36)), test=tuple(range(36, 41)))
    with pytest.raises(LeakError) as error:
        check(shards, where, stop=True)
    for said in ("train: sub-05 (sub-05/anat/T1w.nii.gz)", "test: sub-40 (sub-40/anat", "data.leaks=warn"):
        assert said in str(error.value)
    assert error.value.exit_code == 2
    (leak,) = check(shards, where, stop=False)
    assert leak.splits == ("train", "test")
    # Both in one split, it is no leak.
    together = dataclasses.replace(where, train=(*where.train, 40), test=tuple(range(36, 40)))
    assert check(shards, together, stop=True) == []


def test_the_same_bytes_under_another_name_are_found(stored, tmp_path):
    volumes = stored[1][:10]
    copy = shards_of(tmp_path / "stored", [*volumes, volumes[3]])
    assert [(leak.kind, leak.rows) for leak in duplicates(copy)] == [("image", (3, 10))]
    file = shards_of(
        tmp_path / "file", stored[1][:10], row_2={"source_sha256": "ab"}, row_8={"source_sha256": "ab"}
    )
    assert [(leak.kind, leak.rows) for leak in duplicates(file)] == [("image", (2, 8))]
    unknown = shards_of(
        tmp_path / "unknown", stored[1][:10], row_2={"source_sha256": ""}, row_8={"source_sha256": ""}
    )
    assert duplicates(unknown) == []


def test_a_subject_in_two_splits_is_found_once_and_its_scans_are_no_look_alikes(stored, scans, tmp_path):
    volumes = [*stored[1][:10], noisy(stored, scans), cropped(stored, scans)]
    again = {"subject": "sub-05"}
    shards = shards_of(tmp_path, volumes, row_10=again, row_11=again)
    assert duplicates(shards) == []
    rest = tuple(row for row in range(10) if row != 5)
    assert check(shards, Split(train=(*rest, 5, 10, 11), validation=(), test=()), stop=True) == []
    (leak,) = check(shards, Split(train=(*rest, 5), validation=(10,), test=(11,)), stop=False)
    assert (leak.kind, leak.rows, leak.splits) == ("subject", (5, 10), ("train", "validation"))
    assert "one subject: train: sub-05" in str(leak)


def test_each_of_many_copies_is_named_once(stored, scans, tmp_path):
    rng = np.random.default_rng(2)
    copies = [(stored[1][5] + rng.normal(0, 0.1, stored[1][5].shape)).astype(np.float16) for _ in range(4)]
    found = duplicates(shards_of(tmp_path, [*stored[1][:40], *copies]))
    assert {row for leak in found for row in leak.rows} == {5, 40, 41, 42, 43}
    assert len(found) <= 4


def test_small_blocks_find_the_same(stored, scans, tmp_path, monkeypatch):
    shards = shards_of(tmp_path, [*stored[1][:40], noisy(stored, scans), resampled(stored, scans)])
    whole = duplicates(shards)
    monkeypatch.setattr(leaks, "_BLOCK", 7)
    assert [leak.rows for leak in duplicates(shards)] == [leak.rows for leak in whole]


def test_volumes_too_small_or_too_few_to_compare_are_compared_by_their_bytes(stored, tmp_path):
    assert duplicates(make_shard_set(tmp_path / "small")) == []
    two = shards_of(tmp_path / "two", [stored[1][0], stored[1][0]])
    assert [leak.kind for leak in duplicates(two)] == ["image"]


def test_an_empty_volume_is_like_no_other(stored, tmp_path):
    empty = [np.full((SIZE, SIZE, SIZE, 1), value, np.float16) for value in (0, 1)]
    assert duplicates(shards_of(tmp_path / "some", [*stored[1][:10], *empty])) == []
    others = [np.full((SIZE, SIZE, SIZE, 1), value, np.float16) for value in (2, 3)]
    assert duplicates(shards_of(tmp_path / "all", [*empty, *others])) == []


@pytest.mark.parametrize("shape", [(16, 16, 16, 1), (40, 50, 37, 2), (128, 100, 96, 1)])
def test_a_miniature_has_mean_0_and_norm_1_whatever_the_shape(shape):
    values = miniature(np.random.default_rng(0).normal(size=shape).astype(np.float16))
    assert values.shape == (EDGE**3,)
    assert values.dtype == np.float32
    assert abs(float(values.mean())) < 1e-6
    assert float(np.linalg.norm(values)) == pytest.approx(1, abs=1e-5)


def test_the_command_says_what_it_found(stored, scans, tmp_path, capsys):
    shards_of(tmp_path / "clean", stored[1][:10])
    assert app.run(["leaks", str(tmp_path / "clean")]) == 0
    assert "no image is there under two names" in capsys.readouterr().out
    shards_of(tmp_path / "twice", [*stored[1][:40], noisy(stored, scans)])
    assert app.run(["leaks", str(tmp_path / "twice"), "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["leaks"][0]["subjects"]) == (False, ["sub-05", "sub-40"])
    assert app.run(["leaks", str(tmp_path / "twice")]) == 2
    captured = capsys.readouterr()
    assert "nearly the same image, similarity" in captured.out
    assert "import again" in captured.err
    assert app.run(["leaks", str(tmp_path / "nowhere")]) == 2
