"""Metrics and tables of predictions."""

from __future__ import annotations

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest

from trainer.run_folder.record import RunFolder
from trainer.runs import split_predictions
from trainer.runs.session import Clock
from trainer.tasks.classification import Classification, log_softmax
from trainer.tasks.segmentation import Segmentation

CLASSES = ("AD", "NC")
TASK = Classification(CLASSES, ("AD", "NC"))


def test_probabilities_of_huge_logits_do_not_overflow():
    shares = np.exp(log_softmax(np.array([[1e4, 0.0], [-1e4, 0.0]])))
    np.testing.assert_allclose(shares, [[1, 0], [0, 1]], atol=1e-12)


def test_without_weights_the_loss_is_the_mean_cross_entropy():
    logits, targets = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([0, 0, 1])
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.log([shares[0, 0], shares[1, 0], shares[2, 1]]).mean()
    judged = TASK.metrics(targets, logits)
    assert (judged["loss"], judged["cross_entropy"]) == (pytest.approx(expected), pytest.approx(expected))


def test_the_table_and_the_metrics_are_written(tmp_path):
    found = SimpleNamespace(
        rows=np.array([5, 9]), targets=np.array([0, 1]), outputs=np.array([[3.0, 0.0], [1.0, 0.0]], "float32")
    )
    shards = SimpleNamespace(
        volumes={
            5: SimpleNamespace(subject="sub-5", session="M12"),
            9: SimpleNamespace(subject="a,b", session=None),
        }
    )
    data = SimpleNamespace(task=TASK, shards=shards)
    metrics = split_predictions.write(RunFolder(tmp_path), "test", found, data)
    with (tmp_path / "evaluation" / "test.csv").open() as file:
        first, second = csv.DictReader(file)
    assert first == {
        "row": "5", "subject": "sub-5", "session": "M12", "label": "AD", "predicted": "AD",
        "p_AD": "0.952574127", "p_NC": "0.0474258732",
    }  # fmt: skip
    assert (second["subject"], second["session"], second["label"]) == ("a,b", "", "NC")
    stored = json.loads((tmp_path / "evaluation" / "test.json").read_text())
    assert (stored["n"], stored["subjects"]) == (2, 2)
    assert stored["accuracy"] == metrics["accuracy"] == 0.5 and stored["classes"] == list(CLASSES)


def test_names_of_classes_are_a_list_beside_the_figures_of_each_class(tmp_path):
    task = Segmentation(("background", "grey"), (1.0, 1.0, 1.0), 1)
    outputs = np.array([[0.3, 0.8, 2.0, 3.0, 500.0, 520.0]], "float32")
    found = SimpleNamespace(rows=np.array([0]), targets=np.zeros(1), outputs=outputs)
    shards = SimpleNamespace(volumes=[SimpleNamespace(subject="a", session=None, registration=None)])
    split_predictions.write(RunFolder(tmp_path), "test", found, SimpleNamespace(task=task, shards=shards))
    stored = json.loads((tmp_path / "evaluation" / "test.json").read_text())
    assert stored["classes"] == ["background", "grey"] and list(stored["per_class"]) == ["grey"]
    assert stored["per_class"]["grey"]["hd95"] == 2.0


def test_the_first_step_of_a_session_is_not_timed():
    clock = Clock((10.0, 2.0))
    clock.add_step(8, 100.0)
    assert clock.timed == (10.0, 2.0) and clock.epoch_speed == 5.0
    clock.add_step(8, 1.0)
    assert clock.timed == (18.0, 3.0) and clock.speed == 6.0 and clock.epoch_speed == 8.0
    clock.start_epoch()
    clock.add_step(8, 4.0)
    assert clock.epoch_speed == 2.0


def test_an_epoch_takes_as_long_as_the_steps_of_the_slowest_rank():
    clock = Clock((10.0, 2.0))
    clock.add_step(8, 100.0)  # the first step, not timed
    clock.add_step(8, 1.0)
    assert clock.epoch_step_seconds == 1.0
    clock.settle_epoch(4.0)
    assert clock.timed == (18.0, 6.0) and clock.epoch_speed == 2.0 and clock.speed == 3.0
    clock.start_epoch()
    clock.add_step(8, 2.0)
    assert clock.epoch_step_seconds == 2.0 and clock.epoch_speed == 4.0


def test_waiting_for_input_is_counted_by_epoch_and_as_a_share_of_the_session():
    clock = Clock((10.0, 2.0))
    assert clock.input_wait_share == 0
    clock.add_step(8, 100.0, 50.0)  # the first step, not timed
    clock.add_step(8, 1.0, 0.25)
    assert (clock.epoch_input_wait, clock.input_wait_share) == (0.25, 0.25)
    clock.start_epoch()
    clock.add_step(8, 3.0, 0.75)
    clock.add_step(8, 1.0)
    assert (clock.epoch_input_wait, clock.input_wait_share) == (0.75, 0.2)
