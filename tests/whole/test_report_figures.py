"""Figures as files: the numbers that were plotted as CSV, the picture at 300 dots per inch."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_run import make_run
from PIL import Image
from sklearn.metrics import auc, average_precision_score

from trainer import report
from trainer.report import charts_classes, charts_training, paper, predictions
from trainer.report.axes import Axes
from trainer.report.figure import Figure, save, table
from trainer.report.run_page import render
from trainer.report.story import read


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "made-up", subjects=60)


@pytest.fixture
def own_run(run, tmp_path):
    """A copy, for tests that change files."""
    return Path(shutil.copytree(run, tmp_path / run.name))


@pytest.fixture(scope="module")
def found(run):
    return predictions.read(run / "evaluation" / "test.csv", "classification")


def rows_of(figure: Figure) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(figure.table.csv())))


def test_every_chart_of_the_page_is_beside_it_as_png_and_csv(run):
    html = report.write(run).read_text()
    shown = set(re.findall(r'<figure id="figure-([^"]+)"', html))
    assert shown >= {
        "roc",
        "precision-recall",
        "calibration",
        "confusion",
        "learning-curve-loss",
        "learning-curve-cross-entropy",
        "throughput",
    }
    for name in shown:
        with Image.open(run / "figures" / f"{name}.png") as picture:
            assert abs(picture.info["dpi"][0] - 300) < 1 and min(picture.size) > 300
        assert len((run / "figures" / f"{name}.csv").read_text().splitlines()) > 1
    assert (run / "figures" / "cohort.csv").is_file() and (run / "figures" / "subgroups.csv").is_file()
    assert len(list((run / "figures").glob("worst-*.png"))) == html.count(
        'class="mark wrong">✗ wrong</span></p>'
    )


def test_pictures_of_fewer_mistakes_replace_those_of_more(run, tmp_path):
    (run / "figures").mkdir(exist_ok=True)
    (run / "figures" / "worst-99.png").write_bytes(b"of an earlier report")
    report.write(run)
    assert not (run / "figures" / "worst-99.png").exists()


def test_the_same_figure_gives_the_same_bytes(tmp_path):
    axes = Axes((0, 1), (0, 1), x_label="x", y_label="y", title="t")
    axes.line([(0, 0), (1, 1)], "s1")
    figure = Figure("f", "F", axes, table(["x"], [[1]]), (("s1", "a line"),))
    for folder in ("a", "b"):
        save([figure], tmp_path / folder)
    assert (tmp_path / "a" / "f.png").read_bytes() == (tmp_path / "b" / "f.png").read_bytes()
    assert not list((tmp_path / "a").glob(".*"))


def test_the_area_under_the_plotted_roc_curve_is_the_auc(run, found):
    told = json.loads((run / "result.json").read_text())["test"]
    rows = rows_of(charts_classes.roc(charts_classes.curves_of(found, {}, "network")))
    x, y = ([float(row[key]) for row in rows] for key in ("false_positive_rate", "true_positive_rate"))
    assert auc(x, y) == pytest.approx(told["auc"], abs=1e-12)


def test_the_area_under_the_drawn_precision_recall_steps_is_the_average_precision(found):
    figure = charts_classes.precision_recall(charts_classes.curves_of(found, {}, "network"))
    (steps,) = (mark.points for mark in figure.axes.marks if mark.kind == "s1")
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(steps))
    truth, score = found.true == 1, found.probabilities[:, 1]
    assert area == pytest.approx(average_precision_score(truth, score), abs=1e-12)


def test_curves_need_both_kinds_of_subjects():
    nobody = [("network", np.zeros(4, bool), np.linspace(0, 1, 4), "s1")]
    assert charts_classes.roc(nobody) is None and charts_classes.precision_recall(nobody) is None


def test_the_confusion_matrix_is_counted_and_shaded_by_its_row():
    figure = charts_classes.confusion([[3, 1], [0, 4]], ("NC", "AD"))
    assert figure.table.rows == (("NC", 3, 1), ("AD", 0, 4))
    boxes = [mark for mark in figure.axes.marks if mark.shape == "bar"]
    assert [round(box.opacity, 4) for box in boxes] == [0.4625, 0.1875, 0.05, 0.6]
    assert [box.kind for box in boxes] == ["s1", "s2", "s2", "s1"]


NAMES_OF_25 = (
    "mild_cognitive_impairment",
    "cognitively normal person",
    "AlzheimersDiseaseDementiaX",
    "WWWWWWWWWWWWWWWWWWWWWWWWW",
)


@pytest.mark.parametrize("classes", [NAMES_OF_25[:2], NAMES_OF_25, ("NC", "MCI", "AD")])
def test_long_class_names_neither_overlap_nor_are_cut(monkeypatch, tmp_path, classes):
    count = len(classes)
    figure = charts_classes.confusion(np.arange(count**2).reshape(count, count).tolist(), classes)
    plots: list[Any] = []
    labelled = paper.Plot.set_ylabel

    def keep(plot, *arguments, **options):
        plots.append(plot)
        return labelled(plot, *arguments, **options)

    monkeypatch.setattr(paper.Plot, "set_ylabel", keep)
    paper.write_png(figure.axes, figure.legend, tmp_path / "confusion.png")
    (plot,) = plots
    plot.figure.draw_without_rendering()  # savefig put the labels back where they were before it
    words = [*plot.get_xticklabels(), *plot.get_yticklabels(), *plot.texts]
    words += [plot.xaxis.label, plot.yaxis.label]
    shown = ["".join(word.get_text().split()) for word in plot.get_xticklabels()]
    assert shown == ["".join(name.split()) for name in classes], "nothing of a name is left out"
    boxes = [word.get_window_extent() for word in words]
    for place, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[place + 1 :])


def test_only_curves_that_were_recorded_are_drawn(run):
    epochs = [{"epoch": 1, "loss": 0.5, "val_dice": 0.4}, {"epoch": 2, "loss": float("nan"), "val_dice": 0.6}]
    figures = {figure.name: figure for figure in charts_training.learning_curves(epochs, None)}
    assert set(figures) == {"learning-curve-loss", "learning-curve-dice"}
    assert figures["learning-curve-dice"].table.rows == ((1, 0.4), (2, 0.6))
    assert figures["learning-curve-loss"].table.rows == ((1, 0.5), (2, None))
    assert [words for _, words in figures["learning-curve-dice"].legend] == ["validation"]


def test_what_is_not_the_trained_function_has_a_chart_of_its_own(run):
    epochs = [{"epoch": n, "loss": 0.5, "val_loss": 0.4, "val_cross_entropy": 0.4} for n in (1, 2)]
    figures = charts_training.learning_curves(epochs, None)
    assert [figure.name for figure in figures] == ["learning-curve-loss"]  # it is the cross entropy
    epochs[1]["val_cross_entropy"] = 0.6
    loss, entropy = charts_training.learning_curves(epochs, None)
    assert (loss.table.header, entropy.table.header) == (
        ("epoch", "loss", "val_loss"), ("epoch", "val_cross_entropy")
    )  # fmt: skip


def test_captions_say_what_is_trained_on_what_and_which_curve_chooses_the_epoch(own_run):
    config = (own_run / "config.yaml").read_text()
    changes = "train: {optimizer: {ema: 0.9}, label_smoothing: 0.1, "
    (own_run / "config.yaml").write_text(config.replace("train: {", changes))
    loss = next(figure for figure in render(read(own_run)).figures if figure.name == "learning-curve-loss")
    assert loss.caption == (
        "The function that was trained: cross entropy with labels smoothed by 0.1 and classes weighted "
        "equally; penalties of layers are not in it. Training: mean over an epoch's samples, as the weights "
        "changed (augmented). Validation: after the epoch, with averaged weights. The best epoch is chosen "
        "by val_loss."
    )


def test_the_best_epoch_is_marked(run):
    figure = charts_training.learning_curves(read(run).epochs, 7)[0]
    assert [mark.points[0][0] for mark in figure.axes.marks if mark.kind == "best"] == [7]


def test_the_page_draws_the_same_marks_as_the_file(run):
    page = render(read(run))
    roc = next(figure for figure in page.figures if figure.name == "roc")
    assert roc.axes.svg() in page.html
