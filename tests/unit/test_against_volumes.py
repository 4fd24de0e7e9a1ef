"""A linear model that is ahead of the network is said to be, with what to try."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cingulum.cli.train import _summary
from trainer.report import against_volumes
from trainer.report.judge_classes import _verdict
from trainer.report.predictions import ClassPredictions


def told(tmp_path, network, linear):
    if linear is not None:
        (tmp_path / "baseline.json").write_text(json.dumps({"auc": linear}))
    (tmp_path / "config.yaml").write_text("name: some-run\nmodel: {name: resattnet18}\n")
    return against_volumes.linear_line(tmp_path, {"auc": network})


def test_the_terminal_says_that_the_linear_model_is_ahead_by_how_much_and_what_to_try(tmp_path):
    line = told(tmp_path, 0.76, 0.94)
    assert "AUC 0.940, ahead of the network by 0.180: try " in line
    assert "(model.name=small)" in line


def test_a_network_that_is_not_behind_is_given_no_advice(tmp_path):
    line = told(tmp_path, 0.94, 0.94)
    assert line.endswith("AUC 0.940, not above the network")
    assert "try" not in line


@pytest.mark.parametrize(("network", "linear"), [(0.9, None), (None, 0.9)])
def test_where_one_of_the_two_is_unknown_nothing_is_said(tmp_path, network, linear):
    assert told(tmp_path, network, linear) is None


def test_a_damaged_baseline_is_no_reason_to_fail(tmp_path):
    told(tmp_path, 0.9, 0.9)
    (tmp_path / "baseline.json").write_text("{")
    assert against_volumes.linear_line(tmp_path, {"auc": 0.9}) is None


def test_the_page_says_who_is_ahead_and_how_sure_that_is():
    assert "the volumes alone do better. Before this network is used, try a small" in against_volumes.judged(
        -0.18, -0.29, -0.07, {}
    )
    unsure = against_volumes.judged(-0.04, -0.1, 0.02, {})
    assert (
        "the linear model is ahead, on too few subjects to be sure of it. To catch up, try a small" in unsure
    )
    for better in (against_volumes.judged(0.04, -0.02, 0.1, {}), against_volumes.judged(0.1, 0.02, 0.2, {})):
        assert "try" not in better and "ahead" not in better


def test_the_verdict_of_a_page_compares_the_very_subjects():
    true = np.array([0, 1] * 30)
    chance = np.tile([[0.5, 0.5], [0.5, 0.5], [0.4, 0.6], [0.6, 0.4]], (15, 1))
    right = np.stack([1 - true, true], axis=1) * 0.8 + 0.1
    some = [f"sub-{row}" for row in range(60)]
    found = ClassPredictions(
        classes=("NC", "AD"), rows=np.arange(60), subjects=tuple(some), true=true, probabilities=chance
    )
    said = _verdict(
        found, {"auc": 0.5, "auc_interval": [0.4, 0.6]}, {row: list(right[row]) for row in range(60)}, {}
    )
    assert "the volumes alone do better. Before this network is used, try a small" in said


def test_what_a_run_does_already_is_not_advised():
    config = {
        "data": {"augment": {"shift": 1}},
        "model": {"name": "small"},
    }
    assert against_volumes.advice(config) == "try more subjects or epochs (docs/explanation/recipes.md)"
    config["data"] = {"augment": {"shift": 0, "affine": {"probability": 0.5}}}
    assert "data.augment.shift=1" not in against_volumes.advice(config)
    for model in ("tiny", {}), ("small", {"pool": "mean"}), ("small", {"normalisation": "batch"}):
        config["model"] = dict(zip(("name", "options"), model, strict=True))
        assert "(model.name=small)" in against_volumes.advice(config)


def test_the_last_lines_of_a_training_say_it(tmp_path):
    told(tmp_path, 0.76, 0.94)
    result = {"epochs": 3, "samples_per_second": 9.0, "test": {"auc": 0.76, "n": 72, "subjects": 40}}
    lines = _summary(tmp_path, result).splitlines()
    place = lines.index("held-out: AUC 0.760 on 72 scans of 40 subjects")
    assert "AUC 0.940, ahead of the network by 0.180: try " in lines[place + 1]
