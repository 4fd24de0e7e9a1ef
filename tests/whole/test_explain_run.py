"""`cingulum explain` on a run of phantoms: what is written, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import keras
import nibabel
import numpy as np
import pytest
from PIL import Image
from saved_runs import save_run

from cingulum.cli import app
from trainer import models
from trainer.data.images.preprocess import Recipe, prepare
from trainer.data.importing.examination import source_sha256
from trainer.data.loading.covariates import Covariates
from trainer.data.phantom import people
from trainer.data.phantom.cohort import make_cohort
from trainer.data.shards.index import SetMeta, VolumeMeta
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.shards import ShardSet
from trainer.explain import page, pictures
from trainer.explain.group import ClassMaps, head

pytestmark = pytest.mark.slow

RECIPE = Recipe.of_size(16)
GROUPS = ("AD", "NC")
SUBJECTS = 6


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cohort of phantoms, its shards, and a run whose test split are the last four."""
    folder = tmp_path_factory.mktemp("study")
    make_cohort(folder / "cohort", SUBJECTS, 24, gap=3.0, seed=1, workers=1, groups=GROUPS)
    rows = []
    for number in range(SUBJECTS):
        person = people.draw(1, number, GROUPS)
        source = f"{person.name}/anat/{person.name}_T1w.nii.gz"
        prepared = prepare(folder / "cohort" / source, RECIPE)
        meta = VolumeMeta(
            subject=person.name[4:],
            source=source,
            source_sha256=source_sha256(folder / "cohort" / source),
            affine=prepared.affine.tolist(),
            label=person.diagnosis,
            age=person.age,
            sex=person.sex,
        )
        rows.append((prepared.array, meta))
    meta_of_set = SetMeta(
        "diagnosis", "Cingulum phantom cohort (not people)", (RECIPE.spacing,) * 3, {}, RECIPE.to_json()
    )
    writer = ShardWriter(folder / "shards", RECIPE.shape, RECIPE.dtype, meta=meta_of_set)
    writer.finish([writer.write_shard(0, rows)])
    run = folder / "run"
    run.mkdir()
    (run / "config.yaml").write_text(
        f"name: run\ndata: {{shards: {folder / 'shards'}, classes: [NC, AD]}}\n"
        "model: {name: tiny, width: 4}\n"
    )
    facts = {
        "shards": {"content_hash": ShardSet.open(folder / "shards").content_hash},
        "split": {"train": [0, 1], "validation": [], "test": [2, 3, 4, 5]},
        "task": {"name": "classification", "classes": ["NC", "AD"]},
        "classes": ["NC", "AD"],
        "preprocessing": RECIPE.to_json(),
    }
    (run / "run.json").write_text(json.dumps(facts))
    (run / "result.json").write_text("{}")
    keras.utils.set_random_seed(0)
    models.build("tiny", RECIPE.shape, 2, width=4).save(run / "model.keras")
    return folder


def explain(*arguments: object) -> int:
    return app.run(["explain", *(str(a) for a in arguments)])


def test_held_out_subjects_are_explained_with_maps_pictures_means_and_a_page(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = study / "run"
    code = explain(
        run,
        "--class",
        "AD",
        "--layer",
        "stage1_relu",
        "--regions",
        study / "cohort",
        "--subjects",
        3,
        "--json",
    )
    assert code == 0
    told = json.loads(capsys.readouterr().out)
    folder = run / "explanations" / "gradcam"
    assert told == json.loads((folder / "summary.json").read_text())
    assert [s["subject"] for s in told["subjects"]] == ["sub-0004", "sub-0003", "sub-0006"], (
        "NC, AD, NC in turn"
    )
    assert 0 < told["outside_head"] < 1
    assert told["settings"]["layer"] == "stage1_relu" and told["explained"] == "log-odds of AD"

    shards = ShardSet.open(study / "shards")
    image = nibabel.nifti1.load(folder / "sub-0003.nii.gz")
    values = np.asarray(image.dataobj)
    assert image.get_data_dtype() == np.float32 and values.shape == (16, 16, 16) and values.min() >= 0
    assert np.allclose(image.affine, shards.volumes[2].affine, atol=1e-4)
    for s in told["subjects"]:
        assert 0 <= s["share"] <= 1 and 0 < s["chance"] < 0.5
        for name in (s["picture"], s["mosaic"]):
            picture = np.asarray(Image.open(folder / name).convert("RGB")).astype(int)
            assert picture.std() > 10 and np.ptp(picture, axis=2).max() > 60, "anatomy and colours"
    assert told["regions"]["pooled"]["n"] == 3
    assert told["space"]["mni_like"] and {g["name"]: g["n"] for g in told["groups"]} == {"AD": 1, "NC": 2}
    mean = np.asarray(nibabel.nifti1.load(folder / "mean_AD.nii.gz").dataobj)
    assert mean.shape == (16, 16, 16) and mean.max() > 0
    page = (folder / "index.html").read_text()
    shown = [g["pictures"] for g in told["groups"]] + [[s["picture"]] for s in told["subjects"]]
    for name in (name for names in shown for name in names):
        assert f'src="{name}"' in page and (folder / name).is_file()
    assert "mean_AD_glass.png" in page and "not people" in page
    assert not list(folder.parent.glob(".*")), "nothing half done is left"


def test_pictures_and_a_page_that_cannot_be_made_do_not_lose_the_maps(
    study: Path, capsys, monkeypatch
) -> None:
    def fail(*arguments: object, **options: object) -> bytes:
        raise ZeroDivisionError("in a picture")

    for module, name in ((pictures, "mosaic"), (pictures, "glass_brain"), (page, "render")):
        monkeypatch.setattr(module, name, fail)
    assert explain(study / "run", "--method", "occlusion", "--subjects", 2) == 0
    said = capsys.readouterr().err
    # A mosaic of each subject, mosaic and glass brain of each class, and the page.
    assert said.count("could not be made (ZeroDivisionError: in a picture") == 2 + 2 * 2 + 1
    folder = study / "run" / "explanations" / "occlusion"
    told = json.loads((folder / "summary.json").read_text())
    assert len(told["subjects"]) == 2
    names = [s["nifti"] for s in told["subjects"]] + [s["picture"] for s in told["subjects"]]
    assert all((folder / name).is_file() for name in [*names, *(g["nifti"] for g in told["groups"])])
    assert all(group["pictures"] == [] for group in told["groups"])


def test_raw_images_are_prepared_as_the_runs_were_and_give_the_same_maps(study: Path) -> None:
    run = study / "run"
    image = study / "cohort/sub-0003/anat/sub-0003_T1w.nii.gz"
    assert explain(run, image, "--class", "AD", "--method", "integrated-gradients") == 0
    folder = run / "explanations" / "integrated-gradients"
    from_image = np.asarray(nibabel.nifti1.load(folder / "sub-0003_T1w.nii.gz").dataobj)
    told = json.loads((folder / "summary.json").read_text())["subjects"][0]
    assert told["label"] is None and told["difference"] + told["gap"] == pytest.approx(
        from_image.sum(), abs=1e-3
    )
    assert explain(run, "--class", "AD", "--method", "integrated-gradients", "--subjects", 2) == 0
    from_shards = np.asarray(nibabel.nifti1.load(folder / "sub-0003.nii.gz").dataobj)
    assert np.array_equal(from_image, from_shards)
    assert not (folder / "sub-0003_T1w.nii.gz").exists(), "the earlier explanation is gone as a whole"


def test_held_out_subjects_of_a_cross_validation_are_explained_by_their_own_folds(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = {"fold-0-seed-0": [2, 3, 4], "fold-1-seed-0": [0, 1, 5], "fold-0-seed-1": [2, 3, 4]}
    for name, rows in held_out.items():
        shutil.copytree(study / "run", tmp_path / name, ignore=shutil.ignore_patterns("explanations"))
        facts = json.loads((tmp_path / name / "run.json").read_text())
        rest = [row for row in range(6) if row not in rows]
        facts["split"] = {"train": rest, "validation": [], "test": rows}
        (tmp_path / name / "run.json").write_text(json.dumps(facts))
    summary = {"per_fold": [], "pooled": {}, "over_folds": {}, "seeds": [0, 1]}
    (tmp_path / "crossval.json").write_text(json.dumps(summary))
    assert explain(tmp_path, "--subjects", 3, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [len(fold["subjects"]) for fold in told["folds"]] == [2, 1]
    volumes = ShardSet.open(study / "shards").volumes
    for name, fold in zip(held_out, told["folds"], strict=False):
        sources = {volumes[row].source for row in held_out[name]}
        assert {one["source"] for one in fold["subjects"]} <= sources
        assert (tmp_path / name / "explanations" / "gradcam" / "index.html").is_file()
    assert not (tmp_path / "fold-0-seed-1" / "explanations").exists()


@pytest.mark.deep
def test_occlusion_against_the_mean_training_volume(study: Path) -> None:
    assert explain(study / "run", "--method", "occlusion", "--baseline", "mean", "--subjects", 1) == 0
    told = json.loads((study / "run/explanations/occlusion/summary.json").read_text())
    assert told["settings"] == {"baseline": "mean training volume"}
    assert told["subjects"][0]["class"] == told["subjects"][0]["predicted"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--class", "MCI"], "has no class 'MCI'"),
        (["--layer", "stage9"], "no layer 'stage9'"),
        (["--method", "occlusion", "--layer", "stage1_relu"], "has no meaning for occlusion"),
        (["--subjects", "0"], "--subjects 0"),
        (["--regions", "."], "not a phantom cohort"),
        (["nowhere.nii.gz"], "there is no such file"),
        (["--split", "validation"], "has no validation split"),
    ],
)
def test_what_cannot_be_done_is_told_in_words_and_keeps_what_was_there(
    study: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((study / "run").rglob("*"))
    assert explain(study / "run", *arguments) == 2
    told = capsys.readouterr().err
    assert words in told and "Traceback" not in told
    assert sorted((study / "run").rglob("*")) == before


def test_a_folder_that_holds_something_else_is_kept(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = study / "run/explanations/occlusion"
    aside = study / "aside"
    if mine.exists():
        mine.rename(aside)
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("mine")
    assert explain(study / "run", "--method", "occlusion") == 2
    assert "is not an explanation" in capsys.readouterr().err and (mine / "thesis.txt").is_file()


def test_means_are_taken_in_millimetres_where_brains_lie_as_the_mni_brain(study: Path) -> None:
    """The same head in two cubes that were cut elsewhere: one place in mm, two places in the cubes."""
    prepared = prepare(study / "cohort/sub-0003/anat/sub-0003_T1w.nii.gz", RECIPE)
    volume, affine = prepared.array[..., 0].astype(np.float32), prepared.affine
    rolled, moved = np.roll(volume, 1, axis=0), affine.copy()
    moved[:3, 3] -= affine[:3, 0]  # voxel d of the first is voxel d + 1 of the second
    group = ClassMaps((16, 16, 16), (RECIPE.spacing,) * 3)
    group.add("AD", volume, volume, affine, head(volume))
    alone = group.means(mni=True)["AD"][1]
    group.add("AD", rolled, rolled, moved, head(rolled))
    count, values, _ = group.means(mni=True)["AD"]
    inner = (slice(2, 14),) * 3
    assert count == 2 and np.abs(values - alone)[inner].max() < 1e-3
    assert np.abs(group.means(mni=False)["AD"][1] - volume).max() > 0.5
    assert group.overlap() > 0.85

    elsewhere = ClassMaps((16, 16, 16), (RECIPE.spacing,) * 3)
    far = affine.copy()
    far[2, 3] -= 60
    elsewhere.add("AD", volume, volume, far, head(volume))
    assert elsewhere.overlap() < 0.8


@pytest.mark.parametrize(
    "method", ["gradcam", "integrated-gradients", pytest.param("occlusion", marks=pytest.mark.deep)]
)
def test_a_number_told_of_volume_and_sex_is_explained(
    study: Path, tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = ShardSet.open(study / "shards")
    known = Covariates.fit(("sex",), shards.volumes[:2])
    model = models.build("tiny", RECIPE.shape, 1, width=2, covariates=1)
    run = save_run(
        tmp_path / "ages",
        model,
        task="regression",
        classes=(),
        covariates=known.to_json(),
        shards={"content_hash": shards.content_hash},
        split={"train": [0, 1], "validation": [], "test": [2, 3, 4, 5]},
        preprocessing=RECIPE.to_json(),
    )
    data = f"data: {{shards: {shards.path}, covariates: [sex]}}"
    config = f"name: ages\ntask: {{name: regression}}\n{data}\nmodel: {{name: tiny}}\n"
    (run / "config.yaml").write_text(config)
    assert explain(run, "--method", method, "--subjects", 1, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    (subject,) = told["subjects"]
    row = next(v.id for v in shards.volumes if f"sub-{v.subject}" == subject["subject"])
    volume = shards.read(row)[None].astype("float32")
    said = float(model([volume, known.of([shards.volumes[row]])])[0, 0])
    assert float(subject["predicted"]) == pytest.approx(said, rel=1e-3)
    values = np.asarray(nibabel.nifti1.load(run / "explanations" / method / subject["nifti"]).dataobj)
    assert np.isfinite(values).all() and values.shape == (16, 16, 16)
