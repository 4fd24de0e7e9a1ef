"""`cingulum export`: files that other programs open and that say the same, and an honest card."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from made_up_run import make_shards
from markdown_it import MarkdownIt
from saved_runs import SIZE, classifier, regressor, save_run, threshold_segmenter

from cingulum.cli import app
from trainer import models
from trainer.export import FORMATS, card
from trainer.models import attention, layers

VOLUMES = np.random.default_rng(5).normal(size=(3, SIZE, SIZE, SIZE, 1)).astype(np.float32)


def exported(capsys, run: Path, out: Path, *arguments: str) -> dict:
    capsys.readouterr()
    assert app.run(["export", str(run), "--out", str(out), *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments: object, code: int = 2) -> str:
    capsys.readouterr()
    assert app.run(["export", *map(str, arguments)]) == code
    said = capsys.readouterr().err
    assert said.count("error: ") == 1 and "Traceback" not in said
    return said


def run_snippet(card: str, number: int, folder: Path, monkeypatch, **given: np.ndarray) -> np.ndarray:
    """Run a code block of a model card as its reader would."""
    code = re.findall(r"```python\n(.*?)```", card, re.S)[number]
    monkeypatch.chdir(folder)
    names = dict(given)
    exec(code, names)  # noqa: S102 - it is ours
    return np.asarray(names["outputs"])


def all_kinds_of_layers() -> keras.Model:
    """Residual block, attention, two normalisations, pooling and upsampling, in one small network."""
    keras.utils.set_random_seed(1)
    x = volume = keras.Input((SIZE, SIZE, SIZE, 1), name="volume")
    x = layers.stem(x, 8, norm="batch")
    x = layers.residual_block(x, 16, strides=2, norm="group", name="block")
    x = attention.self_attention(x, name="attention")
    x = keras.layers.Concatenate()(
        [keras.layers.UpSampling3D(2)(x), keras.layers.AveragePooling3D(4)(volume)]
    )
    model = keras.Model(volume, layers.head(x, 2, dropout=0.5))
    random = np.random.default_rng(0)  # weights of 0, as attention begins with, would hide it
    model.set_weights([w + random.uniform(0.05, 0.1, w.shape) for w in model.get_weights()])
    return model


def test_a_card_that_cannot_be_written_does_not_lose_the_files(tmp_path, capsys, monkeypatch):
    run, out = save_run(tmp_path / "net", classifier()), tmp_path / "out"
    exported(capsys, run, out)

    def fail(*arguments: object) -> dict:
        raise ZeroDivisionError("in the card")

    monkeypatch.setattr(card, "facts", fail)
    assert app.run(["export", str(run), "--out", str(out), "--format", "savedmodel"]) == 0
    said = capsys.readouterr()
    assert "MODEL_CARD.md could not be made (ZeroDivisionError: in the card" in said.err
    assert f"cingulum export {run} --out {out}" in said.err and "MODEL_CARD" not in said.out
    # No card of what lies here no longer.
    assert {path.name for path in out.iterdir()} == {"net.keras", "net-savedmodel"}


def test_every_format_says_what_the_network_says_by_the_three_lines_of_its_card(
    tmp_path, capsys, monkeypatch
):
    model = all_kinds_of_layers()
    out = tmp_path / "out"
    said = exported(
        capsys, save_run(tmp_path / "net", model), out, "--format", "savedmodel", "--format", "onnx"
    )
    assert list(said["formats"]) == ["keras", "savedmodel", "onnx"] == list(FORMATS)
    assert {path.name for path in out.iterdir()} == {
        "net.keras", "net-savedmodel", "net.onnx", "MODEL_CARD.md", "model_card.json",
    }  # fmt: skip
    expected = model(VOLUMES, training=False).numpy()
    card = (out / "MODEL_CARD.md").read_text()
    for number in range(3):
        found = run_snippet(card, number, out, monkeypatch, volume=VOLUMES)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_covariates_come_along_in_every_format(tmp_path, capsys, monkeypatch):
    keras.utils.set_random_seed(2)
    model = models.build("tiny", (SIZE, SIZE, SIZE, 1), 2, width=2, covariates=2)
    columns = [
        {"name": "age", "level": None, "mean": 70.5, "deviation": 9.5},
        {"name": "sex", "level": "M", "mean": 0.5, "deviation": 0.5},
    ]
    told = {"names": ["age", "sex"], "columns": columns, "levels": {"sex": ["F", "M"]}}
    run = save_run(tmp_path / "net", model, covariates=told)
    exported(capsys, run, tmp_path / "out", "--format", "savedmodel", "--format", "onnx")
    given = {"volume": VOLUMES, "covariates": np.array([[1, -1], [0, 2], [3, 0]], np.float32)}
    expected = model(list(given.values()), training=False).numpy()
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    for number in range(3):
        found = run_snippet(card, number, tmp_path / "out", monkeypatch, **given)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert "age: mean 70.5, deviation 9.5;" in card and "sex (1 for M, else 0)" in card


def test_the_other_tasks_are_exported_too(tmp_path, capsys):
    run = save_run(tmp_path / "age", regressor(), task="regression", classes=())
    exported(capsys, run, tmp_path / "a", "--format", "onnx")
    assert "Predicts age" in (tmp_path / "a" / "MODEL_CARD.md").read_text()
    classes = ("background", "grey", "white")
    run = save_run(tmp_path / "seg", threshold_segmenter(), task="segmentation", classes=classes)
    (run / "evaluation").mkdir()
    of_class = {"dice": 0.91, "dice_interval": [0.9, 0.92], "hd95": 2.5, "n": 7}
    test = {"n": 7, "dice": 0.9, "dice_interval": [0.88, 0.93], "per_class": {"grey": of_class}}
    (run / "evaluation" / "test.json").write_text(json.dumps(test))
    exported(capsys, run, tmp_path / "s", "--format", "onnx", "--format", "savedmodel")
    card = (tmp_path / "s" / "MODEL_CARD.md").read_text()
    assert "Labels every voxel of 3D brain MRI: background, grey, white." in card
    assert "| Dice: grey | 0.910 | 0.900 to 0.920 |" in card and "| HD95, mm: grey | 2.500 |  |" in card


def test_names_in_a_card_are_shown_as_they_are(tmp_path, capsys):
    run = tmp_path / "a *new* run|2"
    save_run(tmp_path / "net", classifier(), classes=("N|C", "<b>AD")).rename(run)
    (run / "evaluation").mkdir()
    (run / "evaluation" / "test.json").write_text(json.dumps({"n": 5, "auc": 0.5, "auc_interval": None}))
    exported(capsys, run, tmp_path / "out", "--licence", "[MIT](x)")
    page = MarkdownIt("commonmark").enable("table").render((tmp_path / "out" / "MODEL_CARD.md").read_text())
    assert "<h1>a *new* run|2</h1>" in page
    assert "<p>Tells N|C, &lt;b&gt;AD apart" in page
    assert "Weights: [MIT](x)." in page
    assert not {"em", "b", "a"} & set(re.findall(r"<([a-z0-9]+)", page))


def test_a_file_that_says_something_else_is_not_left_behind(tmp_path, capsys, monkeypatch):
    run = save_run(tmp_path / "net", classifier())
    right = FORMATS["savedmodel"]

    def other_weights(model, stored, path):
        right.write(classifier(seed=9), stored, path)

    monkeypatch.setitem(FORMATS, "savedmodel", dataclasses.replace(right, write=other_weights))
    said = refused(capsys, run, "--format", "savedmodel", "--out", tmp_path / "out", code=1)
    assert "its outputs differ from the network's by" in said
    assert list((tmp_path / "out").iterdir()) == []


def test_the_card_says_who_was_learned_from_and_what_came_of_it(tmp_path, capsys):
    shards = make_shards(tmp_path / "shards", 20, ("NC", "AD"), source="Study of seven sites")
    split = {"train": list(range(12)), "validation": [12, 13, 14], "test": [15, 16, 17, 18, 19]}
    facts = {
        "shards": {"content_hash": shards.content_hash, "label_name": "diagnosis"},
        "split": split,
        "world_size": 4,
        "gpus": [[], [], [], []],
    }
    run = save_run(tmp_path / "net", classifier(), **facts)
    config = (run / "config.yaml").read_text().replace("shards: shards", f"shards: {shards.path}")
    (run / "config.yaml").write_text(config)
    (run / "evaluation").mkdir()
    test = {
        "n": 5,
        "auc": 0.8125,
        "auc_interval": [0.5, 0.99],
        "positive": "AD",
        "confusion": [[2, 0], [1, 2]],
    }
    (run / "evaluation" / "test.json").write_text(json.dumps(test))
    said = exported(capsys, run, tmp_path / "out", "--licence", "CC-BY-4.0")
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    ages = [shards.volumes[row].age for row in split["train"]]
    train = said["data"]["splits"]["train"]
    assert train["age"]["mean"] == pytest.approx(np.mean(ages), abs=0.01)
    assert train["age"]["sd"] == pytest.approx(np.std(ages, ddof=1), abs=0.01)
    assert (train["labels"], train["sexes"]) == ({"AD": 6, "NC": 6}, {"F": 6, "M": 6})
    assert f"| train | 12 | 12 | AD 6, NC 6 | {train['age']['mean']} ± {train['age']['sd']} (" in card
    assert "| ROC-AUC | 0.812 | 0.500 to 0.990 |" in card
    assert "on 4 rank(s), no GPU;" in card
    assert "Study of seven sites" in card and "CC-BY-4.0" in card and "hantom" not in card
    assert said["network"]["weights_sha256"] in card
    assert "{{" not in card and "None" not in card


def test_phantoms_are_called_so_and_missing_data_too(tmp_path, capsys):
    shards = make_shards(tmp_path / "shards", 8, ("NC", "AD"), source="Cingulum phantom cohort (not people)")
    facts = {"shards": {"content_hash": shards.content_hash}, "split": {"train": list(range(8)), "test": []}}
    run = save_run(tmp_path / "net", classifier(), **facts)
    config = (run / "config.yaml").read_text().replace("shards: shards", f"shards: {shards.path}")
    (run / "config.yaml").write_text(config)
    exported(capsys, run, tmp_path / "out")
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert "**Phantom data, not people.**" in card and "Not known: the run had no test split." in card
    assert "none is stated" in card and "data.leaks" not in card
    (run / "config.yaml").write_text(config.replace("data:", "data:\n  leaks: warn", 1))
    exported(capsys, run, tmp_path / "out")
    assert "did not stop the training (data.leaks=warn)" in (tmp_path / "out" / "MODEL_CARD.md").read_text()
    (tmp_path / "shards" / "index.json").unlink()
    exported(capsys, run, tmp_path / "out")  # over the first
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert "not at hand" in card and "**Phantom" not in card


def test_what_cannot_be_exported_is_refused_in_words(tmp_path, capsys, monkeypatch):
    run = save_run(tmp_path / "net", classifier())
    assert "Known: keras, savedmodel, onnx" in refused(capsys, run, "--format", "onx")
    assert "no such run folder" in refused(capsys, tmp_path / "none")
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(capsys, run, "--out", tmp_path / "file")
    foreign = tmp_path / "out" / "net-savedmodel"
    foreign.mkdir(parents=True)
    (foreign / "thesis.tex").write_text("years of work")
    assert "not a SavedModel" in refused(capsys, run, "--format", "savedmodel", "--out", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["net-savedmodel", "thesis.tex"]
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "tf2onnx" else find(name))
    said = refused(capsys, run, "--format", "onnx", "--out", tmp_path / "other")
    assert "tf2onnx is not installed" in said and ".[onnx]" in said


@pytest.mark.parametrize("policy, network", [("mixed_bfloat16", "resnet10"), ("mixed_float16", "tiny")])
def test_a_network_of_mixed_precision_is_an_onnx_in_float32(tmp_path, capsys, policy, network):
    keras.config.set_dtype_policy(policy)
    try:
        model = models.build(network, (SIZE, SIZE, SIZE, 1), 2, width=2)
    finally:
        keras.config.set_dtype_policy("float32")
    run = save_run(tmp_path / "net", model)
    formats = exported(capsys, run, tmp_path / "out", "--format", "onnx", "--format", "savedmodel")["formats"]
    assert formats["onnx"]["difference"] < 1e-5 and formats["savedmodel"]["difference"] < 1e-3
    found = FORMATS["onnx"].load(tmp_path / "out" / formats["onnx"]["file"])([VOLUMES])
    mixed = model(VOLUMES, training=False).numpy()
    assert 0 < np.abs(found - mixed).max() < 0.05 * np.abs(mixed).max()
