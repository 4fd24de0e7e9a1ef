"""The report: one file that needs nothing else, from whole, partial and damaged run folders."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_up_run import make_run
from typer.testing import CliRunner
from wording import fails_with

from trainer import report
from trainer.errors import RunError
from trainer.report import slices
from trainer.report.axes import Axes, ticks
from trainer.report.facts import ranges
from trainer.report.run_page import render
from trainer.report.story import read

pytestmark = pytest.mark.slow

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Checker(HTMLParser):
    """Collects addresses and text, and notes tags that are closed in the wrong order."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for key, value in attributes if key in ("src", "href", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(folder: Path) -> Checker:
    """The page of a run; `report.write` would also draw every figure as PNG, which takes seconds."""
    checker = Checker()
    checker.feed(render(read(folder)).html)
    assert not checker.wrong and not checker.open
    return checker


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "made-up")


@pytest.fixture
def run(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "run"))


def test_a_finished_run_is_told_whole(run):
    text = page(run).text
    for part in (
        "NC vs AD",
        "judged on 32 held-out scans",
        "Linear on volumes, AUC",
        "ROC curve",
        "Confusion matrix",
        "Calibration",
        "Precision and recall",
        "Subgroups",
        "Worst cases",
        "Example scans",
        "Loss",
        "Throughput",
        "21.4 samples/s",
        "Who is in which split",
        "node-a",
        "4 min 12 s",
        "2,105,346",
        "horovod",
        "mpirun -np 4 cingulum train made-up.yaml",
        "All held-out scans",
    ):
        assert part in text


def test_the_figures_are_those_of_the_predictions(run):
    result = json.loads((run / "result.json").read_text())["test"]
    html = render(read(run)).html
    assert f'<span class="value">{result["auc"]:.2f}</span>' in html
    assert f'<span class="value">{result["accuracy"]:.2f}</span>' in html
    counts = re.findall(r'<td class="(?:hit|miss)"[^>]*>\s*<b>(\d+)</b>', html)
    assert [int(n) for n in counts] == [n for row in result["confusion"] for n in row]


def test_the_page_asks_for_nothing_else(run):
    html = render(read(run)).html
    checker = page(run)
    assert checker.addresses
    assert all(address.startswith(("data:", "#")) for address in checker.addresses)
    assert "url(" not in html and "@import" not in html and "http" not in html


def test_a_report_is_the_same_when_made_again(run):
    assert report.write(run).read_bytes() == report.write(run).read_bytes()
    assert not [path.name for path in run.iterdir() if "partial" in path.name]


@pytest.mark.parametrize(
    "missing",
    [
        ["result.json"],
        ["run.json"],
        ["metrics.jsonl"],
        ["baseline.json"],
        ["evaluation/test.csv"],
        ["evaluation/test.csv", "evaluation/validation.csv"],
        ["result.json", "run.json", "metrics.jsonl", "baseline.json", "evaluation"],
    ],
)
def test_what_is_missing_is_left_out(run, missing):
    for name in missing:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    text = page(run).text
    assert ("not finished" in text or "has not finished" in text) == ("result.json" in missing)
    assert ("Linear on volumes" in text) == (
        "baseline.json" not in missing and not any("test" in m or m == "evaluation" for m in missing)
    )
    assert ("flatter the network" in text) == (missing == ["evaluation/test.csv"])


@pytest.mark.parametrize(
    "name",
    ["config.yaml", "result.json", "run.json", "metrics.jsonl", "baseline.json", "evaluation/test.csv"],
)
@pytest.mark.parametrize("content", [b"", b"[1, 2", b"\xff\xfe\x00", b"null", b'{"a": 1}', b"[]"])
def test_what_is_damaged_makes_a_smaller_report(run, name, content):
    (run / name).write_bytes(content)
    page(run)


WRONG_TYPES = (
    [
        ("run.json", key, value)
        for key in (
            "classes",
            "split",
            "shards",
            "hosts",
            "gpus",
            "packages",
            "parameters",
            "volume",
            "command",
            "resumed_from",
            "preprocessing",
            "started",
            "cpu",
        )
        for value in (None, 3, "x", [None], {"x": None})
    ]
    + [
        ("result.json", key, value)
        for key in ("best", "samples_per_second", "epochs")
        for value in (None, "x", [1])
    ]
    + [
        ("baseline.json", key, value)
        for key in ("auc", "auc_interval", "predictions", "features")
        for value in (None, "x", [1])
    ]
)


@pytest.mark.parametrize(("name", "key", "value"), WRONG_TYPES)
def test_a_value_of_another_type_does_no_harm(run, name, key, value):
    content = json.loads((run / name).read_text())
    (run / name).write_text(json.dumps({**content, key: value}))
    page(run)


def test_numbers_that_are_none_or_not_finite_are_gaps(run):
    rows = [{"epoch": 1, "loss": float("nan"), "val_loss": None}, {"epoch": 2, "loss": 0.5}, {"epoch": 3}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    html = render(read(run)).html.partition("<script>")[0]
    assert "nan" not in re.sub(r"base64,[^\"]*", "", html).lower()


def test_markup_in_names_is_shown_and_not_obeyed(run):
    evil = '<script>alert("x")</script>'
    for name in ("config.yaml", "run.json", "evaluation/test.csv"):
        path = run / name
        text = path.read_text()
        if name == "run.json":
            facts = {**json.loads(text), "hosts": [evil], "command": [evil], "python": evil}
            path.write_text(json.dumps(facts))
        elif name == "evaluation/test.csv":
            path.write_text(re.sub(r"sub-\d+", lambda _: "<script>alert(1)</script>", text))
        else:
            path.write_text(f"name: '{evil}'\n{text.partition(chr(10))[2]}")
    html = render(read(run)).html
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert" in html


def test_a_phantom_is_called_one(tmp_path):
    make_run(tmp_path / "p", subjects=20, source="Cingulum phantom cohort (not people)")
    assert "Phantom data, not people." in page(tmp_path / "p").text
    make_run(tmp_path / "real", subjects=20)
    assert "not people" not in page(tmp_path / "real").text


def test_shards_that_changed_or_went_give_no_slices_and_a_note(run, tmp_path):
    facts = json.loads((run / "run.json").read_text())
    for change, says in (
        ({"content_hash": "0"}, "has changed"),
        ({"path": str(tmp_path / "gone")}, "no such folder"),
    ):
        (run / "run.json").write_text(json.dumps({**facts, "shards": {**facts["shards"], **change}}))
        text = page(run).text
        assert "Example scans" not in text
        assert says in text


def test_three_classes_are_told_too(tmp_path):
    make_run(tmp_path / "r", subjects=45, classes=("AD", "MCI", "NC"), tissue=False)
    text = page(tmp_path / "r").text
    assert "AD vs MCI vs NC" in text and "ROC curve" in text
    assert "Linear on volumes" not in text


def test_one_epoch_and_one_subject_per_class_are_enough(tmp_path):
    make_run(tmp_path / "r", subjects=10, epochs=1)
    page(tmp_path / "r")


def test_what_is_no_run_folder_is_an_error(tmp_path):
    with fails_with(RunError):
        report.write(tmp_path / "none")
    with fails_with(RunError):
        report.write(tmp_path)


def test_the_command_writes_the_report(run):
    import typer

    from cingulum.cli.results import report as command

    app = typer.Typer()
    app.command()(command)
    outcome = CliRunner().invoke(app, [str(run), "--json"])
    assert json.loads(outcome.stdout) == {"report": str(run / "report.html")}


def test_the_command_lists_the_networks():
    import typer

    from cingulum.cli.models import models as command

    app = typer.Typer()
    app.command()(command)
    outcome = CliRunner().invoke(app, ["--json", "--width", "2", "--size", "16"])
    found = {row["name"]: row for row in json.loads(outcome.stdout)}
    assert {"resattnet18", "resattnet34", "resnet18", "tiny"} <= set(found)
    assert (
        found["resattnet34"]["parameters"]
        > found["resattnet18"]["parameters"]
        > found["resnet18"]["parameters"]
    )
    assert found["unet3d"]["parameters"] is not None
    assert found["unet3d"]["output"] == "voxel" and found["resnet18"]["output"] == "volume"
    assert found["sfcn"]["parameters"] is None and found["sfcn"]["smallest"] == 32
    table = CliRunner().invoke(app, ["--width", "2", "--size", "16"]).stdout
    assert "3D-ResAttNet-18" in table and "not at this size" in table


def test_planes_are_cut_and_turned_as_the_caption_says():
    volume = np.zeros((32, 32, 32, 1))
    volume[28:, 16, 16] = 1.0  # right
    volume[16, 28:, 16] = 1.0  # front
    volume[16, 16, 28:] = 1.0  # top
    picture = slices.three_planes(volume, (1.0, 1.0, 1.0))
    assert picture.shape == (128, 3 * (128 + 6))
    sagittal, coronal, axial = (picture[:, 3 + 134 * i : 131 + 134 * i] for i in range(3))
    for plane in (sagittal, coronal, axial):
        # The first axis of each plane points right in the picture, the second points up.
        assert plane[60, 120] == 1.0 and plane[4, 66] == 1.0
        assert plane[60, 8] == 0.0 and plane[120, 66] == 0.0
    assert "coronal" in slices.three_planes.__doc__.lower()


def test_thick_voxels_are_drawn_in_proportion():
    picture = slices.three_planes(np.ones((40, 40, 20, 1)), (1.0, 1.0, 2.0))
    assert picture.shape[0] == 128 and picture.shape[1] == 3 * (128 + 6)


@pytest.mark.parametrize("bounds", [(0, 1), (0, 0.734), (0, 1e-4), (1, 12), (0, 2500), (0, 7e-9)])
def test_ticks_are_round_few_and_inside(bounds):
    found = ticks(*bounds)
    assert 2 <= len(found) <= 7
    assert all(bounds[0] - 1e-12 <= value <= bounds[1] * (1 + 1e-9) for value in found)
    assert len(set(np.round(np.diff(found), 15))) == 1 or np.allclose(np.diff(found), found[1] - found[0])


def test_data_points_are_drawn_where_they_belong():
    axes = Axes((0, 10), (0, 1), x_label="x", y_label="y", title="t", width=460, height=300)
    (x0, y0), (x1, y1), (x5, y5) = axes.at(0, 0), axes.at(10, 1), axes.at(5, 0.5)
    assert x0 < x1 and y0 > y1
    assert (x5, y5) == ((x0 + x1) / 2, (y0 + y1) / 2)
    assert Axes((3, 3), (2, 2), x_label="", y_label="", title="").at(3, 2)


def test_ranks_are_listed_asranges():
    assert ranges([0, 1, 2, 3, 6]) == "0–3, 6"
    assert ranges([5]) == "5"


def test_a_damaged_row_of_predictions_leaves_all_of_them_out(run):
    path = run / "evaluation" / "test.csv"
    path.write_text(path.read_text().replace("NC", "unheard-of", 1))
    story = read(run)
    assert "test" not in story.predictions
    assert any("test.csv is damaged" in note for note in story.notes)


def test_an_epoch_that_is_no_number_is_left_out(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": Infinity, "loss": 1.0}\n')
    story = read(run)
    assert len(story.epochs) == 12 and any("metrics.jsonl is damaged" in note for note in story.notes)


def test_a_subject_in_two_splits_is_told(run):
    assert "No subject is in two splits." in page(run).text
    facts = json.loads((run / "run.json").read_text())
    facts["split"]["train"].append(facts["split"]["test"][0])
    (run / "run.json").write_text(json.dumps(facts))
    assert "A subject is in two splits" in page(run).text
