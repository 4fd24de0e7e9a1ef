"""An import makes a whole shard set or none, names what is wrong, and goes on where it stopped."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nibabel
import numpy as np
import pytest
from made_images import affine, bids, cut, gzip_of, head, image_of, nifti
from wording import fails_with

from trainer.data.images.preprocess import Recipe, prepare
from trainer.data.importing import import_state, quality_sheet
from trainer.data.importing.import_request import ImportProgress, ImportRequest, ImportResult
from trainer.data.importing.importing import run
from trainer.data.shards.shards import ShardSet
from trainer.data.sources.sources import find
from trainer.errors import CingulumError, CohortError, ShardError

RECIPE = Recipe.of_size(16)


def request(source: Path, target: Path, **others) -> ImportRequest:
    given = {"size": 16, "workers": 1, "volumes_per_shard": 2, **others}
    return ImportRequest(source=source, target=target, **given)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return bids(tmp_path_factory.mktemp("cohort") / "cohort", 7)


@pytest.fixture(scope="module")
def whole(cohort, tmp_path_factory):
    target = tmp_path_factory.mktemp("whole") / "set"
    return target, run(request(cohort, target))


def test_an_import_makes_a_shard_set_of_what_prepare_makes(cohort, whole):
    target, result = whole
    shards = ShardSet.open(target)
    assert (result.volumes, result.classes, result.left_out) == (7, {"AD": 4, "NC": 3}, ())
    assert (shards.shape, shards.dtype, shards.label_name) == (
        (16, 16, 16, 1),
        np.dtype("float16"),
        "diagnosis",
    )
    assert (shards.labels, shards.source, shards.voxel_size) == (("AD", "NC"), "test", (12.0, 12.0, 12.0))
    assert Recipe.from_json(dict(shards.preprocessing)) == RECIPE
    assert shards.normalisation["method"] == "zscore"
    for row, volume in enumerate(shards.volumes):
        expected = prepare(cohort / volume.source, RECIPE)
        assert shards.read(row).tobytes() == expected.array.tobytes()
        np.testing.assert_array_equal(volume.affine, expected.affine)
        assert (volume.subject, volume.age) == (f"{row:02d}", 60.0 + row)
    assert sorted(files(target)) == [
        "import.json", "index.json", "qc.csv", "qc.html", "qc.json",
        "shard-00000.h5", "shard-00001.h5", "shard-00002.h5", "shard-00003.h5",
    ]  # fmt: skip


def test_the_number_of_workers_makes_no_difference(cohort, whole, tmp_path):
    run(request(cohort, tmp_path / "set", workers=2))
    assert files(tmp_path / "set") == files(whole[0])


def test_the_tables_have_a_line_for_every_image(whole):
    target, _ = whole
    rows = list(csv.DictReader((target / "qc.csv").read_text().splitlines()))
    document = json.loads((target / "qc.json").read_text())
    assert len(rows) == len(document["images"]) == 7
    assert rows[0]["shape"] == "20 x 24 x 22"
    assert rows[0]["status"] == "warning"  # the test's voxels are 8 mm
    assert document["images"][0]["findings"][0]["code"] == "voxel-size"


def test_the_sheet_is_one_file_with_a_picture_of_every_image(whole):
    page = (whole[0] / "qc.html").read_text()
    assert page.count("data:image/png;base64,") == 7
    assert "http" not in page.replace("http-equiv", "")


def test_a_sheet_that_cannot_be_drawn_does_not_lose_the_import(cohort, whole, tmp_path, monkeypatch, capsys):
    def fail(*arguments: object) -> str:
        raise ZeroDivisionError("in a picture")

    monkeypatch.setattr(quality_sheet, "html", fail)
    target = tmp_path / "set"
    run(request(cohort, target))
    assert (
        f"{target / 'qc.html'} could not be made (ZeroDivisionError: in a picture" in capsys.readouterr().err
    )
    expected = files(whole[0])
    del expected["qc.html"]
    assert files(target) == expected


def test_tissue_volumes_come_from_derivatives(tmp_path):
    root = bids(tmp_path / "b", 2)
    maps = root / "derivatives" / "seg" / "sub-00" / "anat"
    for code, probability in (("GM", 0.5), ("WM", 0.25), ("CSF", 0.125)):
        data = np.full((10, 10, 10), probability, np.float32)
        nifti(maps / f"sub-00_label-{code}_probseg.nii.gz", data=data, matrix=affine((2, 2, 2)))
    run(request(root, tmp_path / "set"))
    first, second = ShardSet.open(tmp_path / "set").volumes
    assert first.tissue == {"grey": 4.0, "white": 2.0, "csf": 1.0}
    assert second.tissue is None


def test_a_damaged_tissue_map_is_a_warning(tmp_path):
    root = bids(tmp_path / "b", 2)
    nifti_path = root / "derivatives" / "seg" / "sub-00" / "anat" / "sub-00_label-GM_probseg.nii.gz"
    cut(nifti(nifti_path))
    run(request(root, tmp_path / "set"))
    assert ShardSet.open(tmp_path / "set").volumes[0].tissue is None
    assert "tissue-map" in (tmp_path / "set" / "qc.csv").read_text()


def test_a_tissue_map_whose_voxels_have_other_sizes_than_the_image_is_a_warning(tmp_path):
    root = bids(tmp_path / "b", 4)
    maps = root / "derivatives" / "t" / "sub-00" / "anat"
    nifti(maps / "sub-00_label-GM_probseg.nii.gz", data=np.ones(head().shape), matrix=affine((4.0, 8.0, 8.0)))
    run(request(root, tmp_path / "set"))
    assert ShardSet.open(tmp_path / "set").volumes[0].tissue is None
    sheet = (tmp_path / "set" / "qc.csv").read_text()
    assert "has voxels of 4 x 8 x 8 mm" in sheet and "of the same shape, has 8 x 8 x 8 mm" in sheet


def test_progress_tells_every_image_once(cohort, tmp_path):
    news: list[ImportProgress] = []
    run(request(cohort, tmp_path / "set"), news.append)
    assert [item.done for item in news] == list(range(1, 8))
    assert {item.total for item in news} == {7}


def test_a_dry_run_writes_nothing(cohort, tmp_path):
    result = run(request(cohort, tmp_path / "set", dry_run=True))
    assert result.volumes == 7
    assert not (tmp_path / "set").exists()


def test_a_second_import_is_already_done(cohort, whole, monkeypatch):
    target, _ = whole
    before = files(target)
    result: ImportResult = run(request(cohort, target))
    assert result.already_done
    assert files(target) == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"size": 24}, "size 16 (now 24)"),
        ({"codec": "gzip"}, "codec 'blosc-lz4' (now 'gzip')"),
        ({"volumes_per_shard": 3}, "volumes_per_shard 2 (now 3)"),
    ],
)
def test_other_parameters_on_a_whole_set_are_an_error(cohort, whole, change, named):
    before = files(whole[0])
    with pytest.raises(ShardError) as caught:
        run(request(cohort, whole[0], **change))
    assert named in caught.value.message
    assert "--overwrite" in caught.value.cure
    assert files(whole[0]) == before


def test_overwrite_replaces_a_set(cohort, whole, tmp_path):
    target = tmp_path / "set"
    shutil.copytree(whole[0], target)
    run(request(cohort, target, size=8, spacing=16.0, volumes_per_shard=4, overwrite=True))
    assert ShardSet.open(target).shape == (8, 8, 8, 1)
    assert len(list(target.glob("shard-*.h5"))) == 2


def test_overwrite_never_touches_a_folder_of_something_else(cohort, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with fails_with(ShardError):
            run(request(cohort, tmp_path, overwrite=overwrite))
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_changed_labels_on_a_whole_set_are_an_error(tmp_path):
    root = bids(tmp_path / "b", 4)
    run(request(root, tmp_path / "set"))
    table = root / "participants.tsv"
    table.write_text(table.read_text().replace("NC", "MCI"))
    with fails_with(ShardError):
        run(request(root, tmp_path / "set"))


def test_two_imports_into_one_folder_exclude_each_other(cohort, tmp_path):
    wanted = request(cohort, tmp_path / "set")
    with (
        import_state.working(tmp_path / "set", wanted.decisive(find(cohort, "diagnosis"))),
        fails_with(ShardError),
    ):
        run(wanted)


# What goes on where it stopped.


class Halt(Exception):
    """Stands for a stop at a chosen place."""


@pytest.mark.parametrize("writes", [0, 1, 2, 3, 5, 7, 9, 11, 12, 13])
def test_stopped_at_any_write_it_goes_on_to_the_same_bytes(cohort, whole, tmp_path, monkeypatch, writes):
    """Each file is written under a temporary name and renamed: stop before one of the renames."""
    target, count = tmp_path / "set", 0
    replace = Path.replace

    def stop(self, other):
        nonlocal count
        if count == writes:
            raise Halt
        count += 1
        return replace(self, other)

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(Halt):
        run(request(cohort, target))
    monkeypatch.undo()
    with pytest.raises(ShardError):
        ShardSet.open(target)
    result = run(request(cohort, target))
    assert result.kept == min(7, 2 * max(0, (writes - 1) // 2))
    assert files(target) == files(whole[0])


def test_tissue_volumes_come_out_of_a_stop_as_the_same_bytes(tmp_path, monkeypatch):
    root = bids(tmp_path / "b", 4)
    for code in ("GM", "WM", "CSF"):
        maps = root / "derivatives" / "seg" / "sub-00" / "anat"
        nifti(maps / f"sub-00_label-{code}_probseg.nii.gz", data=head() / 1000)
    _halt_after(monkeypatch, 3)
    with pytest.raises(Halt):
        run(request(root, tmp_path / "set"))
    monkeypatch.undo()
    assert run(request(root, tmp_path / "set")).kept == 2
    run(request(root, tmp_path / "whole"))
    assert files(tmp_path / "set") == files(tmp_path / "whole")


def test_a_source_that_changed_meanwhile_is_read_again(tmp_path, monkeypatch):
    root, target = bids(tmp_path / "b", 6), tmp_path / "set"
    _halt_after(monkeypatch, 5)
    with pytest.raises(Halt):
        run(request(root, target))
    monkeypatch.undo()
    nifti(image_of(root, 3), seed=77)
    result = run(request(root, target))
    assert result.kept == 2
    run(request(root, tmp_path / "fresh"))
    assert files(target) == files(tmp_path / "fresh")


def test_a_shard_damaged_meanwhile_is_written_again(cohort, whole, tmp_path, monkeypatch):
    target = tmp_path / "set"
    _halt_after(monkeypatch, 7)
    with pytest.raises(Halt):
        run(request(cohort, target))
    monkeypatch.undo()
    raw = bytearray((target / "shard-00001.h5").read_bytes())
    raw[-100] ^= 255
    (target / "shard-00001.h5").write_bytes(raw)
    assert run(request(cohort, target)).kept == 2
    assert files(target) == files(whole[0])


def test_an_unfinished_import_with_other_parameters_is_an_error(cohort, tmp_path, monkeypatch):
    _halt_after(monkeypatch, 5)
    with pytest.raises(Halt):
        run(request(cohort, tmp_path / "set"))
    monkeypatch.undo()
    with fails_with(ShardError):
        run(request(cohort, tmp_path / "set", size=8, spacing=16.0))


def _halt_after(monkeypatch, writes: int) -> None:
    replace, count = Path.replace, 0

    def stop(self, other):
        nonlocal count
        if count == writes:
            raise Halt
        count += 1
        return replace(self, other)

    monkeypatch.setattr(Path, "replace", stop)


_IMPORT = """
import sys
from pathlib import Path
import trainer.data.shards.shard_writer as shard_writer, time
write = shard_writer.write_atomically
def slow(path, content):
    write(path, content)
    time.sleep(0.05)
shard_writer.write_atomically = slow
from trainer.data.importing.import_request import ImportRequest
from trainer.data.importing.importing import run
if __name__ == "__main__":
    source, target, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    run(ImportRequest(source=source, target=target, size=16, workers=workers, volumes_per_shard=2))
"""


@pytest.mark.parametrize("worker_count", [1, 2])
def test_killed_outright_it_goes_on_to_the_same_bytes(cohort, whole, tmp_path, worker_count):
    script = tmp_path / "importer.py"
    script.write_text(_IMPORT)
    target = tmp_path / "set"
    process = subprocess.Popen([sys.executable, str(script), str(cohort), str(target), str(worker_count)])
    deadline = time.monotonic() + 60
    while not (target / "shard-00001.h5").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    children = _children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.raises(ShardError):
        ShardSet.open(target)
    assert run(request(cohort, target)).kept >= 2
    assert files(target) == files(whole[0])
    while any(_alive(child) for child in children):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.02)


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


# Bad images, one of each kind among good ones.


def _replace(content: bytes):
    return lambda root: image_of(root, 1).write_bytes(content)


def _data(data, matrix=None):
    return lambda root: nifti(image_of(root, 1), data=data, matrix=matrix)


def _labels(old: str, new: str):
    def change(root: Path) -> None:
        table = root / "participants.tsv"
        table.write_text(table.read_text().replace(old, new))

    return change


def _sform_entry(value: float):
    """Write the first entry of the sform into the header itself: nibabel would refuse to save it."""

    def change(root: Path) -> None:
        plain = nifti(root / "plain.nii", seed=1)
        raw = bytearray(plain.read_bytes())
        plain.unlink()
        raw[252:254] = bytes(2)  # qform_code 0: the sform counts
        raw[280:284] = np.float32(value).tobytes()
        gzip_of(bytes(raw), image_of(root, 1))

    return change


def _with_nan() -> np.ndarray:
    data = head()
    data[3, 3, 3] = np.nan
    return data


def _analyze_without_header(root: Path) -> None:
    image_of(root, 1).unlink()
    path = image_of(root, 1).with_name("sub-01_T1w.img")
    nibabel.save(nibabel.AnalyzeImage(head(), affine()), path)
    path.with_suffix(".hdr").unlink()


def _link(root: Path) -> None:
    image_of(root, 1).unlink()
    image_of(root, 1).symlink_to(root / "annex")


def _rename_plain(root: Path) -> None:
    nifti(root / "plain.nii", seed=1).rename(image_of(root, 1))


BAD = {
    "empty file": (_replace(b""), "empty-file", "is empty (0 bytes)"),
    "truncated gzip": (lambda root: cut(image_of(root, 1), 0.6), "truncated", "ends early"),
    "gzip without its last bytes": (lambda root: cut(image_of(root, 1), 0.9995), "truncated", "ends early"),
    "wrong magic": (_replace(b"GIF89a" * 100), "wrong-magic", "not a gzip file"),
    "not compressed": (_rename_plain, "wrong-magic", "rename it to sub-01_T1w.nii"),
    "link to nowhere": (_link, "broken-link", "datalad"),
    "half of a pair": (_analyze_without_header, "missing-file", "no such file"),
    "2D": (_data(head()[:, :, 0]), "two-dimensional", "is a single slice (20 x 24)"),
    "4D": (_data(np.stack([head(), head()], -1)), "four-dimensional", "--volume N"),
    "5D": (_data(np.ones((9, 9, 9, 1, 3), np.float32)), "five-dimensional", "has 5 dimensions"),
    "NaN": (_data(_with_nan()), "not-finite", "1 of 10560 voxels are NaN"),
    "all NaN": (_data(np.full((9, 9, 9), np.nan, np.float32)), "not-finite", "no finite value"),
    "all zero": (_data(np.zeros((9, 9, 9), np.float32)), "all-zero", "is zero everywhere"),
    "constant": (_data(np.full((9, 9, 9), 7, np.float32)), "constant", "same value everywhere (7)"),
    "label map": (_data((head() > 0).astype(np.int16)), "mask", "not a mask"),
    "affine with NaN": (_sform_entry(np.nan), "affine", "NaN or infinite"),
    "singular affine": (_sform_entry(0.0), "affine", "singular"),
    "micrometres": (_data(head(), affine((1000, 1000, 1000))), "extent", "more than a scanner holds"),
    "complex values": (_data(head().astype(np.complex64)), "voxel-type", "type complex64"),
    "duplicate content": (_data(head(seed=0)), "duplicate-content", "exactly the voxels of sub-00"),
    "second image of a session": (
        lambda root: nifti(image_of(root, 1).with_name("sub-01_acq-x_T1w.nii.gz"), seed=9),
        "duplicate-subject",
        "second image of subject 01",
    ),
    "missing label": (_labels("61\tF\tNC", "61\tF\tn/a"), "missing-label", "has no label"),
    "unknown label": (_labels("61\tF\tNC", "61\tF\tHC"), "unknown-label", "not one of AD, NC"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_image_fails_the_import_by_name_or_is_left_out(tmp_path, case):
    spoil, code, message = BAD[case]
    root, target = bids(tmp_path / "b", 5), tmp_path / "set"
    spoil(root)
    total = 6 if case == "second image of a session" else 5
    wanted = request(root, target, classes="AD,NC")

    with pytest.raises(CohortError) as caught:
        run(wanted)
    assert f"1 of {total} images cannot be used" in caught.value.message
    assert "sub-01/anat/" in caught.value.message
    assert message in caught.value.message
    assert "--on-error skip" in caught.value.cure
    with pytest.raises(ShardError):
        ShardSet.open(target)
    rows = list(csv.DictReader((target / "qc.csv").read_text().splitlines()))
    assert [row["status"] for row in rows].count("bad") == 1
    assert code in next(row["findings"] for row in rows if row["status"] == "bad")

    result = run(wanted.model_copy(update={"on_error": "skip"}))
    assert [_codes(image) for image in result.left_out] == [[code]]
    assert len(ShardSet.open(target)) == result.volumes == total - 1


def _codes(image) -> list[str]:
    return [finding.code for finding in image.findings if finding.severity == "bad"]


def test_every_bad_image_is_named_at_once(tmp_path):
    root = bids(tmp_path / "b", 6)
    for number in (0, 3, 5):
        image_of(root, number).write_bytes(b"")
    with pytest.raises(CohortError) as caught:
        run(request(root, tmp_path / "set"))
    assert all(f"sub-0{number}_T1w" in caught.value.message for number in (0, 3, 5))
    assert "sub-01_T1w" not in caught.value.message
    assert not list((tmp_path / "set").glob("shard-*"))


def test_after_mending_the_bad_image_the_same_command_goes_on(tmp_path):
    root, target = bids(tmp_path / "b", 6), tmp_path / "set"
    whole = image_of(root, 4).read_bytes()
    image_of(root, 4).write_bytes(b"")
    with pytest.raises(CohortError):
        run(request(root, target))
    image_of(root, 4).write_bytes(whole)
    assert run(request(root, target)).kept == 4
    run(request(root, tmp_path / "fresh"))
    assert files(target) == files(tmp_path / "fresh")


def test_no_usable_image_or_class_left_is_an_error_even_when_skipping(tmp_path):
    root = bids(tmp_path / "b", 4)
    for number in (1, 3):
        image_of(root, number).write_bytes(b"")
    with fails_with(CohortError):
        run(request(root, tmp_path / "set", on_error="skip"))
    for number in (0, 2):
        image_of(root, number).write_bytes(b"")
    with fails_with(CohortError):
        run(request(root, tmp_path / "set", on_error="skip"))
    with pytest.raises(ShardError):
        ShardSet.open(tmp_path / "set")


def test_a_full_disk_is_named_and_nothing_is_lost(cohort, whole, tmp_path, monkeypatch):
    target, fsync, count = tmp_path / "set", os.fsync, 0

    def full(descriptor):
        nonlocal count
        count += 1
        if count > 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        return fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with fails_with(CingulumError):
        run(request(cohort, target))
    monkeypatch.undo()
    with pytest.raises(ShardError):
        ShardSet.open(target)
    assert run(request(cohort, target)).kept >= 2
    assert files(target) == files(whole[0])


def test_a_target_that_cannot_be_written_is_named(cohort, tmp_path):
    (tmp_path / "file").write_text("x")
    with fails_with(ShardError):
        run(request(cohort, tmp_path / "file"))
    with fails_with(ShardError):
        run(request(cohort, tmp_path / "file" / "set"))
