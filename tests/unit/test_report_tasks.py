"""The report of a regression and of a segmentation, and which subjects a report shows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_up_run import make_run, shells

from trainer.metrics.regression import regression_metrics
from trainer.report import case_maps, cases, predictions, slices
from trainer.report.predictions import ClassPredictions, Overlaps, Values
from trainer.report.run_page import render
from trainer.report.story import read


@pytest.fixture(scope="module")
def ages(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "ages", task="regression", subjects=60)


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "maps", task="segmentation", subjects=40)


def test_a_regression_is_told_in_years(ages):
    page = render(read(ages))
    found = predictions.read(ages / "evaluation" / "test.csv", "regression")
    told = regression_metrics(found.true, found.predicted, found.subjects)
    assert f'<span class="name">MAE, years</span><span class="value">{told["mae"]:.2f}</span>' in page.html
    assert "Age regression" in page.html and "Bland-Altman" in page.html and "AUC" not in page.html
    names = [figure.name for figure in page.figures]
    assert names[:2] == ["scatter", "bland-altman"] and "learning-curve-error" in names


def test_limits_of_agreement_are_mean_and_196_standard_deviations(ages):
    figures = {figure.name: figure for figure in render(read(ages)).figures}
    differences = np.array([row[2] for row in figures["bland-altman"].table.rows])
    low = differences.mean() - 1.96 * differences.std(ddof=1)
    high = differences.mean() + 1.96 * differences.std(ddof=1)
    words = [words for _, words in figures["bland-altman"].legend]
    assert words == [f"bias {differences.mean():+.2f}", f"limits of agreement {low:+.2f} to {high:+.2f}"]


def test_a_segmentation_is_told_class_by_class(maps):
    page = render(read(maps))
    for part in ("Dice, shell", "HD95, core", "Mean Dice", "Outlines:", "The lowest Dice first."):
        assert part in page.html
    assert [figure.name for figure in page.figures][:2] == ["dice", "hd95"]
    assert "background, shell, core" in page.html


def test_a_class_that_one_map_lacks_is_told(maps, tmp_path):
    run = Path(shutil.copytree(maps, tmp_path / "run"))
    path = run / "evaluation" / "test.csv"
    lines = path.read_text().splitlines()
    row, subject, *_ = lines[1].split(",")
    path.write_text("\n".join([lines[0], f"{row},{subject},0.9,0.0,1.5,", *lines[2:]]) + "\n")
    assert "lacks core in 1 scan: there the distances know of no failure" in render(read(run)).html


def test_outlines_are_those_of_the_true_and_the_predicted_map(maps):
    story = read(maps)
    found = story.predictions["test"]
    (i, why), *_ = cases.worst(found)
    assert why == "lowest Dice" and found.mean_dice[i] == found.mean_dice.min()
    (case,) = cases.pictures(story, found, [(i, why)])
    row = int(found.rows[i])
    volume, true = story.shards.read(row), story.shards.read_map(row)
    predicted = case_maps.read(maps, row, true.shape)
    at = slices.where_they_differ(true, predicted)
    assert case.picture == slices.png(slices.with_contours(volume, (2.0, 2.0, 2.0), true, predicted, at))
    assert case.picture != slices.png(slices.with_contours(volume, (2.0, 2.0, 2.0), true, true, at))


def test_the_slices_shown_are_those_with_most_differences():
    true = np.zeros((8, 9, 10), np.uint8)
    predicted = true.copy()
    predicted[5, 1:4, 7] = 1
    assert slices.where_they_differ(true, predicted) == (5, 1, 7)
    assert slices.where_they_differ(true, true) == (4, 4, 5)


def test_contours_lie_where_labels_change():
    labels = np.zeros((16, 16, 16), np.uint8)
    labels[8:, :, :] = 1
    grey = np.zeros((16, 16, 16, 1))
    picture = slices.with_contours(grey, (1.0, 1.0, 1.0), None, labels, least=16)
    coronal = picture[:, 16 + 6 + 3 : 16 + 6 + 3 + 16]  # the second plane: the first axis points right
    marked = (coronal == slices.PREDICTED_COLOUR).all(axis=2)
    assert set(np.flatnonzero(marked.all(axis=0))) == {7, 8} and marked.sum() == 2 * 16


def test_a_predicted_map_comes_back_and_a_damaged_one_is_left_out(tmp_path):
    path = case_maps.write(tmp_path, 7, shells(7), np.eye(4))
    assert np.array_equal(case_maps.read(tmp_path, 7, (16, 16, 16)), shells(7))
    assert case_maps.read(tmp_path, 7, (8, 8, 8)) is None
    path.write_bytes(path.read_bytes()[:50])
    assert case_maps.read(tmp_path, 7, (16, 16, 16)) is None
    assert case_maps.read(tmp_path, 8, (16, 16, 16)) is None


def test_a_predicted_map_with_any_byte_wrong_never_stops_the_report(tmp_path):
    path = case_maps.write(tmp_path, 7, shells(7), np.eye(4))
    whole, left_out = path.read_bytes(), 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        left_out += case_maps.read(tmp_path, 7, (16, 16, 16)) is None
    assert left_out > len(whole) / 2


def test_maps_are_wanted_of_the_subjects_that_are_shown(maps, ages):
    found = read(maps).predictions["test"]
    wanted = cases.rows_with_maps(maps)
    assert len(wanted) == 8 and wanted[0] == found.rows[found.mean_dice.argmin()]
    assert cases.rows_with_maps(ages) == []


def test_the_worst_of_a_classification_are_the_surest_mistakes():
    sure = np.array([0.9, 0.8, 0.95, 0.7, 0.99, 0.85, 0.55, 0.51])
    called = np.array([0, 0, 1, 1, 0, 1, 0, 1])
    true = np.array([0, 0, 1, 1, 1, 0, 1, 1])
    shares = np.stack([np.where(called == 0, sure, 1 - sure), np.where(called == 1, sure, 1 - sure)], axis=1)
    found = ClassPredictions(("NC", "AD"), np.arange(8), tuple("abcdefgh"), true, shares)
    assert cases.worst(found) == [(4, "surest mistake"), (5, "another sure mistake"), (6, "a mistake")]
    assert [i for i, _ in cases.typical(found)] == [0, 2, 7, 3]


def test_a_subject_of_many_scans_is_among_the_worst_once_with_its_session():
    subjects, sessions = tuple("aaaab"), ("M00", "M06", "M12", "", "M00")
    errors = np.array([3.0, 9.0, 1.0, 2.0, 5.0])
    found = Values(np.arange(5), subjects, np.full(5, 70.0), 70 + errors, sessions)
    assert cases.worst(found) == [(1, "largest error"), (4, "large error")]
    assert found.names == ("a, M00", "a, M06", "a, M12", "a, row 3", "b")
    assert found.people == 2


def test_a_report_says_scans_and_subjects_where_each_is_meant(maps, tmp_path):
    run = Path(shutil.copytree(maps, tmp_path / "run"))
    path = run / "evaluation" / "test.csv"
    header, *lines = [line.split(",") for line in path.read_text().splitlines()]
    assert header[:2] == ["row", "subject"]
    twice = [[row, f"s{k // 2}", f"M{k % 2}", *rest] for k, (row, _, *rest) in enumerate(lines)]
    table = [["row", "subject", "session", *header[2:]], *twice]
    path.write_text("".join(",".join(line) + "\n" for line in table))
    html = render(read(run)).html
    n = len(lines)
    assert f"judged on {n} held-out\n    scans of {n // 2} subjects" in html
    assert f"over {n} scans of {n // 2} subjects" in html  # methods
    assert "Session</button>" in html and "The worst scan of a subject." in html
    assert "bootstrap" not in html


def test_the_worst_of_a_regression_are_the_largest_errors_in_either_direction():
    found = Values(np.arange(4), tuple("abcd"), np.array([70.0, 70, 70, 70]), np.array([71.0, 60, 78, 70]))
    assert [i for i, _ in cases.worst(found)] == [1, 2, 0, 3]
    assert cases.typical(found) == [(3, "smallest error"), (2, "median error")]


def test_a_class_in_neither_map_does_not_count_in_the_mean():
    dice = np.array([[0.8, np.nan], [0.5, 0.7], [np.nan, np.nan]])
    found = Overlaps(("a", "b"), np.arange(3), tuple("xyz"), dice, np.full((3, 2), np.nan))
    assert found.mean_dice[:2].tolist() == [0.8, 0.6] and np.isnan(found.mean_dice[2])
    # Nobody's class is no failure: that subject comes last.
    assert [i for i, _ in cases.worst(found)] == [1, 0, 2]


@pytest.mark.parametrize("task", ["regression", "segmentation"])
@pytest.mark.parametrize("damage", ["row,subject\n1,a\n", "", "row,subject,target,predicted\n1,a,nan,3\n"])
def test_a_damaged_table_of_predictions_is_a_note(ages, tmp_path, task, damage):
    run = Path(shutil.copytree(ages, tmp_path / "run"))
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "task": {"name": task}}))
    (run / "evaluation" / "test.csv").write_text(damage)
    story = read(run)
    assert "test" not in story.predictions and any("test.csv is damaged" in note for note in story.notes)
    render(story)
