"""Runs compared on the same subjects: `cingulum compare` on run folders with made-up numbers."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_up_run import make_run
from scipy.stats import chi2, ttest_1samp
from wording import fails_with

from cingulum.cli import app
from trainer.errors import RunError
from trainer.metrics import comparison, tables
from trainer.metrics.comparison import aligned, auc_difference, compare, holm
from trainer.metrics.subjects import Subjects


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> Path:
    """Run folders `good` and `poor`, on the same subjects with two classes, and `three` with three."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "good", skill=1.6, epochs=2)
    make_run(folder / "poor", skill=0.5, epochs=2)
    for name, skill in (("three", 2.0), ("three-poor", 0.5)):
        make_run(folder / name, skill=skill, epochs=2, classes=("NC", "MCI", "AD"))
    return folder


@pytest.fixture
def runs(originals, tmp_path) -> Path:
    """A copy to spoil."""
    return shutil.copytree(originals, tmp_path / "runs")


def rewrite(run: Path, change, header: list[str] | None = None) -> None:
    """Change the lines of a run's test table; `change` gives a line (a dict) or None."""
    path = run / "evaluation" / "test.csv"
    with path.open(newline="") as file:
        table = csv.DictReader(file)
        names, lines = header or list(table.fieldnames), [change(dict(line)) for line in table]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(line for line in lines if line is not None)


def write_table(run: Path, header: list[str], lines: list[list]) -> Path:
    """A finished run folder with nothing but a test table."""
    (run / "evaluation").mkdir(parents=True)
    (run / "config.yaml").write_text("name: made-up\n")
    (run / "result.json").write_text("{}")
    with (run / "evaluation" / "test.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    return run


def read(*runs: Path) -> list[tables.EvaluationTable]:
    return [tables.read(run, "test") for run in runs]


def compared(*runs: Path, **options) -> dict:
    return compare(aligned(read(*runs), **options)[0])


def stored(run: Path) -> dict:
    return json.loads((run / "evaluation" / "test.json").read_text())


def test_the_figures_of_a_run_are_those_of_its_own_evaluation(runs):
    found = compared(runs / "good", runs / "poor")
    assert (found["task"], found["n"], found["subjects"]) == ("classification", 32, 32)
    assert found["classes"] == ["NC", "AD"]
    for run in found["runs"]:
        own = stored(runs / run["run"])
        for name in ("n", "accuracy", "auc", "sensitivity", "confusion"):
            assert run["metrics"][name] == own[name]
        assert run["metrics"]["brier"] == pytest.approx(own["brier"], abs=1e-5)  # the table has six digits


def test_two_classes_are_compared_by_exchange_and_mcnemar_by_subject(runs):
    good, poor = read(runs / "good", runs / "poor")
    auc, accuracy = compared(runs / "good", runs / "poor")["comparisons"]
    expected = auc_difference(good.true, good.values, poor.values, good.subjects)
    assert (auc["difference"], auc["interval"]) == expected
    assert (auc["first"], auc["second"], auc["test"]) == ("good", "poor", "exchange by subject")
    assert auc["p_holm"] is None
    assert auc["p_value"] < 0.05
    right = [stored(runs / name)["accuracy"] for name in ("good", "poor")]
    assert accuracy["difference"] == pytest.approx(right[0] - right[1])
    assert accuracy["test"] == "McNemar by subject"


def of_hits(one: np.ndarray, other: np.ndarray) -> dict:
    """Compared accuracies of as many subjects as scans."""
    return comparison._of_hits(one, other, Subjects(np.arange(len(one))))


def test_mcnemar_counts_those_on_whom_just_one_run_is_right():
    one, other = np.zeros(40), np.zeros(40)
    one[:20], other[:10], other[20:22] = 1, 1, 1  # 10 right with the first alone, 2 with the second alone
    found = of_hits(one, other)
    assert found["difference"] == 8 / 40
    assert found["p_value"] == pytest.approx(ttest_1samp(one - other, 0).pvalue)
    assert found["p_value"] == pytest.approx(chi2.sf((10 - 2) ** 2 / (10 + 2), 1), rel=0.1)
    assert found["interval"] == pytest.approx([0.025645, 0.355308], abs=1e-6)  # 11 and 3 of 42
    same = of_hits(one, one)
    assert same["p_value"] == 1.0
    assert -same["interval"][0] == same["interval"][1] > 0.04  # no difference seen is not no difference


def test_the_interval_of_two_accuracies_holds_the_truth_about_as_often_as_it_says():
    held, rejected = 0, 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        common = rng.uniform(size=60) < 0.5  # easy ones, which both get right
        one, other = ((common | (rng.uniform(size=60) < share)).astype(float) for share in (0.6, 0.4))
        low, high = of_hits(one, other)["interval"]
        held += low <= 0.5 * (0.6 - 0.4) <= high
        same = [(common | (rng.uniform(size=60) < 0.5)).astype(float) for _ in range(2)]
        rejected += of_hits(*same)["p_value"] < 0.05
    assert 367 <= held <= 397  # 380, three standard deviations of 4.4 below; it holds a little more
    assert 7 <= rejected <= 33  # 20 and three of those


def test_three_classes_are_compared_as_two_are(runs):
    auc, accuracy = compared(runs / "three", runs / "three-poor")["comparisons"]
    assert (auc["test"], accuracy["test"]) == ("exchange by subject", "McNemar by subject")
    low, high = auc["interval"]
    assert 0 < low < auc["difference"] < high
    assert auc["p_value"] < 0.001
    same = compared(runs / "three", runs / "three")["comparisons"][0]
    assert (same["difference"], same["interval"], same["p_value"]) == (0.0, [0.0, 0.0], 1.0)


def test_more_than_two_runs_are_corrected_for_the_number_of_pairs(runs):
    shutil.copytree(runs / "good", runs / "again")
    found = compared(runs / "good", runs / "poor", runs / "again")["comparisons"]
    assert [(p["metric"], p["first"], p["second"]) for p in found] == [
        (metric, *pair)
        for metric in ("auc", "accuracy")
        for pair in (("good", "poor"), ("good", "again"), ("poor", "again"))
    ]
    for metric in ("auc", "accuracy"):
        family = [pair for pair in found if pair["metric"] == metric]
        assert [pair["p_holm"] for pair in family] == holm([pair["p_value"] for pair in family])
    assert found[0]["p_holm"] == pytest.approx(3 * found[0]["p_value"])


def test_holm_is_the_step_down_correction():
    # Holm 1979; as R's p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm").
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([None, 0.02, None]) == [None, 0.02, None]
    assert holm([]) == []


def test_the_order_of_lines_and_of_classes_does_not_count(runs):
    expected = compared(runs / "good", runs / "poor")
    names = ["row", "subject", "label", "predicted", "p_AD", "p_NC"]
    rewrite(runs / "poor", lambda line: line, names)
    path = runs / "poor" / "evaluation" / "test.csv"
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *lines[::-1]]) + "\n")
    assert tables.read(runs / "poor", "test").classes == ("AD", "NC")
    json.dumps(expected, allow_nan=False)
    # Sums in another order: all but the last digits.
    for pair, other in zip(
        expected["comparisons"], compared(runs / "good", runs / "poor")["comparisons"], strict=True
    ):
        assert pair["p_value"] == pytest.approx(other["p_value"], rel=1e-9)
        assert pair["difference"] == pytest.approx(other["difference"], rel=1e-9)


def test_different_subjects_are_refused_and_the_common_ones_compared_on_demand(runs):
    rewrite(runs / "poor", lambda line: None if int(line["row"]) < 20 else line)
    with fails_with(RunError) as refused:
        aligned(read(runs / "good", runs / "poor"))
    left = len(tables.read(runs / "poor", "test").rows)
    assert f"--common compares them on the {left} common scans" in refused.value.cure
    chosen, notes = aligned(read(runs / "good", runs / "poor"), common=True)
    assert chosen[0].subjects == chosen[1].subjects and len(chosen[0].subjects) == left < 32
    assert any(f"on the {left} common scans only" in note for note in notes)
    rewrite(runs / "poor", lambda line: line | {"subject": "x" + line["subject"]})
    with fails_with(RunError):
        aligned(read(runs / "good", runs / "poor"), common=True)


def test_with_another_shard_set_subjects_are_matched_by_name_and_a_note_says_so(runs):
    facts = json.loads((runs / "poor" / "run.json").read_text())
    facts["shards"]["content_hash"] = "another"
    (runs / "poor" / "run.json").write_text(json.dumps(facts))
    rewrite(runs / "poor", lambda line: line | {"row": 1000 - int(line["row"])})
    chosen, notes = aligned(read(runs / "good", runs / "poor"))
    assert chosen[0].subjects == chosen[1].subjects
    assert notes == ["The runs had different shard sets; subjects were matched by name."]
    assert compare(chosen)["n"] == 32


def test_scans_of_one_subject_are_matched_in_their_order(tmp_path):
    header = ["row", "subject", "target", "predicted"]
    one = write_table(tmp_path / "a", header, [[0, "s1", 60, 61], [1, "s1", 62, 60], [2, "s2", 70, 70]])
    two = write_table(tmp_path / "b", header, [[9, "s1", 62, 1], [8, "s2", 70, 2], [7, "s1", 60, 3]])
    chosen, _ = aligned(read(one, two))
    assert chosen[1].values[:, 0].tolist() == [3, 1, 2]
    more = write_table(tmp_path / "c", header, [[0, "s1", 60, 61], [2, "s2", 70, 70]])
    with fails_with(RunError):
        aligned(read(one, more))
    assert aligned(read(one, more), common=True)[0][0].subjects == ("s2",)  # which scan of s1 is not known


def test_scans_of_one_subject_are_matched_by_session_whatever_their_order(tmp_path):
    header = ["row", "subject", "session", "target", "predicted"]
    one = write_table(tmp_path / "a", header, [[0, "s1", "M00", 60, 61], [1, "s1", "M12", 62, 60]])
    two = write_table(tmp_path / "b", header, [[7, "s1", "M12", 62, 1], [8, "s1", "M00", 60, 3]])
    chosen, _ = aligned(read(one, two))
    assert chosen[1].values[:, 0].tolist() == [3, 1] and chosen[1].sessions == ("M00", "M12")
    more = write_table(tmp_path / "c", header, [[0, "s1", "M12", 62, 60]])
    with fails_with(RunError):
        aligned(read(one, more))
    assert aligned(read(one, more), common=True)[0][0].sessions == ("M12",)


def test_a_table_without_sessions_is_compared_with_one_that_has_them(tmp_path):
    header = ["row", "subject", "target", "predicted"]
    old = write_table(tmp_path / "a", header, [[0, "s1", 60, 61], [1, "s1", 62, 60], [2, "s2", 70, 70]])
    header = ["row", "subject", "session", "target", "predicted"]
    lines = [[0, "s1", "a", 60, 1], [1, "s1", "b", 62, 2], [2, "s2", "a", 70, 3]]
    chosen, _ = aligned(read(old, write_table(tmp_path / "b", header, lines)))
    assert chosen[0].sessions == ("", "", "") and chosen[1].values[:, 0].tolist() == [1, 2, 3]
    assert compare(chosen)["subjects"] == 2


def test_runs_that_disagree_on_the_truth_are_refused(runs):
    swap = {"NC": "AD", "AD": "NC"}
    rewrite(
        runs / "poor",
        lambda line: line | {"label": swap[line["label"]] if int(line["row"]) < 9 else line["label"]},
    )
    with fails_with(RunError):
        aligned(read(runs / "good", runs / "poor"))


def test_another_task_or_other_classes_are_refused(runs, tmp_path):
    with fails_with(RunError):
        aligned(read(runs / "good", runs / "three"))
    ages = write_table(tmp_path / "ages", ["row", "subject", "target", "predicted"], [[0, "s", 60, 61]])
    with fails_with(RunError):
        aligned(read(runs / "good", ages))


def ages(path: Path, error: float, seed: int) -> Path:
    rng = np.random.default_rng(0)
    true = rng.normal(70, 8, 60)
    said = true + np.random.default_rng(seed).normal(0, error, 60)
    lines = [[i, f"s{i}", f"{t:.6g}", f"{p:.6g}"] for i, (t, p) in enumerate(zip(true, said, strict=True))]
    return write_table(path, ["row", "subject", "target", "predicted"], lines)


def test_predicted_ages_are_compared_by_their_absolute_errors(tmp_path):
    found = compared(ages(tmp_path / "near", 3, 1), ages(tmp_path / "far", 6, 2))
    (pair,) = found["comparisons"]
    errors = [run["metrics"]["mae"] for run in found["runs"]]
    assert pair["metric"] == "mae" and found["classes"] == []
    assert pair["difference"] == pytest.approx(errors[0] - errors[1])
    assert pair["interval"][1] < 0 and pair["p_value"] < 0.05


def test_two_equally_good_runs_are_told_apart_as_seldom_as_promised(tmp_path):
    rejected = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        errors = np.abs(rng.normal(0, 4, (2, 60)))
        people = Subjects(np.arange(60))
        rejected += comparison._of_means(errors[0] - errors[1], people)["p_value"] < 0.05
    assert 1 <= rejected <= 19  # 10 of 200, three standard deviations of 3.1


def test_segmentations_are_compared_by_mean_dice_and_absent_classes_do_not_count(tmp_path):
    header = ["row", "subject", "dice_grey", "dice_white", "hd95_grey", "hd95_white"]
    lines = [
        [0, "a", 0.9, 0.8, 1, 1],
        [1, "b", 0.8, "", 2, ""],
        [2, "c", 0.7, 0, 2, ""],
        [3, "d", "", "", "", ""],
    ]
    worse = [
        [row, name, *(v and v / 2 for v in dice), *rest]
        for row, name, *dice, _, _ in lines
        for rest in [[1, 1]]
    ]
    found = compared(write_table(tmp_path / "a", header, lines), write_table(tmp_path / "b", header, worse))
    assert found["task"] == "segmentation" and found["classes"] == ["grey", "white"]
    (pair,) = found["comparisons"]
    assert pair["difference"] == pytest.approx((0.85 + 0.8 + 0.35) / 3 / 2)
    white = found["runs"][0]["metrics"]["per_class"]["white"]
    assert (white["n"], white["without_surface"]) == (2, 1)
    json.dumps(found, allow_nan=False)
    turned = [[line[place] for place in (0, 1, 3, 2, 5, 4)] for line in [header, *lines]]
    table = tables.read(write_table(tmp_path / "c", turned[0], turned[1:]), "test")
    assert table.classes == ("white", "grey")
    again = table.with_classes(("grey", "white"))
    np.testing.assert_array_equal(again.values, tables.read(tmp_path / "a", "test").values)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: (run / "evaluation" / "test.csv").unlink(), "test.csv: is missing"),
        (lambda run: (run / "result.json").unlink(), "not finished"),
        (lambda run: (run / "config.yaml").unlink(), "is not a run folder"),
        (lambda run: rewrite(run, lambda line: None), "no subjects"),
        (lambda run: rewrite(run, lambda line: line | {"p_AD": "often"}), "often"),
        (lambda run: rewrite(run, lambda line: line | {"p_AD": "nan"}), "not finite"),
        (lambda run: rewrite(run, lambda line: line | {"p_AD": ""}), "damaged"),
        (lambda run: rewrite(run, lambda line: line | {"label": "XX"}), "XX"),
        (lambda run: (run / "evaluation" / "test.csv").write_text("a,b\n1,2\n"), "columns are a, b"),
        (lambda run: (run / "evaluation" / "test.csv").write_bytes(b"\xff\xfe\x00"), "damaged"),
    ],
)
def test_a_run_that_cannot_be_compared_is_told_with_a_cure(runs, capsys, spoil, said):
    spoil(runs / "poor")
    assert app.run(["compare", str(runs / "good"), str(runs / "poor")]) == 2
    told = capsys.readouterr().err
    assert said in told and "poor" in told and len(told.splitlines()) == 2  # what is wrong, and the cure


def test_a_line_that_is_cut_short_is_damage_and_no_missing_figure(tmp_path):
    header = ["row", "subject", "dice_grey", "hd95_grey"]
    run = write_table(tmp_path / "a", header, [[0, "a", 0.9, 1], [1, "b", 0.8]])
    with fails_with(RunError):
        tables.read(run, "test")


def test_the_command_shows_figures_differences_and_notes(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    shutil.copytree(runs / "good", runs / "again")
    names = [str(runs / name) for name in ("good", "poor", "again")]
    assert app.run(["compare", *names]) == 0
    shown = capsys.readouterr().out
    for text in (
        "32 scans of 32 subjects",
        "AUC: good - poor",
        "p, Holm",
        "exchange",
        "McNemar",
        f"{stored(runs / 'good')['auc']:.3f}",
    ):
        assert text in shown
    assert app.run(["compare", *names[:2], "--split", "validation", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["split"] == "validation" and found["n"] == 10 and found["notes"] == []
    assert app.run(["compare", names[0]]) == 2
    assert "needs two or more runs, not one" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["regression", "segmentation"])
def test_the_command_shows_other_tasks(tmp_path, capsys, kind):
    if kind == "regression":
        runs, texts = [ages(tmp_path / name, 3, i) for i, name in enumerate("ab")], ("MAE", "R2", "Bias")
    else:
        header, lines = ["row", "subject", "dice_grey", "hd95_grey"], [[0, "s", 0.9, ""], [1, "t", 0.8, 2]]
        runs = [write_table(tmp_path / name, header, lines) for name in "ab"]
        texts = ("Dice grey", "HD95 grey (mm)", "2.000")
    assert app.run(["compare", *map(str, runs)]) == 0
    shown = capsys.readouterr().out
    for text in texts:
        assert text in shown


def test_runs_of_the_same_name_are_told_apart_by_their_paths(runs, tmp_path):
    other = shutil.copytree(runs / "good", tmp_path / "elsewhere" / "good")
    found = compared(runs / "good", other, runs / "poor")
    assert [run["run"] for run in found["runs"]] == [str(runs / "good"), str(other), "poor"]
