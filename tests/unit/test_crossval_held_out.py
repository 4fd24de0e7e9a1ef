"""Every subject is held out exactly once per seed, or there are no figures; on made-up run folders."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from shard_sets import make_shard_set
from wording import fails_with

from trainer.crossval import folds, held_out, tables
from trainer.crossval.folds import CrossValidation
from trainer.errors import ConfigError, RunError

LINES = {
    "classification": lambda row: {
        "label": "AB"[row % 2], "predicted": "A", "p_A": 0.9 - row / 50, "p_B": 0.1 + row / 50,
    },
    "regression": lambda row: {"target": 50 + row, "predicted": 51.5 + row},
    "segmentation": lambda row: {"dice_grey": 0.9, "hd95_grey": "" if row == 3 else 2.5},
}  # fmt: skip


def crossval(
    tmp_path: Path, *, task: str = "classification", seeds: int = 2, rows: int = 12
) -> CrossValidation:
    """Three folds; volumes 2k and 2k + 1 are scans of subject k."""
    tmp_path.mkdir(exist_ok=True)
    config = tmp_path / "run.yaml"
    shards = make_shard_set(tmp_path / "shards", rows).path
    config.write_text(f"name: cv\nruns: {tmp_path}\ndata: {{shards: {shards}}}\n")
    made = folds.plan(config, folds=3, seeds=seeds)
    for fold in made.folds:
        test = [row for row in range(rows) if (row // 2) % 3 == fold.number]
        rest = [row for row in range(rows) if row not in test]
        fold.run.evaluation.mkdir(parents=True)
        fold.run.config.write_text("")
        facts = {"shards": {"content_hash": "abc"}, "classes": ["A", "B"]}
        split = {"train": rest[2:], "validation": rest[:2], "test": test}
        fold.run.run.write_text(json.dumps({**facts, "split": split}))
        result = {
            "epochs": 2, "best": {"epoch": 1}, "world_size": 1, "best_weights_sha256": "0",
            "test": {"n": len(test), "auc": 0.5 + fold.number / 10, "auc_interval": None},
        }  # fmt: skip
        fold.run.result.write_text(json.dumps(result))
        write_table(fold, [line(task, row) for row in test])
    return made


def line(task: str, row: int, subject: str | None = None) -> dict[str, object]:
    return {"row": row, "subject": subject or f"sub-{row // 2}", **LINES[task](row)}


def write_table(fold, lines: list[dict[str, object]]) -> None:
    with (fold.run.evaluation / "test.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(lines[0]))
        table.writeheader()
        table.writerows(lines)


def lines_of(fold) -> list[dict[str, object]]:
    with (fold.run.evaluation / "test.csv").open() as file:
        return list(csv.DictReader(file))


def test_folds_trained_before_tables_had_sessions_are_pooled_with_later_ones(tmp_path):
    made = crossval(tmp_path, seeds=1)
    later = made.folds[1]
    write_table(
        later,
        [{"row": one["row"], "subject": one["subject"], "session": "M12", **one} for one in lines_of(later)],
    )
    assert tables.write(made)["subjects"] == 6
    with (made.folder / "predictions.csv").open() as file:
        sessions = {line["fold"]: line["session"] for line in csv.DictReader(file)}
    assert sessions == {"0": "", "1": "M12", "2": ""}


@pytest.mark.parametrize("task", LINES)
def test_every_volume_is_in_the_tables_once_per_seed(tmp_path, task):
    made = crossval(tmp_path, task=task)
    summary = tables.write(made)
    assert (summary["task"], summary["volumes"], summary["subjects"]) == (task, 12, 6)
    with (made.folder / "predictions.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(int(x["seed"]), int(x["row"])) for x in lines] == [(s, r) for s in (0, 1) for r in range(12)]
    assert [int(x["fold"]) for x in lines[:6]] == [0, 0, 1, 1, 2, 2]
    for x in lines:
        for name, value in LINES[task](int(x["row"])).items():
            assert x[name] == str(value)
    with (made.folder / "crossval.csv").open() as file:
        runs = list(csv.DictReader(file))
    assert [x["run"] for x in runs] == [f"fold-{f}-seed-{s}" for s in (0, 1) for f in range(3)]
    assert json.loads((made.folder / "crossval.json").read_text()) == summary


def test_the_pooled_figures_are_those_of_all_folds_together(tmp_path):
    found = held_out.read(crossval(tmp_path))
    assert found.true.tolist() == [0, 1] * 6
    np.testing.assert_allclose(found.values[1, :, 1], 0.1 + np.arange(12) / 50)
    summary = tables.write(crossval(tmp_path / "again", seeds=1))
    assert summary["over_folds"]["auc"]["mean"] == pytest.approx(0.6)
    assert summary["pooled"]["auc"]["value"] == pytest.approx(21 / 36)


def test_predictions_and_runs_are_written_before_figures_are_computed_of_them(tmp_path, monkeypatch):
    made = crossval(tmp_path)

    def fail(found: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(tables, "per_seed", fail)
    with pytest.raises(ZeroDivisionError):
        tables.write(made)
    assert len((made.folder / "predictions.csv").read_text().splitlines()) == 25
    assert len((made.folder / "crossval.csv").read_text().splitlines()) == 7


def test_a_fold_says_where_its_network_is_not_its_best_epoch_s_and_where_it_has_no_metrics(tmp_path):
    made = crossval(tmp_path)
    fold = made.folds[1]
    result = {
        **json.loads(fold.run.result.read_text()),
        "kept": {"epoch": 2, "step": 4, "why": "Epoch 1 is lost."},
    }
    fold.run.result.write_text(json.dumps(result))
    summary = tables.write(made)
    assert [run.get("other_epoch") for run in summary["per_fold"]] == [None, "Epoch 1 is lost.", *[None] * 4]
    del result["test"]
    fold.run.result.write_text(json.dumps(result))
    with fails_with(RunError) as error:
        tables.write(made)
    assert error.value.cure == f"Compute them: cingulum train {fold.run.config} --resume"


def test_a_subject_held_out_twice_is_named(tmp_path):
    made = crossval(tmp_path)
    write_table(made.folds[1], [*lines_of(made.folds[1]), line("classification", 0)])
    with fails_with(RunError):
        tables.write(made)
    assert not (made.folder / "crossval.json").exists()


def test_a_volume_that_no_fold_holds_out_is_named(tmp_path):
    made = crossval(tmp_path)
    write_table(made.folds[4], lines_of(made.folds[4])[1:])
    with fails_with(RunError):
        held_out.read(made)


def test_scans_of_one_subject_in_two_folds_are_found(tmp_path):
    made = crossval(tmp_path)
    write_table(made.folds[2], [line("classification", row, "sub-0") for row in (4, 5, 10, 11)])
    with fails_with(RunError):
        held_out.read(made)


def test_a_run_on_other_data_is_named(tmp_path):
    made = crossval(tmp_path)
    facts = json.loads(made.folds[3].run.run.read_text())
    made.folds[3].run.run.write_text(json.dumps({**facts, "shards": {"content_hash": "other"}}))
    with fails_with(RunError):
        held_out.read(made)


def test_seeds_must_agree_about_the_truth(tmp_path):
    made = crossval(tmp_path)
    lines = lines_of(made.folds[3])
    write_table(made.folds[3], [{**lines[0], "label": "B"}, *lines[1:]])
    with fails_with(RunError):
        held_out.read(made)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("row,subject\n0,a,b\n", "is damaged"),
        ("", "is damaged"),
        ("row,subject,p_A\nx,a,0\n", "is damaged"),
        ("row,subject,p_A\n0,a,0.1\n", "other columns"),
        (None, "is missing"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(tmp_path, text, words):
    made = crossval(tmp_path)
    path = made.folds[1].run.evaluation / "test.csv"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(RunError, match=words) as error:
        held_out.read(made)
    assert str(path) in error.value.message


def test_every_run_of_the_plan_has_its_own_fold_and_seed_and_shares_the_rest(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("name: a\nruns: my runs\ndata: {shards: s, split: {seed: 4, fold: 1, folds: 3}}\n")
    made = folds.plan(config, ["train.seed=7"], folds=None, seeds=2)
    assert made.config.data.split.folds == 3
    said = [(fold.config.train.seed, fold.config.data.split.fold) for fold in made.folds]
    assert said == [(7, 0), (7, 1), (7, 2), (8, 0), (8, 1), (8, 2)]
    assert {fold.config.data.split.seed for fold in made.folds} == {4}
    assert made.folds[5].run.path == Path("my runs/a/fold-2-seed-8")
    assert made.folds[5].log == Path("my runs/a/fold-2-seed-8.log")


def test_folds_that_leave_nothing_to_train_on_are_refused(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("name: a\ndata: {shards: s, split: {validation: 0.6}}\n")
    with fails_with(ConfigError):
        folds.plan(config, folds=2, seeds=1)
