"""From too few subjects an interval is not to be had, and everything that shows figures says so."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cingulum.cli.inference import lines_of
from trainer.crossval import tables
from trainer.crossval.held_out import HeldOut
from trainer.explain.regions import RegionShares
from trainer.explain.regions import pooled as pooled_shares
from trainer.export.card import figures as card_figures
from trainer.metrics.classification import classification_metrics
from trainer.metrics.comparison import auc_difference, compare, stored_metrics
from trainer.metrics.regression import regression_metrics
from trainer.metrics.segmentation import segmentation_metrics
from trainer.metrics.subjects import LEAST, TOO_FEW, Subjects, mean_left_out
from trainer.metrics.tables import EvaluationTable
from trainer.report.judgement import told_interval
from trainer.run_folder.record import RunFolder

RNG = np.random.default_rng(3)


def metrics(true: np.ndarray, probabilities: np.ndarray) -> dict:
    """Of as many subjects as scans."""
    return classification_metrics(true, probabilities, ("NC", "AD"), names(len(true)))


def names(n: int) -> list[str]:
    return [f"s{k}" for k in range(n)]


def two_classes(per_class: int, *, perfect: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """True classes and probabilities."""
    true = np.arange(2 * per_class) % 2
    positive = np.where(true == 1, 0.8, 0.2) if perfect else RNG.uniform(0.1, 0.9, len(true))
    return true, np.stack([1 - positive, positive], axis=1)


def test_areas_of_four_subjects_have_no_interval_and_their_accuracy_a_wide_one():
    found = metrics(*two_classes(2, perfect=True))
    assert found["auc"] == 1.0
    assert found["auc_interval"] is None and found["pr_auc_interval"] is None
    low, high = found["accuracy_interval"]
    assert low < 0.6 and high == 1.0
    assert json.loads(json.dumps(found))["auc_interval"] is None


@pytest.mark.parametrize(("per_class", "there"), [(LEAST - 1, False), (LEAST, True)])
def test_the_least_number_holds_for_the_smallest_class(per_class, there):
    true, p = two_classes(per_class)
    more, q = np.zeros(30, int), RNG.dirichlet((1, 1), 30)
    found = metrics(np.r_[true, more], np.concatenate([p, q]))
    assert (found["auc_interval"] is not None) == there


def test_areas_without_a_mistake_have_no_interval_however_many_there_are():
    assert metrics(*two_classes(40, perfect=True))["auc_interval"] is None
    people = Subjects.named(names(100))
    assert mean_left_out(people, np.full(100, 0.7)).interval("share") is None
    assert mean_left_out(people, RNG.uniform(size=100)).interval("share") is not None


def test_numbers_and_maps_of_few_have_no_interval():
    four, five = RNG.normal(size=4), RNG.normal(size=5)
    assert regression_metrics(four, four + 1 + four**2, names(4))["mae_interval"] is None
    assert regression_metrics(five, five + 1 + five**2, names(5))["mae_interval"] is not None
    dice = {"grey": np.array([0.8, 0.9, 0.7, 0.6])}
    found = segmentation_metrics(dice, dice, names(4))
    assert found["dice_interval"] is None and found["per_class"]["grey"]["dice_interval"] is None


def test_pooled_figures_of_few_subjects_have_no_interval():
    true, p = two_classes(2)
    lines = np.arange(4)
    found = HeldOut(
        "classification", ("NC", "AD"), lines, lines.astype(str), true, ("p_NC", "p_AD"), p[None],
        np.zeros((1, 4), int), (), ()
    )  # fmt: skip
    said = tables.pooled(found)
    assert said["auc"]["interval"] is None and said["balanced_accuracy"]["interval"] is None
    assert said["accuracy"]["interval"] is not None


def test_differences_of_few_have_neither_interval_nor_p(tmp_path):
    true, p = two_classes(2)
    rows, people = np.arange(4), tuple("abcd")
    tables = [
        EvaluationTable(
            "classification", ("NC", "AD"), rows, people, ("",) * 4, true, values, tmp_path / name, "x"
        )
        for name, values in (("one", p), ("two", p[:, ::-1].copy()))
    ]
    auc = next(pair for pair in compare(tables)["comparisons"] if pair["metric"] == "auc")
    assert auc["difference"] is not None
    assert auc["interval"] is None and auc["p_value"] is None
    assert auc_difference(true, p, p[:, ::-1], people) is None


def test_shares_of_few_maps_have_no_interval():
    shares = [RegionShares(str(k), 0.2 + k / 10, 0.1, 0.05) for k in range(4)]
    assert pooled_shares(shares)["trained"] == {"mean": pytest.approx(0.35), "interval": None}


def test_what_shows_figures_says_that_there_is_no_interval():
    found = metrics(*two_classes(2, perfect=True))
    assert told_interval(found, "auc") == TOO_FEW
    assert told_interval(found, "accuracy") == "0.51 to 1.00"
    assert told_interval(found, "brier") == ""
    printed = "\n".join(lines_of(found))
    assert f"auc                 1.0000  ({TOO_FEW})" in printed
    assert "None" not in printed and "interval" in printed
    (auc, *_) = card_figures(found)
    assert auc == {"name": "ROC-AUC", "value": "1.000", "interval": TOO_FEW}


def test_a_card_of_an_older_run_has_intervals_by_subject_from_its_predictions(tmp_path):
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "config.yaml").write_text("name: made-up\n")
    (tmp_path / "result.json").write_text("{}")
    true, p = two_classes(20)
    lines = [f"{k},s{k // 5},{('NC', 'AD')[true[k]]},NC,{p[k, 0]},{p[k, 1]}" for k in range(40)]
    text = "row,subject,label,predicted,p_NC,p_AD\n" + "\n".join(lines) + "\n"
    (tmp_path / "evaluation" / "test.csv").write_text(text)
    folder, stored = RunFolder(tmp_path), {"n": 40, "auc": 0.5, "auc_interval": [0.4, 0.6]}
    again = stored_metrics(folder, "test", stored)
    assert (again["n"], again["subjects"]) == (40, 8)
    assert (
        again["auc_interval"]
        == classification_metrics(true, p, ("NC", "AD"), [f"s{k // 5}" for k in range(40)])["auc_interval"]
    )
    assert stored_metrics(folder, "test", {**stored, "subjects": 8})["auc_interval"] == [0.4, 0.6]
    (tmp_path / "evaluation" / "test.csv").unlink()
    assert stored_metrics(folder, "test", stored) == stored
