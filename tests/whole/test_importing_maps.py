"""`cingulum import --maps`: which map belongs to which image, what its classes are called, what is wrong."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_images import (
    add_dseg,
    add_shares,
    add_t2,
    affine,
    bids,
    cut,
    dseg_of,
    head,
    image_of,
    labels,
    nifti,
)
from PIL import Image
from test_importing import Halt, _halt_after, files, request
from wording import fails_with

from cingulum.cli import app
from trainer.data.images import label_maps
from trainer.data.images.preprocess import prepare
from trainer.data.images.recipe import MapRecipe, Recipe
from trainer.data.importing.examination import Examined
from trainer.data.importing.import_state import mark
from trainer.data.importing.importing import run
from trainer.data.shards.shards import ShardSet
from trainer.data.shards.verify import verify
from trainer.data.sources.bids_names import best_match
from trainer.errors import CohortError, ConfigError, ShardError

RECIPE = Recipe.of_size(16)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """Five subjects, each with three probability maps and a map of label numbers."""
    root = bids(tmp_path_factory.mktemp("mapped") / "cohort", 5)
    for number in range(5):
        add_shares(root, number)
    add_dseg(root, 5)
    return root


@pytest.fixture(scope="module")
def whole(cohort, tmp_path_factory):
    target = tmp_path_factory.mktemp("whole") / "set"
    run(request(cohort, target, maps="dseg"))
    return target


def test_probability_maps_become_label_maps_of_the_set(cohort, tmp_path):
    run(request(cohort, tmp_path / "set", maps="probseg"))
    shards = ShardSet.open(tmp_path / "set")
    assert shards.maps == ("background", "grey", "white", "csf")
    for volume in shards.volumes:
        prepared = prepare(cohort / volume.source, RECIPE)
        assert shards.read(volume.id).tobytes() == prepared.array.tobytes()
        assert list(volume.further_sources) == sorted(volume.further_sources)
        paths = [_of_label(cohort, volume.further_sources, code) for code in ("GM", "WM", "CSF")]
        expected, _ = label_maps.prepare(paths, prepared.cut, MapRecipe("probseg", shards.maps))
        np.testing.assert_array_equal(shards.read_map(volume.id), expected)
        for source, sha256 in volume.further_sources.items():
            assert hashlib.sha256((cohort / source).read_bytes()).hexdigest() == sha256
    assert verify(tmp_path / "set") == []
    assert Recipe.from_json(dict(shards.preprocessing)).maps == MapRecipe("probseg", shards.maps)


def _of_label(root, sources, code):
    (found,) = [root / source for source in sources if f"_label-{code}_" in source]
    return found


def test_maps_of_label_numbers_take_their_names_from_the_table_of_the_derivatives(cohort, whole):
    shards = ShardSet.open(whole)
    assert shards.maps == ("background", "left", "block", "right")
    assert shards.preprocessing["maps"]["labels"] == [[2, 1], [3, 2], [41, 3]]
    for volume in shards.volumes:
        np.testing.assert_array_equal(shards.read_map(volume.id), _alone(cohort, volume.id))
    assert len({shards.read_map(row).tobytes() for row in range(5)}) > 1


def test_a_set_imported_without_maps_is_the_same_whether_the_source_has_some_or_not(cohort, tmp_path):
    run(request(cohort, tmp_path / "with"))
    bare = tmp_path / "bare" / "cohort"
    shutil.copytree(cohort, bare, ignore=shutil.ignore_patterns("seg"))
    run(request(bare, tmp_path / "without"))
    assert files(tmp_path / "with") == files(tmp_path / "without")
    assert "maps" not in ShardSet.open(tmp_path / "with").preprocessing


@pytest.mark.parametrize("writes", [1, 2, 3, 5, 9])
def test_stopped_at_any_write_it_goes_on_to_the_same_bytes(cohort, whole, tmp_path, monkeypatch, writes):
    _halt_after(monkeypatch, writes)
    with pytest.raises(Halt):
        run(request(cohort, tmp_path / "set", maps="dseg"))
    monkeypatch.undo()
    result = run(request(cohort, tmp_path / "set", maps="dseg", workers=2))
    assert result.kept == min(5, 2 * max(0, (writes - 1) // 2))
    assert files(tmp_path / "set") == files(whole)


def test_a_map_that_changed_meanwhile_is_read_again(tmp_path, monkeypatch):
    root, target = bids(tmp_path / "b", 6), tmp_path / "set"
    add_dseg(root, 6)
    _halt_after(monkeypatch, 7)
    with pytest.raises(Halt):
        run(request(root, target, maps="dseg"))
    monkeypatch.undo()
    nifti(dseg_of(root, 3), data=labels(2))
    assert run(request(root, target, maps="dseg")).kept == 2
    run(request(root, tmp_path / "fresh", maps="dseg"))
    assert files(target) == files(tmp_path / "fresh")


def test_the_mark_of_a_shard_follows_the_bytes_of_maps():
    image = Examined(["a"], [[1, 2]], "x", (), further={"map": "0"})
    marks = {mark([image]), mark([replace(image, further={"map": "1"})]), mark([replace(image, further={})])}
    assert len(marks) == 3


def test_other_maps_on_a_whole_set_are_an_error(cohort, whole):
    with fails_with(ShardError):
        run(request(cohort, whole, maps="dseg", map_labels="2=left,3=block,41=Right"))
    with fails_with(ShardError):
        run(request(cohort, whole))
    assert run(request(cohort, whole, maps="dseg")).already_done


def test_with_maps_nothing_needs_a_label(tmp_path):
    root = bids(tmp_path / "b", 3)
    add_dseg(root, 3)
    (root / "participants.tsv").unlink()
    result = run(request(root, tmp_path / "set", maps="dseg"))
    assert result.classes == {"(none)": 3}
    assert "no-participant" not in (tmp_path / "set" / "qc.csv").read_text()
    shards = ShardSet.open(tmp_path / "set")
    assert (shards.labels, len(shards)) == ((), 3)
    with fails_with(CohortError):
        run(request(root, tmp_path / "other"))


def test_with_maps_one_class_will_do_but_classes_asked_for_still_count(tmp_path):
    root = bids(tmp_path / "b", 3, labels=("NC",))
    add_dseg(root, 3)
    assert run(request(root, tmp_path / "set", maps="dseg")).classes == {"NC": 3}
    with fails_with(CohortError):
        run(request(root, tmp_path / "other", maps="dseg", classes="AD,NC"))


@pytest.mark.parametrize(
    ("said", "classes"),
    [
        ("2,3,41", ("background", "2", "3", "41")),
        ("41=right, 2=left, 3=left", ("background", "left", "right")),
        ("0=rest,2=brain,41=brain,3=rest", ("rest", "brain")),
    ],
)
def test_labels_may_be_named_by_number_or_in_words(cohort, tmp_path, said, classes):
    run(request(cohort, tmp_path / "set", maps="dseg", map_labels=said))
    assert ShardSet.open(tmp_path / "set").maps == classes


def test_probability_maps_may_be_chosen_and_named(cohort, tmp_path):
    run(request(cohort, tmp_path / "set", maps="probseg", map_labels="WM,GM=cortex"))
    shards = ShardSet.open(tmp_path / "set")
    assert shards.maps == ("background", "white", "cortex")
    assert [source[-17:-15] for source in shards.volumes[0].further_sources] == ["GM", "WM"]
    _, grey = np.unique(shards.read_map(0), return_counts=True)
    assert grey.size == 3


def test_without_names_the_error_says_which_labels_the_first_map_has(tmp_path):
    root = bids(tmp_path / "b", 2)
    add_dseg(root, 2)
    (root / "derivatives" / "seg" / "dseg.tsv").unlink()
    with fails_with(CohortError) as caught:
        run(request(root, tmp_path / "set", maps="dseg"))
    assert "--map-labels 2,3,41 " in caught.value.cure
    assert "dseg.tsv" in caught.value.cure


def test_the_plain_map_goes_before_one_with_more_entities_unless_asked_for(tmp_path):
    root = bids(tmp_path / "b", 2)
    add_dseg(root, 2)
    for number in range(2):
        nifti(dseg_of(root, number, extra="_desc-aseg"), data=(head() > 0).astype(np.int16) * 9)
        nifti(dseg_of(root, number, extra="_space-MNI152"), data=labels()[1:])
    (root / "derivatives" / "seg" / "desc-aseg_dseg.tsv").write_text("index\tname\n9\tall\n")
    run(request(root, tmp_path / "plain", maps="dseg"))
    assert ShardSet.open(tmp_path / "plain").maps == ("background", "left", "block", "right")
    run(request(root, tmp_path / "aseg", maps="dseg:seg:desc-aseg"))
    assert ShardSet.open(tmp_path / "aseg").maps == ("background", "all")


@pytest.mark.parametrize(
    ("image", "there", "taken"),
    [
        ("sub-1_T1w", ["sub-1_dseg", "sub-1_desc-x_dseg"], ["sub-1_dseg"]),
        ("sub-1_T1w", ["sub-1_space-MNI_dseg"], []),
        ("sub-1_T1w", ["sub-1_space-T1w_dseg", "sub-1_space-MNI_dseg"], ["sub-1_space-T1w_dseg"]),
        (
            "sub-1_space-MNI_desc-preproc_T1w",
            ["sub-1_dseg", "sub-1_space-MNI_dseg"],
            ["sub-1_space-MNI_dseg"],
        ),
        ("sub-1_run-1_T1w", ["sub-1_run-2_dseg"], []),
        ("sub-1_run-1_T1w", ["sub-1_run-2_dseg", "sub-1_run-1_dseg", "sub-1_dseg"], ["sub-1_run-1_dseg"]),
        ("sub-1_acq-a_T1w", ["sub-1_acq-a_desc-x_dseg", "sub-1_acq-b_dseg"], ["sub-1_acq-a_desc-x_dseg"]),
        ("sub-1_desc-preproc_T1w", ["sub-1_desc-x_dseg"], ["sub-1_desc-x_dseg"]),
        ("sub-1_T1w", ["sub-1_desc-a_dseg", "sub-1_desc-b_dseg"], ["sub-1_desc-a_dseg", "sub-1_desc-b_dseg"]),
    ],
)
def test_the_file_that_fits_an_image_best_is_taken(image, there, taken):
    files = [Path(f"{name}.nii.gz") for name in there]
    assert [path.name[:-7] for path in best_match(Path(f"{image}.nii.gz"), files)] == taken


def test_maps_in_several_folders_are_an_error_that_names_them(tmp_path):
    root = bids(tmp_path / "b", 2)
    add_dseg(root, 2)
    for number in range(2):
        nifti(dseg_of(root, number, "other"), data=labels(number))
    with fails_with(CohortError) as caught:
        run(request(root, tmp_path / "set", maps="dseg"))
    assert caught.value.cure == "Choose one: --maps dseg:seg"
    run(request(root, tmp_path / "set", maps="dseg:seg"))


def test_maps_may_lie_beside_their_images(tmp_path):
    root = bids(tmp_path / "b", 2)
    for number in range(2):
        nifti(image_of(root, number).with_name(f"sub-0{number}_dseg.nii.gz"), data=labels(number))
    run(request(root, tmp_path / "set", maps="dseg", map_labels="2,3,41"))
    assert list(ShardSet.open(tmp_path / "set").volumes[1].further_sources) == [
        "sub-01/anat/sub-01_dseg.nii.gz"
    ]


def test_a_map_of_another_run_or_space_is_not_taken(tmp_path):
    root = bids(tmp_path / "b", 2)
    add_dseg(root, 2)
    for number in range(2):
        image_of(root, number).rename(image_of(root, number).with_name(f"sub-0{number}_run-1_T1w.nii.gz"))
        nifti(dseg_of(root, number, extra="_run-2"), data=labels()[1:])
    run(request(root, tmp_path / "set", maps="dseg"))
    sources = ShardSet.open(tmp_path / "set").volumes[1].further_sources
    assert list(sources) == ["derivatives/seg/sub-01/anat/sub-01_dseg.nii.gz"]


def _table(root, rows, columns="image,diagnosis,map"):
    (root / "images.csv").write_text("\n".join([columns, *rows]) + "\n")
    return root / "images.csv"


def test_a_table_names_maps_in_a_column(tmp_path):
    for number in range(2):
        nifti(tmp_path / f"{number}.nii", seed=number)
        nifti(tmp_path / "maps" / f"{number}.nii", data=labels(number))
    table = _table(tmp_path, ["0.nii,,maps/0.nii", "1.nii,NC,maps/1.nii"])
    run(request(table, tmp_path / "set", maps="dseg", map_labels="2,3,41"))
    shards = ShardSet.open(tmp_path / "set")
    assert [list(volume.further_sources) for volume in shards.volumes] == [["maps/0.nii"], ["maps/1.nii"]]
    assert [volume.label for volume in shards.volumes] == [None, "NC"]
    assert shards.read_map(0).max() == 3


UNUSABLE = {
    "no such kind": ("masks", None, ConfigError, "is not one of probseg, dseg"),
    "an empty part": ("dseg:", None, ConfigError, "is not one of"),
    "two folders": ("dseg:seg:tissue", None, ConfigError, "only entities of the file names"),
    "no such folder": ("dseg:fast", None, CohortError, "no such folder of derivatives"),
    "no maps of that kind there": ("dseg:tissue", None, CohortError, "holds no maps"),
    "a label that is no number": ("dseg", "GM=grey", CohortError, "'GM' of the maps is not a whole number"),
    "a label twice": ("dseg", "1,1", ConfigError, "names the label 1 twice"),
    "an empty entry": ("dseg", "1,,2", ConfigError, "has an empty entry"),
    "only background": ("dseg", "0", ConfigError, "no class but the background"),
    "two maps of one name": ("probseg", "GM=a,WM=a", CohortError, "gives two maps the same name"),
    "no such table": ("dseg", "nowhere.tsv", CohortError, "there is no such file"),
    "256 labels": ("dseg", ",".join(map(str, range(1, 257))), ShardError, "257 classes"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_maps_that_cannot_be_had_are_an_error_with_a_cure(cohort, tmp_path, case):
    maps, said, kind, message = UNUSABLE[case]
    with pytest.raises(kind, match=message) as caught:
        run(request(cohort, tmp_path / "set", maps=maps, map_labels=said))
    assert caught.value.cure
    assert not (tmp_path / "set" / "index.json").exists()


def test_a_folder_of_images_and_a_table_of_probabilities_are_refused(tmp_path):
    for number, label in enumerate(("AD", "NC")):
        nifti(tmp_path / "images" / label / f"{number}.nii", seed=number)
    with fails_with(CohortError) as caught:
        run(request(tmp_path / "images", tmp_path / "set", maps="dseg"))
    assert "table" in caught.value.cure
    table = _table(tmp_path, ["images/AD/0.nii,AD,a.nii"])
    with fails_with(CohortError) as caught:
        run(request(table, tmp_path / "set", maps="probseg"))
    with fails_with(CohortError):
        run(request(_table(tmp_path, ["a,b"], "image,diagnosis"), tmp_path / "set", maps="dseg"))


def _spoil(change):
    return lambda root: change(dseg_of(root, 1))


BAD = {
    "missing": (_spoil(lambda path: path.unlink()), "missing-map", "has no label map *_dseg.nii.gz"),
    "another image's grid": (
        _spoil(lambda path: nifti(path, data=labels()[1:])), "map-grid", "19 x 24 x 22 voxels",
    ),
    "moved": (
        _spoil(lambda path: nifti(path, data=labels(), matrix=affine((8, 8, 9)))), "map-grid", "mm away from",
    ),
    "unknown label": (
        _spoil(lambda path: nifti(path, data=labels() + (labels() > 3))), "unknown-map-label", "a name: 42.",
    ),
    "truncated": (_spoil(cut), "truncated", "its map sub-01_dseg.nii.gz: "),
    "empty": (_spoil(lambda path: path.write_bytes(b"")), "empty-file", "is empty (0 bytes)"),
    "two that fit": (
        lambda root: [nifti(dseg_of(root, 1, extra=f"_desc-{x}"), data=labels(1)) for x in "ab"]
        + [dseg_of(root, 1).unlink()],
        "ambiguous-map",
        "sub-01_desc-a_dseg.nii.gz, sub-01_desc-b_dseg.nii.gz",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_map_fails_the_import_by_name_or_leaves_out_its_image(tmp_path, case):
    spoil, code, message = BAD[case]
    root, target = bids(tmp_path / "b", 4), tmp_path / "set"
    add_dseg(root, 4)
    spoil(root)
    with fails_with(CohortError) as caught:
        run(request(root, target, maps="dseg"))
    assert "sub-01/anat/sub-01_T1w.nii.gz: " in caught.value.message
    assert message in caught.value.message
    rows = list(csv.DictReader((target / "qc.csv").read_text().splitlines()))
    assert [code in row["findings"] for row in rows] == [False, True, False, False]
    assert not (target / "index.json").exists()
    run(request(root, target, maps="dseg", on_error="skip"))
    shards = ShardSet.open(target)
    assert [volume.subject for volume in shards.volumes] == ["00", "02", "03"]
    np.testing.assert_array_equal(shards.read_map(1), _alone(root, 2))


def _alone(root, number):
    recipe = MapRecipe("dseg", ("background", "left", "block", "right"), ((2, 1), (3, 2), (41, 3)))
    return label_maps.prepare([dseg_of(root, number)], prepare(image_of(root, number), RECIPE).cut, recipe)[0]


def test_a_copied_image_takes_its_map_with_it(tmp_path):
    root, target = bids(tmp_path / "b", 4), tmp_path / "set"
    add_dseg(root, 4)
    shutil.copy(image_of(root, 0), image_of(root, 1))
    run(request(root, target, maps="dseg", on_error="skip"))
    shards = ShardSet.open(target)
    assert len(shards) == 3
    np.testing.assert_array_equal(shards.read_map(1), _alone(root, 2))


def test_the_command_imports_maps_and_inspect_and_verify_know_them(cohort, tmp_path, capsys):
    target = str(tmp_path / "set")
    assert app.run(["import", str(cohort), target, "--size=16", "--workers=1", "--maps=probseg"]) == 0
    assert app.run(["verify", target]) == 0
    capsys.readouterr()
    assert app.run(["inspect", target, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["maps"] == ["background", "grey", "white", "csf"]
    assert app.run(["import", str(cohort), target, "--map-labels=1,2"]) == 2
    assert "Add --maps dseg" in capsys.readouterr().err


def test_the_sheet_shows_borders_of_maps_and_a_row_for_each_contrast(cohort, tmp_path):
    for number in range(5):
        add_t2(cohort, number)
    run(request(cohort, tmp_path / "plain"))
    run(request(cohort, tmp_path / "set", maps="dseg", contrasts="T1w,T2w"))
    assert verify(tmp_path / "set") == []
    plain, both = (_first_picture(tmp_path / name) for name in ("plain", "set"))
    assert (plain.mode, plain.size) == ("L", (336, 112))
    assert (both.mode, both.size) == ("RGB", (336, 224))
    sheet, grey = np.asarray(both).astype(int), np.asarray(plain)
    coloured = np.ptp(sheet, axis=2) > 0
    assert 200 < coloured[:112].sum() < 5000
    assert not coloured[112:].any()
    np.testing.assert_array_equal(sheet[:112][~coloured[:112], 0], grey[~coloured[:112]])
    assert "borders of the label map" in (tmp_path / "set" / "qc.html").read_text()
    assert "borders of the label map" not in (tmp_path / "plain" / "qc.html").read_text()


def _first_picture(target):
    page = (target / "qc.html").read_text()
    encoded = page.partition("data:image/png;base64,")[2].partition('"')[0]
    return Image.open(io.BytesIO(base64.b64decode(encoded)))
