"""`cingulum predict`: what comes out for the three tasks, for ensembles and views, and for bad images."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import keras
import nibabel
import numpy as np
import pytest
from made_images import MIRRORED, affine, head, nifti, written
from saved_runs import SIZE, SPACING, classifier, everywhere, regressor, save_run, threshold_segmenter
from wording import fails_with

from cingulum.cli import app
from trainer import models
from trainer.data.images.preprocess import Recipe, prepare
from trainer.inference import space
from trainer.inference.ensemble import averaged, views
from trainer.inference.space import VoxelGrid, labels_on

RECIPE = Recipe(size=SIZE, spacing=SPACING)


@pytest.fixture
def scans(tmp_path) -> list[Path]:
    return [nifti(tmp_path / "scans" / f"sub-{n:02d}_T1w.nii.gz", seed=n) for n in range(5)]


def predicted(capsys, *arguments: object) -> list[dict]:
    capsys.readouterr()
    assert app.run(["predict", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments: object) -> str:
    capsys.readouterr()
    assert app.run(["predict", *map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.count("error: ") == 1 and "Traceback" not in said
    return said


def read(table: Path) -> list[dict[str, str]]:
    with table.open() as file:
        return list(csv.DictReader(file))


def softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def asked(model: keras.Model, volumes: np.ndarray) -> np.ndarray:
    return np.asarray(model(np.asarray(volumes, np.float32), training=False), np.float64)


def prepared(scans: list[Path], recipe: Recipe = RECIPE) -> np.ndarray:
    return np.stack([prepare(path, recipe).array for path in scans]).astype(np.float32)


def test_a_class_for_each_image_whatever_the_size_of_a_batch(tmp_path, scans, capsys):
    model = classifier()
    run = save_run(tmp_path / "run", model)
    expected = softmax(asked(model, prepared(scans)))
    for batch in (1, 2, 7):
        rows = predicted(capsys, run, *scans, "--batch", batch)
        assert [row["image"] for row in rows] == [str(path) for path in scans]
        assert list(rows[0]) == ["image", "predicted", "p_NC", "p_AD", "error"]
        found = [[row["p_NC"], row["p_AD"]] for row in rows]
        np.testing.assert_allclose(found, expected, atol=2e-6)
        assert [row["predicted"] for row in rows] == [("NC", "AD")[k] for k in expected.argmax(1)]


def test_a_number_in_units_of_the_target(tmp_path, scans, capsys):
    model = regressor()
    run = save_run(tmp_path / "run", model, task="regression", classes=())
    rows = predicted(capsys, run, *scans)
    assert list(rows[0]) == ["image", "predicted", "error"]
    np.testing.assert_allclose(
        [row["predicted"] for row in rows], asked(model, prepared(scans))[:, 0], atol=1e-3
    )


def test_an_ensemble_says_the_mean_and_how_far_its_members_differ(tmp_path, scans, capsys):
    runs = everywhere(classifier, tmp_path / "runs", 3)
    rows = predicted(capsys, runs[0], *scans, "--ensemble", runs[1], "--ensemble", runs[2])
    each = np.stack([softmax(asked(classifier(seed), prepared(scans))) for seed in range(3)])
    assert list(rows[0]) == ["image", "predicted", "p_NC", "p_AD", "sd_NC", "sd_AD", "error"]
    np.testing.assert_allclose([row["p_AD"] for row in rows], each.mean(0)[:, 1], atol=2e-6)
    np.testing.assert_allclose([row["sd_AD"] for row in rows], each.std(0, ddof=1)[:, 1], atol=2e-6)
    assert max(row["sd_AD"] for row in rows) > 0.01


def test_a_cross_validation_stands_for_its_folds(tmp_path, scans, capsys):
    for seed in range(2):
        save_run(tmp_path / "cv" / f"fold-{seed}-seed-0", regressor(seed), task="regression", classes=())
    rows = predicted(capsys, tmp_path / "cv", scans[0])
    each = [asked(regressor(seed), prepared(scans[:1]))[0, 0] for seed in range(2)]
    assert rows[0]["predicted"] == pytest.approx(np.mean(each), abs=1e-3)
    assert rows[0]["sd"] == pytest.approx(np.std(each, ddof=1), abs=1e-3)


def test_runs_that_answer_other_questions_do_not_make_an_ensemble(tmp_path, scans, capsys):
    run = save_run(tmp_path / "run", classifier())
    other = save_run(tmp_path / "other", classifier(1), classes=("NC", "MCI"))
    said = refused(capsys, run, scans[0], "--ensemble", other)
    assert "its list of classes is NC, MCI, not NC, AD" in said
    said = refused(capsys, run, scans[0], "--ensemble", run)
    assert "named twice" in said
    finer = save_run(tmp_path / "finer", classifier(), recipe={"spacing": 10.0})
    assert "preparation of images" in refused(capsys, run, scans[0], "--ensemble", finer)


def test_views_are_averaged(tmp_path, scans, capsys):
    model = classifier()
    run = save_run(tmp_path / "run", model)
    volumes = prepared(scans)
    moved = np.concatenate([volumes[:, :1], volumes[:, :-1]], axis=1)  # one voxel along the first axis
    shown = [volumes, moved, volumes[:, ::-1], moved[:, ::-1]]
    expected = np.mean([softmax(asked(model, v)) for v in shown], axis=0)
    rows = predicted(capsys, run, *scans, "--tta", "--shifts", 1)
    np.testing.assert_allclose([row["p_AD"] for row in rows], expected[:, 1], atol=2e-6)
    plain = predicted(capsys, run, *scans)
    assert any(abs(a["p_AD"] - b["p_AD"]) > 1e-4 for a, b in zip(rows, plain, strict=True))
    assert "0 to 6" in refused(capsys, run, scans[0], "--shifts", 7)


def test_views_of_a_label_map_are_turned_back():
    """The network is a voxelwise function, so that every view must say the same about each voxel."""
    volumes = np.random.default_rng(0).normal(size=(2, 5, 6, 7, 1)).astype(np.float32)
    all_views = views(flip=True, shifts=6)
    assert len(all_views) == len(set(all_views)) == 14
    shown = [view.undo(view.show(volumes) * [2.0, -1.0]) for view in all_views]
    np.testing.assert_allclose(averaged(shown), volumes * [2.0, -1.0], rtol=1e-6)
    assert not np.array_equal(all_views[1].show(volumes), volumes)


def test_a_label_map_in_the_space_of_each_image(tmp_path, scans, capsys):
    run = save_run(
        tmp_path / "run", threshold_segmenter(), task="segmentation", classes=("background", "dark", "bright")
    )
    rows = predicted(capsys, run, *scans[:2], "--out", tmp_path / "maps")
    assert list(rows[0]) == ["image", "segmentation", "ml_dark", "ml_bright", "error"]
    for path, row in zip(scans, rows, strict=False):
        assert row["segmentation"] == str(tmp_path / "maps" / path.name.replace(".nii.gz", "_dseg.nii.gz"))
        found, image = nibabel.load(row["segmentation"]), nibabel.load(path)
        np.testing.assert_allclose(found.affine, image.affine)
        labels = np.asarray(found.dataobj)
        assert labels.shape == image.shape
        assert row["ml_bright"] == pytest.approx((labels == 2).sum() * 8**3 / 1000, rel=1e-3)
        inside = image.get_fdata() > 0
        overlap = 2 * ((labels > 0) & inside).sum() / ((labels > 0).sum() + inside.sum())
        assert overlap > 0.8  # voxels of 12 mm against 8 mm
        assert 0 < (labels == 2).sum() < (labels > 0).sum()
    assert len(read(tmp_path / "maps" / "predictions.csv")) == 2


@pytest.mark.parametrize("chosen", [None, "qform"])
def test_images_are_read_by_the_transform_that_the_import_chose(tmp_path, capsys, chosen):
    scan = written(tmp_path / "scan.nii", qform=MIRRORED)
    plain = nifti(tmp_path / "plain.nii", matrix=MIRRORED if chosen else affine())
    recipe = {"size": SIZE, "spacing": SPACING} | ({"xform": chosen} if chosen else {})
    run = save_run(tmp_path / "run", classifier(0), recipe=recipe)
    capsys.readouterr()
    assert app.run(["predict", str(run), str(scan), str(plain), "--json"]) == 0
    told = capsys.readouterr()
    odd, clean = json.loads(told.out)
    assert odd["p_AD"] == clean["p_AD"]
    lines = [line for line in told.err.splitlines() if "contradict each other" in line]
    assert len(lines) == (chosen is None)
    assert chosen is not None or ("left and right exchanged" in lines[0] and str(scan) in lines[0])


@pytest.mark.parametrize("window", [[], ["--window", 8]])
def test_a_label_map_is_right_by_the_transform_that_the_import_chose(tmp_path, capsys, window):
    """The qform has the sizes of the head; by the sform it would be half as large."""
    told = {"task": "segmentation", "classes": ("background", "head")}
    recipe = {"size": 24, "spacing": 8.0, "xform": "qform"}
    run = save_run(
        tmp_path / "run", threshold_segmenter((-2.5,), 24 if not window else 8), recipe=recipe, **told
    )
    scan = written(tmp_path / "scan.nii", sform=affine((4.0, 4.0, 4.0)))
    (row,) = predicted(capsys, run, scan, "--out", tmp_path / "maps", *window)
    labels = np.asarray(nibabel.load(row["segmentation"]).dataobj)
    assert row["ml_head"] == pytest.approx(labels.sum() * 8**3 / 1000, rel=1e-3)
    inside = head() > 0
    assert 2 * (labels & inside).sum() / (labels.sum() + inside.sum()) > 0.95


def test_windows_over_the_whole_head_find_what_one_cube_cuts_off(tmp_path, capsys):
    """A cube of 8 voxels is smaller than the head; windows of 8 see all of it, and agree inside."""
    told = {"task": "segmentation", "classes": ("background", "head"), "recipe": {"size": 8, "spacing": 8.0}}
    run = save_run(tmp_path / "run", threshold_segmenter((-2.5,), 8), **told)
    scan = nifti(tmp_path / "scan.nii", data=head((40, 48, 44)), matrix=affine((4.0, 4.0, 4.0)))
    cube, whole, other = (tmp_path / name for name in ("cube", "whole", "other"))
    (small,) = predicted(capsys, run, scan, "--out", cube)
    (large,) = predicted(capsys, run, scan, "--out", whole, "--window", 8, "--overlap", 0.25)
    (same,) = predicted(capsys, run, scan, "--out", other, "--window", 16, "--tta", "--shifts", 2)
    maps = [np.asarray(nibabel.load(row["segmentation"]).dataobj) for row in (small, large, same)]
    inside = nibabel.load(scan).get_fdata() > 0
    assert 2 * (maps[1] & inside).sum() / (maps[1].sum() + inside.sum()) > 0.9
    assert small["ml_head"] < 0.6 * large["ml_head"]
    assert (maps[0] <= maps[1]).mean() > 0.999  # nothing is found in the cube alone
    assert (maps[1] != maps[2]).mean() < 1e-3  # a voxelwise network does not see its window


def test_an_ensemble_of_segmentations_averages_probabilities(tmp_path, scans, capsys):
    told = {"task": "segmentation", "classes": ("background", "head")}
    runs = [
        save_run(tmp_path / f"run{n}", threshold_segmenter((limit,)), **told)
        for n, limit in enumerate((-1.0, 0.0, 1.0))
    ]
    (row,) = predicted(
        capsys, runs[0], scans[0], "--ensemble", runs[1], "--ensemble", runs[2], "--out", tmp_path / "all"
    )
    cube = prepare(scans[0], RECIPE)
    each = [softmax(asked(threshold_segmenter((m,)), cube.array[None]))[0] for m in (-1.0, 0.0, 1.0)]
    source = VoxelGrid(cube.array.shape[:3], cube.affine)
    expected = labels_on(VoxelGrid.of_file(scans[0]), iter([(0, np.mean(each, axis=0))]), source)
    np.testing.assert_array_equal(np.asarray(nibabel.load(row["segmentation"]).dataobj), expected)
    assert 0 < expected.sum() * 8**3 / 1000 == pytest.approx(row["ml_head"])
    volumes = [(shares.argmax(-1) == 1).sum() * SPACING**3 / 1000 for shares in each]
    assert np.std(volumes) > 10
    assert row["sd_ml_head"] == pytest.approx(np.std(volumes, ddof=1), rel=1e-4)


def test_images_of_the_same_name_keep_their_folders(tmp_path, capsys):
    run = save_run(
        tmp_path / "run", threshold_segmenter((-1.0,)), task="segmentation", classes=("background", "head")
    )
    scans = [nifti(tmp_path / "scans" / sub / "T1.nii.gz", seed=k) for k, sub in enumerate(("a", "b"))]
    rows = predicted(capsys, run, *scans, "--out", tmp_path / "maps")
    assert [row["segmentation"] for row in rows] == [
        str(tmp_path / "maps" / sub / "T1_dseg.nii.gz") for sub in ("a", "b")
    ]


def test_a_segmentation_needs_a_folder_and_others_take_no_windows(tmp_path, scans, capsys):
    told = {"task": "segmentation", "classes": ("background", "head")}
    run = save_run(tmp_path / "seg", threshold_segmenter((-1.0,)), **told)
    assert "Add --out FOLDER" in refused(capsys, run, scans[0])
    assert "overlap is 1" in refused(capsys, run, scans[0], "--out", tmp_path / "m", "--overlap", 1)
    run = save_run(tmp_path / "class", classifier())
    said = refused(capsys, run, scans[0], "--window", 32)
    assert "16x16x16 voxels, and no other size" in said


def test_a_network_that_is_not_convolutional_throughout_takes_its_own_window_only(tmp_path, scans, capsys):
    inputs = keras.Input((SIZE, SIZE, SIZE, 1), name="volume")
    x = keras.layers.Conv3D(2, 2, strides=2)(inputs)
    x = keras.layers.Concatenate()([keras.layers.UpSampling3D(2)(x), inputs])
    model = keras.Model(inputs, keras.layers.Conv3D(2, 1)(x))
    run = save_run(tmp_path / "run", model, task="segmentation", classes=("background", "head"))
    assert predicted(capsys, run, scans[0], "--out", tmp_path / "a", "--window", 24)[0]["error"] is None
    said = refused(capsys, run, scans[0], "--out", tmp_path / "b", "--window", 17)
    assert "does not take windows of 17 voxels" in said and "16x16x16" in said


def test_a_bad_image_is_a_row_and_the_others_are_predicted(tmp_path, scans, capsys):
    run = save_run(tmp_path / "run", classifier())
    broken = tmp_path / "broken.nii.gz"
    broken.write_bytes(b"no image")
    table = tmp_path / "table.csv"
    capsys.readouterr()
    assert app.run(["predict", *map(str, [run, scans[0], broken, *scans[1:], "--output", table])]) == 2
    out, said = capsys.readouterr()
    assert out == f"{table}: 5 of 6 predicted\n"
    assert "1 of 6 images could not be predicted" in said and "broken.nii.gz" in said
    rows = read(table)
    assert [bool(row["error"]) for row in rows] == [False, True, False, False, False, False]
    assert "broken.nii.gz" in rows[1]["error"] and rows[1]["predicted"] == rows[1]["p_AD"] == ""
    assert rows[5]["p_AD"]


def test_a_missing_image_is_found_before_any_is_predicted(tmp_path, scans, capsys):
    run = save_run(tmp_path / "run", classifier())
    table = tmp_path / "table.csv"
    assert "no such file" in refused(capsys, run, *scans, tmp_path / "none.nii", "--output", table)
    assert "is a folder" in refused(capsys, run, tmp_path, "--output", table)
    assert "named twice" in refused(capsys, run, scans[0], scans[0])
    assert not table.exists()


def test_a_table_is_gone_on_with(tmp_path, scans, capsys, monkeypatch):
    run = save_run(tmp_path / "run", classifier())
    table = tmp_path / "table.csv"
    broken = tmp_path / "later.nii.gz"
    broken.write_bytes(b"not copied yet")
    refused(capsys, run, *scans[:2], broken, "--output", table)
    whole = read(table)
    broken.write_bytes(scans[4].read_bytes())
    seen = []
    from trainer.inference import predictor

    def watched(path, recipe):
        seen.append(path)
        return prepare(path, recipe)

    monkeypatch.setattr(predictor, "prepare", watched)
    assert (
        app.run(["predict", str(run), *map(str, [*scans, broken]), "--output", str(table), "--resume"]) == 0
    )
    rows = read(table)
    assert sorted(seen) == sorted([*scans[2:], broken])
    assert {row["image"]: row for row in whole if not row["error"]}.items() <= {
        row["image"]: row for row in rows
    }.items()
    assert len(rows) == 6 and not any(row["error"] for row in rows)
    assert rows[-1]["p_AD"] == next(row["p_AD"] for row in rows if row["image"] == str(scans[4]))


def test_a_table_of_other_runs_or_options_is_not_gone_on_with(tmp_path, scans, capsys):
    run, other = everywhere(classifier, tmp_path / "runs", 2)
    table = tmp_path / "table.csv"
    predicted(capsys, run, scans[0], "--output", table)
    before = table.read_bytes()
    for arguments in ([other], [run, "--tta"]):
        said = refused(capsys, arguments[0], scans[1], *arguments[1:], "--output", table, "--resume")
        assert "other runs or with other options" in said
    assert table.read_bytes() == before
    assert "Add --output" in refused(capsys, run, scans[0], "--resume")


def test_what_was_found_before_an_interruption_is_kept(tmp_path, scans, monkeypatch):
    run = save_run(tmp_path / "run", classifier())
    table = tmp_path / "table.csv"
    from trainer.inference.ensemble import Ensemble

    ask, calls = Ensemble.ask, []

    def stopped(self, volumes, subjects):
        calls.append(len(volumes))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return ask(self, volumes, subjects)

    monkeypatch.setattr(Ensemble, "ask", stopped)
    arguments = ["predict", str(run), *map(str, scans), "--output", str(table), "--batch", "2"]
    assert app.run(arguments) == 130
    assert len(read(table)) == 4
    monkeypatch.setattr(Ensemble, "ask", ask)
    assert app.run([*arguments, "--resume"]) == 0
    assert [row["image"] for row in read(table)] == [str(path) for path in scans]


def covariate_run(tmp_path) -> tuple[Path, keras.Model]:
    keras.utils.set_random_seed(3)
    model = models.build("tiny", (SIZE, SIZE, SIZE, 1), 2, width=2, covariates=2)
    last = model.layers[-1]
    last.set_weights([w + 1.0 * np.arange(w.size).reshape(w.shape) / w.size for w in last.get_weights()])
    columns = [
        {"name": "age", "level": None, "mean": 70.0, "deviation": 10.0},
        {"name": "sex", "level": "M", "mean": 0.5, "deviation": 0.5},
    ]
    told = {"names": ["age", "sex"], "columns": columns, "levels": {"sex": ["F", "M"]}}
    return save_run(tmp_path / "run", model, covariates=told), model


def test_covariates_are_taken_from_the_row_of_each_person(tmp_path, scans, capsys):
    run, model = covariate_run(tmp_path)
    table = tmp_path / "participants.tsv"
    lines = ["participant_id\tage\tsex", "sub-02\t50\tF", "sub-00\t90\tM", "sub-01\tn/a\tF", "sub-03\t60\tX"]
    table.write_text("\n".join(lines) + "\n")
    told = np.array([[2.0, 1.0], [0.0, -1.0], [-2.0, -1.0]], np.float32)
    expected = softmax(np.asarray(model([prepared(scans[:3]), told], training=False), np.float64))
    rows = predicted(capsys, run, *scans[:3], "--covariates", table)
    np.testing.assert_allclose([row["p_AD"] for row in rows], expected[:, 1], atol=2e-6)
    assert len({row["p_AD"] for row in rows}) == 3
    out = tmp_path / "table.csv"
    said = refused(capsys, run, *scans, "--covariates", table, "--output", out)
    assert "2 of 5 images" in said
    errors = [row["error"] for row in read(out)]
    assert "sex 'X' is unknown" in errors[3] and "no row is about it" in errors[4]
    assert "its network also needs age, sex" in refused(capsys, run, scans[0])


def test_a_person_is_found_by_image_by_session_and_by_folder(tmp_path):
    from trainer.errors import CohortError
    from trainer.inference.requests import People, requests

    first = nifti(tmp_path / "sub-7" / "ses-1" / "anat" / "sub-7_ses-1_T1w.nii.gz")
    second = nifti(tmp_path / "sub-7" / "ses-2" / "anat" / "sub-7_ses-2_T1w.nii.gz")
    plain = nifti(tmp_path / "8" / "T1.nii.gz")
    table = tmp_path / "people.csv"
    table.write_text("participant_id,session,Age,scl\n7,ses-1,70,3\n7,2,72,4\nsub-8,,60,5\n")
    people = People.read(table)
    ages = [people.about(r)["age"] for r in requests([str(first), str(second), str(plain)], ())]
    assert ages == [70.0, 72.0, 60.0]
    table.write_text("image,age\n8/T1.nii.gz,61\n")
    assert People.read(table).about(requests([str(plain)], ())[0])["age"] == 61.0
    table.write_text("participant_id,age\n7,70\n7,72\n")
    with fails_with(CohortError):
        People.read(table).about(requests([str(first)], ())[0])
    table.write_text("name,age\n7,70\n")
    with fails_with(CohortError):
        People.read(table)


def test_a_person_is_found_by_prefix_and_number_and_never_by_another_session(tmp_path):
    from trainer.errors import CohortError
    from trainer.inference.requests import People, requests

    def about(path: Path) -> dict[str, Any]:
        return People.read(table).about(requests([str(path)], ())[0])

    path = nifti(tmp_path / "2" / "sub-007_ses-M048_T1w.nii.gz")
    table = tmp_path / "people.csv"
    table.write_text("participant_id,session,age\n2,M48,50\n7.0,M00,70\n7.0,M48,74\n")
    assert about(path)["age"] == 74.0
    table.write_text("participant_id,session,age\n7,M00,70\n")
    with fails_with(CohortError):
        about(path)
    table.write_text("participant_id,age\nS7,70\nS8,71\n")
    with fails_with(CohortError):
        about(path)
    table.write_text("participant_id,age\n7,89+\n")
    with fails_with(CohortError):
        about(path)
    table.write_text("participant_id,age\n7,70\n8,71\n")
    with fails_with(CohortError):
        about(nifti(tmp_path / "sub-8" / "sub-007_T1w.nii.gz"))


def test_the_contrasts_of_a_subject_are_joined_by_commas(tmp_path, scans):
    from trainer.errors import ImageError
    from trainer.inference.requests import requests

    (one,) = requests([f"{scans[0]},{scans[1]}"], ("T1w", "T2w"))
    assert one.paths == tuple(scans[:2])
    with fails_with(ImageError):
        requests([str(scans[0])], ("T1w", "T2w"))
    comma = nifti(tmp_path / "a,b.nii")
    assert requests([str(comma)], ())[0].paths == (comma,)


def test_a_run_of_two_contrasts_sees_both(tmp_path, scans, capsys):
    keras.utils.set_random_seed(4)
    model = models.build("tiny", (SIZE, SIZE, SIZE, 2), 2, width=2)
    model.layers[-1].set_weights([w / 20 for w in model.layers[-1].get_weights()])
    recipe = Recipe(size=SIZE, spacing=SPACING, contrasts=("T1w", "T2w"))
    run = save_run(tmp_path / "run", model, recipe={"contrasts": ["T1w", "T2w"]})
    second = nifti(tmp_path / "scans" / "sub-00_T2w.nii.gz", data=900 - 0.9 * head(seed=8))
    (row,) = predicted(capsys, run, f"{scans[0]},{second}")
    expected = softmax(asked(model, prepare([scans[0], second], recipe).array[None]))
    assert row["p_AD"] == pytest.approx(expected[0, 1], abs=2e-6)
    assert "1 image(s) of 2 contrasts, T1w, T2w" in refused(capsys, run, scans[0])


def test_only_what_lies_in_the_image_is_looked_at_but_never_less_than_a_window(tmp_path):
    scan = nifti(tmp_path / "scan.nii")  # 160 x 192 x 176 mm
    cube = prepare(scan, Recipe(size=40, spacing=8.0))  # of 320 mm
    target = VoxelGrid.of_file(scan)
    array, matrix = space._within(target, cube, (16, 16, 16))
    assert array.shape == (20, 24, 22, 1)
    np.testing.assert_allclose(matrix, target.affine)
    array, matrix = space._within(target, cube, (32, 32, 32))
    assert array.shape == (32, 32, 32, 1)
    place = nibabel.affines.apply_affine(np.linalg.inv(cube.affine) @ matrix, (0, 0, 0)).round().astype(int)
    window = tuple(slice(p, p + 32) for p in place)
    np.testing.assert_array_equal(array, cube.array[window])
