"""Reports of several runs: a comparison, and a cross-validation."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import typer
from made_up_run import make_crossval, make_run
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner
from wording import fails_with

from cingulum.cli import app as cli
from cingulum.cli.results import report as command
from trainer import report
from trainer.errors import RunError
from trainer.metrics.comparison import auc_difference
from trainer.report import charts_training, comparison_page, crossval_page
from trainer.report.story import read


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two runs on the same shards and subjects: a better and a worse network."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "first")
    shutil.copytree(folder / "first", folder / "second")
    make_run(folder / "worse", skill=0.5)
    shutil.copytree(folder / "worse" / "evaluation", folder / "second" / "evaluation", dirs_exist_ok=True)
    for name, change in (("first", "width: 16"), ("second", "width: 8")):
        path = folder / name / "config.yaml"
        path.write_text(path.read_text().replace("width: 16", change).replace("made-up", name))
    return [folder / "first", folder / "second"]


@pytest.fixture(scope="module")
def folds(tmp_path_factory):
    return make_crossval(tmp_path_factory.mktemp("runs") / "cv")


def test_a_comparison_tells_what_differs_and_how_sure_it_is(pair):
    page = comparison_page.render(pair)
    founds = [read(folder).predictions["test"] for folder in pair]
    one, other = (found.probabilities for found in founds)
    difference, (low, high) = auc_difference(founds[0].true, one, other, founds[0].subjects)
    assert f'<td>AUC</td><td class="n">{difference:+.3f}</td>' in page.html
    assert f"{low:+.3f} to {high:+.3f}" in page.html
    assert "on the same scans: 32 of 32 subjects; interval and p are by subject" in page.html
    assert page.tables["configurations"] == "key,first,second\nmodel.width,16,8\n"
    assert [figure.name for figure in page.figures] == [
        "auc", "roc", "precision-recall", "learning-curves-cross-entropy", "learning-curves-auc"
    ]  # fmt: skip
    assert "different subjects" not in page.html


def test_losses_of_runs_share_an_axis_where_they_are_one_function():
    runs = [(name, [{"epoch": 1, "val_loss": 0.5, "val_mae": 4.0}]) for name in "ab"]

    def drawn(*losses):
        return [figure.name for figure in charts_training.curves_of_runs(runs, losses)]

    assert drawn("squared error", "squared error") == ["learning-curves-loss", "learning-curves-mae"]
    assert drawn("squared error", "absolute error") == ["learning-curves-mae"]


@pytest.mark.parametrize("task", ["classification", "regression", "segmentation"])
def test_a_report_tells_the_differences_that_the_command_tells(tmp_path, capsys, task):
    for name, seed in (("a", 1), ("b", 2), ("c", 3)):
        make_run(tmp_path / name, task=task, subjects=40, epochs=2, seed=1, skill=seed)
    if task != "classification":  # the same subjects, another network
        for name, factor in (("b", 0.9), ("c", 1.1)):
            make_worse(tmp_path / name, factor)
    folders = [tmp_path / name for name in "abc"]
    assert cli.run(["compare", *map(str, folders), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["comparisons"]
    table = list(csv.DictReader(comparison_page.render(folders).tables["differences"].splitlines()))
    assert len(table) == len(told) == (6 if task == "classification" else 3)
    for line, pair in zip(table, told, strict=True):
        assert (line["first"], line["second"], line["method"]) == (
            pair["first"], pair["second"], pair["test"]
        )  # fmt: skip
        low, high = pair["interval"]
        figures = (pair["difference"], low, high, pair["p_value"], pair["p_holm"])
        shown = [float(line[name]) for name in ("difference", "low", "high", "p_value", "p_holm")]
        assert shown == pytest.approx(figures, rel=1e-5)


def make_worse(run: Path, factor: float) -> None:
    """Another table of predictions on the same subjects."""
    path = run / "evaluation" / "test.csv"
    header, *lines = [line.split(",") for line in path.read_text().splitlines()]
    for line in lines:
        for place, name in enumerate(header):
            if name == "predicted" or name.startswith("dice_"):
                line[place] = str(float(line[place] or "nan") * factor)
    path.write_text("".join(",".join(line) + "\n" for line in [header, *lines]))


def test_the_order_of_the_rows_does_not_matter_to_a_comparison(pair, tmp_path):
    other = Path(shutil.copytree(pair[1], tmp_path / "second"))
    path = other / "evaluation" / "test.csv"
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *reversed(lines)]) + "\n")
    assert (
        comparison_page.render([pair[0], other]).tables["differences"]
        == (comparison_page.render(pair).tables["differences"])
    )


def test_runs_on_different_subjects_are_not_tested_against_each_other(pair, tmp_path):
    other = Path(shutil.copytree(pair[1], tmp_path / "second"))
    path = other / "evaluation" / "test.csv"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    page = comparison_page.render([pair[0], other])
    assert "judged on different subjects" in page.html and page.tables["differences"].count("\n") == 1


@pytest.mark.parametrize("task", ["regression", "segmentation"])
def test_other_tasks_are_compared_by_subject(tmp_path, task):
    for name, seed in (("a", 1), ("b", 2)):
        make_run(tmp_path / name, task=task, subjects=40, seed=seed)
    stories = [read(tmp_path / name) for name in "ab"]
    found = stories[0].predictions["test"]
    ((same,), _) = comparison_page.compare_pairs([("a", found), ("b", found)], [None, None])
    assert same.difference == 0 and same.interval == (0, 0) and same.p_value == 1
    page = comparison_page.render([tmp_path / "a", tmp_path / "b"])
    assert {"regression": "MAE", "segmentation": "Mean Dice"}[task] in page.html


def test_a_difference_that_every_subject_has_is_seen(tmp_path):
    make_run(tmp_path / "a", task="regression")
    found = read(tmp_path / "a").predictions["test"]
    worse = type(found)(found.rows, found.subjects, found.true, found.true + found.errors * 3)
    ((told,), _) = comparison_page.compare_pairs([("a", found), ("b", worse)], [None, None])
    assert told.figure == "MAE" and told.difference == pytest.approx(-2 * np.abs(found.errors).mean())
    assert told.interval[1] < 0 and told.p_value < 0.01


def test_what_cannot_be_compared_is_an_error(pair, tmp_path):
    with fails_with(RunError):
        comparison_page.render(pair[:1])
    make_run(tmp_path / "ages", task="regression", subjects=20)
    with fails_with(RunError):
        comparison_page.render([pair[0], tmp_path / "ages"])
    with fails_with(RunError):
        report.write_comparison([pair[0], tmp_path / "none"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_of_the_same_name_are_told_by_their_folders(pair, tmp_path):
    other = Path(shutil.copytree(pair[0], tmp_path / "copy"))
    assert "2 runs: first, copy" in comparison_page.render([pair[0], other]).html
    third = Path(shutil.copytree(pair[0], tmp_path / "study" / "copy"))
    page = comparison_page.render([other, third])
    assert f"2 runs: {tmp_path.name}/copy, study/copy" in page.html


def test_a_cross_validation_is_told_pooled_and_fold_by_fold(folds):
    page = crossval_page.render(folds)
    summary = json.loads((folds / "crossval.json").read_text())
    pooled = summary["pooled"]["auc"]
    low, high = pooled["interval"]
    assert f'<span class="value">{pooled["value"]:.2f}</span>' in page.html
    assert f"{low:.2f} to {high:.2f}" in page.html
    for part in ("3 folds, 2 seeds, 6 runs", "fold 2, seed 1", "Subjects were divided into 3 folds"):
        assert part in page.html
    assert len(page.tables["folds"].splitlines()) == 7
    strip = next(figure for figure in page.figures if figure.name == "folds-shares")
    assert sorted(v for name, _, v in strip.table.rows if name == "AUC") == sorted(
        run["metrics"]["auc"] for run in summary["per_fold"]
    )


def test_the_pooled_roc_curve_is_of_all_held_out_subjects(folds):
    roc = next(figure for figure in crossval_page.render(folds).figures if figure.name == "roc")
    kinds = [mark.kind for mark in roc.axes.marks if mark.shape == "line"]
    assert kinds.count("faint") == 6 and {"s1", "s2"} <= set(kinds)
    assert [words for _, words in roc.legend] == [
        "all folds, seed 0", "all folds, seed 1", "a fold", "chance"
    ]  # fmt: skip
    found = [read(folds / f"fold-{k}-seed-0").predictions["test"] for k in range(3)]
    truth = np.concatenate([f.true == 1 for f in found])
    score = np.concatenate([f.probabilities[:, 1] for f in found])
    rows = [row for row in roc.table.rows if row[0] == "all folds, seed 0"]
    area = np.trapezoid([row[2] for row in rows], [row[1] for row in rows])
    assert area == pytest.approx(roc_auc_score(truth, score), abs=1e-12)


def test_a_cross_validation_without_its_run_folders_is_told_from_its_summary(folds, tmp_path):
    shutil.copy(folds / "crossval.json", tmp_path)
    page = crossval_page.render(tmp_path)
    assert "Run folders that are not at hand" in page.html and "folds-shares" in page.html


@pytest.mark.parametrize("damage", ["{", "[]", '{"per_fold": 3}'])
def test_a_damaged_summary_is_an_error(tmp_path, damage):
    (tmp_path / "crossval.json").write_text(damage)
    with fails_with(RunError):
        report.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_regression_and_a_segmentation_are_cross_validated_too(tmp_path):
    for task, part in (("regression", "R²"), ("segmentation", "Mean Dice")):
        page = crossval_page.render(make_crossval(tmp_path / task, folds=2, seeds=1, task=task))
        assert part in page.html and "roc" not in [figure.name for figure in page.figures]


def test_the_command_writes_comparisons_where_asked(pair, tmp_path):
    app = typer.Typer()
    app.command()(command)
    run = CliRunner().invoke(app, [*map(str, pair), "--out", str(tmp_path / "c"), "--json"])
    assert json.loads(run.stdout) == {"report": str(tmp_path / "c" / "report.html")}
    assert (tmp_path / "c" / "figures" / "roc.png").is_file()
    assert (tmp_path / "c" / "figures" / "metrics.csv").is_file()
    refused = CliRunner().invoke(app, [str(pair[0]), "--out", str(tmp_path / "d")])
    assert isinstance(refused.exception, RunError) and not (tmp_path / "d").exists()
