"""The report's section on where the time went."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from made_up_run import make_run

from trainer.report import run_page, time_spent
from trainer.report.story import read
from trainer.telemetry.prediction import RunPrediction
from trainer.telemetry.records import PARTS


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "made-up", subjects=20, epochs=3)


@pytest.fixture
def run(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "run"))


def test_the_slow_rank_is_named_and_comes_first(run):
    found = time_spent.of(read(run))
    assert (
        "Rank 2 is the slowest: its own work takes 1.37 times" in found.slowest
        and "backward" in found.slowest
    )
    assert "In 3 of 3 epochs" in found.slowest
    assert found.ranks[0][:3] == ("2", "node-1", "209.00") and len(found.ranks) == 4
    assert [row[0] for row in found.hosts] == ["node-0", "node-1"]
    # 52,000,000 bytes in each epoch of 6 steps.
    assert found.hosts[0][4] == "8.3 MiB"
    assert "0.2 Wh (720 J); made up" in found.energy


def test_bars_stand_on_each_other_and_end_at_the_whole_step(run):
    by_epoch, by_rank = time_spent.of(read(run)).figures
    assert by_epoch.table.header == ("epoch", *(f"{part}_ms" for part in PARTS))
    for figure, bars in ((by_epoch, 3), (by_rank, 4)):
        assert len(figure.axes.marks) == bars * len(PARTS)
        tops = [mark.points[1][1] for mark in figure.axes.marks][len(PARTS) - 1 :: len(PARTS)]
        assert tops == pytest.approx([239.0] * bars)
        for lower, upper in zip(figure.axes.marks, figure.axes.marks[1:], strict=False):
            if lower.points[0][0] == upper.points[0][0]:
                assert lower.points[1][1] == upper.points[0][1]


def test_ranks_beyond_the_first_few_are_counted(run):
    source = (run / "telemetry" / "rank-00000.jsonl").read_text()
    for rank in range(4, 12):
        (run / "telemetry" / f"rank-{rank:05d}.jsonl").write_text(source)
    found = time_spent.of(read(run))
    assert len(found.ranks) == time_spent.MOST_RANKS and found.ranks_left_out == 4


@pytest.mark.parametrize("content", ["{\n", "[]\n", '{"step": 1}\n', '{"epoch": 1, "seconds": "x"}\n'])
@pytest.mark.parametrize("name", ["rank-00000.jsonl", "host-node-0.jsonl"])
def test_damaged_telemetry_is_a_note(run, name, content):
    (run / "telemetry" / name).write_text(content)
    story = read(run)
    assert time_spent.of(story) is None
    assert any("telemetry is damaged" in note for note in story.notes)


def test_predicted_stands_beside_measured(run):
    known = RunPrediction(
        start=1, began=0, step=6, hosts=["node-0", "node-1"] * 2, sent=[9] * 4, received=[9] * 4, parts=1,
        counted=0, crossing={"node-0": [8_000_000, 8_000_000]}, communication_s=0.02, exposed_s=0.024,
        step_s=0.2, step_at_least_s=0.18, step_at_most_s=0.21,
    )  # fmt: skip
    (run / "prediction.json").write_text(json.dumps(known.model_dump(mode="json")))
    found = time_spent.of(read(run))
    assert found.predictions == (
        ("Sent by the busiest host", "8,000,000 B", "8,666,667 B", "0.92"),
        ("Exposed communication", "24.00 ms", "30.00 ms", "0.80"),
        ("Whole step", "200.00 ms", "239.00 ms", "0.84"),
    )
    assert "steps 2 to 6" in found.bounds and "180.00 to 210.00 ms" in found.bounds
    assert "off by a multiple" not in found.bounds
    page = run_page.render(read(run)).html
    assert "Predicted and measured" in page and "239.00 ms" in page


def test_predicted_seconds_that_are_off_by_a_multiple_are_explained(run):
    known = RunPrediction(
        start=1, began=0, step=6, hosts=["node-0", "node-1"] * 2, sent=[9] * 4, received=[9] * 4, parts=1,
        counted=0, communication_s=0.02, exposed_s=0.63, step_s=0.2,
        step_at_least_s=0.18, step_at_most_s=0.21,
    )  # fmt: skip
    (run / "prediction.json").write_text(json.dumps(known.model_dump(mode="json")))
    found = time_spent.of(read(run))
    assert found.predictions[0][-1] == "21.00" and "off by a multiple" in found.bounds


def test_predicted_memory_stands_beside_that_of_the_rank_that_needs_most(run):
    known = RunPrediction(
        start=1, began=0, step=6, hosts=["node-0"] * 3, sent=[9] * 3, received=[9] * 3, parts=1, counted=0,
        memory=[100, 300, 200],
    )  # fmt: skip
    (run / "prediction.json").write_text(json.dumps(known.model_dump(mode="json")))
    for memory, rows in (
        ([900, 600, 800], (("Memory of a rank, at most", "300 B", "600 B", "0.50"),)),
        ([900, None, 800], ()),
        ([900], ()),
    ):
        result = json.loads((run / "result.json").read_text())
        (run / "result.json").write_text(json.dumps({**result, "memory_bytes": memory}))
        assert time_spent.of(read(run)).predictions == rows


def test_a_run_of_before_says_nothing_of_predictions(run):
    assert time_spent.of(read(run)).predictions == ()
    assert "Predicted and measured" not in run_page.render(read(run)).html


def test_a_damaged_prediction_is_a_note(run):
    (run / "prediction.json").write_text("{}")
    story = read(run)
    found = time_spent.of(story)
    assert found.predictions == () and found.ranks and "prediction.json: is damaged" in story.notes[-1]


def test_a_run_without_telemetry_has_no_such_section(run):
    shutil.rmtree(run / "telemetry")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    plain = [{k: v for k, v in row.items() if k != "timeline"} for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))
    story = read(run)
    assert time_spent.of(story) is None and not story.notes
