"""The report's chart of who works on which micro-batch when."""

from __future__ import annotations

import json

import pytest
from made_up_pipeline import add_pipeline, step_s
from made_up_run import make_run

from trainer.report import pipeline, run_page
from trainer.report.axes import Mark
from trainer.report.figure import Figure
from trainer.report.paper import write_png
from trainer.report.story import ReportMaterial, read
from trainer.run_folder.run_record import RunRecord

RANKS, MICRO_BATCHES = 3, 4


@pytest.fixture
def run(tmp_path):
    return add_pipeline(tmp_path, RANKS, MICRO_BATCHES)


def drawn(run, hosts: tuple[str, ...] = ()) -> tuple[Figure | None, ReportMaterial]:
    story = ReportMaterial(run, "", {}, RunRecord(hosts=list(hosts)))
    return pipeline.of(story), story


def change(run, name: str, *keys: str, to) -> None:
    """Set a value in a JSON file of the run."""
    tree = inner = json.loads((run / name).read_text())
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    (run / name).write_text(json.dumps(tree))


def of_kind(figure: Figure, *kind: str) -> list[Mark]:
    return [mark for mark in figure.axes.marks if set(kind) <= set(mark.kind.split())]


def test_predicted_is_above_measured_on_one_axis_of_time(run):
    figure, story = drawn(run)
    assert not story.notes
    blocks = of_kind(figure, "pass")
    half = 2 * RANKS * MICRO_BATCHES
    assert len(blocks) == 2 * half == len(figure.table.rows)
    lowest = min(mark.points[0][1] for mark in blocks[:half])
    assert lowest > max(mark.points[1][1] for mark in blocks[half:])
    seconds = step_s(RANKS, MICRO_BATCHES)
    assert figure.axes.x == (0, pytest.approx(1250 * seconds))
    ends = [mark.points[1][0] for mark in of_kind(figure, "idle")]
    assert ends == pytest.approx([1000 * seconds] * RANKS + [1250 * seconds] * RANKS)
    assert figure.table.rows[0] == ("predicted", 0, "forward", 0, 0.0, 2.0)
    assert figure.table.rows[-1][:4] == ("measured", 2, "backward", 3)


def test_bubbles_of_equal_stages_are_the_ideal(run):
    figure, _ = drawn(run)
    assert figure.caption.startswith(
        "The step was predicted to take 36.0 ms and took 45.0 ms (predicted / measured: 0.80); bubbles take "
        "33\xa0% as predicted, 33\xa0% as measured and (S - 1) / (M + S - 1) = 33\xa0% for S = 3 "
    )
    titles = [mark.words for mark in of_kind(figure, "label")]
    assert titles == ["Predicted: 36.0 ms, 33\xa0% bubbles", "Measured, step 6: 45.0 ms, 33\xa0% bubbles"]
    assert all(title in figure.axes.title for title in titles)


def test_over_how_many_samples_batch_norm_takes_its_statistics_is_said(run):
    assert "Batch norm" not in drawn(run)[0].caption
    change(run, "plan.json", "batch_norm_samples", to=4)
    change(run, "plan.json", "global_batch", to=16)
    said = "Batch norm takes its statistics over 4 of the 16 samples of an update."
    assert said in drawn(run)[0].caption


def test_blocks_have_their_micro_batch_where_it_fits(run):
    figure, _ = drawn(run)
    assert [mark.words for mark in of_kind(figure, "inside")] == [*"01230123"] * 2 * RANKS
    change(run, "plan.json", "division", "step_s", to=9.0)  # blocks of a pixel
    figure, _ = drawn(run)
    assert not of_kind(figure, "inside") and len(of_kind(figure, "pass")) == 4 * RANKS * MICRO_BATCHES


def test_a_transfer_begins_where_a_pass_ends_and_ends_where_the_next_rank_begins(run):
    figure, _ = drawn(run)
    moves = of_kind(figure, "move")
    assert len(moves) == 2 * (RANKS - 1) * MICRO_BATCHES
    (left, _), (begun, _) = moves[0].points
    assert left == begun == 2.0  # forward of micro-batch 0, without any latency
    # Gradients of the inputs leave before the pass is over; and micro-batches stay in their replica.
    ranks = [[("backward", 0, 0.0, 4.0)], [("backward", 0, 3.0, 7.0)]]
    ranks = [[pipeline.Segment(*one) for one in own] for own in ranks]
    assert list(pipeline.transfers(ranks, 2)) == [(0, 3.0, 1, 3.0)]
    assert list(pipeline.transfers(ranks, 1)) == []


def test_rows_have_rank_and_host(run):
    figure, _ = drawn(run, ("node-a", "node-b", "a-host-with-quite-a-long-name"))
    assert figure.axes.y_names == ["rank 0, node-a", "rank 1, node-b", "rank 2, a-host-with…"] * 2
    assert drawn(run)[0].axes.y_names == ["rank 0", "rank 1", "rank 2"] * 2


def test_of_many_ranks_the_first_are_drawn(tmp_path):
    figure, _ = drawn(add_pipeline(tmp_path, 20, 8))
    assert len(of_kind(figure, "idle")) == 2 * pipeline.MOST_RANKS
    assert len(figure.table.rows) == 2 * 20 * 2 * 8
    assert "The first 16 of 20 ranks are drawn" in figure.caption
    assert "transfers" in figure.caption


def test_a_division_by_flops_has_only_what_was_measured(run):
    change(run, "plan.json", "division", "played", to=[])
    figure, story = drawn(run)
    assert [mark.words[:8] for mark in of_kind(figure, "label")] == ["Measured"] and not story.notes
    assert figure.caption.startswith("The step took 45.0 ms; bubbles take 33\xa0% as measured and (S")


def test_a_run_without_telemetry_has_only_what_was_predicted(run):
    (run / "telemetry" / "pipeline.json").unlink()
    figure, story = drawn(run)
    assert [mark.words[:9] for mark in of_kind(figure, "label")] == ["Predicted"] and not story.notes


def test_a_predicted_part_of_an_accumulated_step_is_not_compared_with_the_step(run):
    change(run, "plan.json", "accumulation", to=2)
    figure, _ = drawn(run)
    assert "One of 2 accumulated parts" in figure.caption and "predicted / measured" not in figure.caption


def test_a_run_of_another_strategy_has_no_chart(tmp_path):
    assert drawn(tmp_path)[0] is None
    (tmp_path / "plan.json").write_text('{"world_size": 2, "micro_batches": 1}')
    figure, story = drawn(tmp_path)
    assert figure is None and not story.notes


SEGMENT = ["forward", 0, 0.0, 1.0]
DAMAGED = (
    *(SEGMENT[:3], ["update", *SEGMENT[1:]], [["forward"], 0, 0.0, 1.0], ["forward", "a", 0.0, 1.0]),
    *(["forward", -1, 0.0, 1.0], ["forward", 0, 2.0, 1.0], ["forward", 0, 0.0, float("nan")]),
)


@pytest.mark.parametrize(
    ("played", "ranks"),
    [*(([[0, *one]], [[one]]) for one in DAMAGED), ("x", "x"), (5, 5), ({"0": SEGMENT}, {"0": SEGMENT})],
)
def test_damaged_passes_are_a_note(run, played, ranks):
    change(run, "plan.json", "division", "played", to=played)
    change(run, "telemetry/pipeline.json", "ranks", to=ranks)
    figure, story = drawn(run)
    assert figure is None and len(story.notes) == 2
    assert all("is damaged and left out of the pipeline's chart" in note for note in story.notes)


@pytest.mark.parametrize(
    ("name", "keys", "value"),
    [
        ("telemetry/pipeline.json", ("seconds",), 0),
        ("telemetry/pipeline.json", ("version",), 2),
        ("telemetry/pipeline.json", ("step",), None),
        ("plan.json", ("division",), 7),
        ("plan.json", ("division", "step_s"), "x"),
        ("plan.json", ("division", "played"), [[9, *SEGMENT]]),
        ("plan.json", ("division", "played"), [[-1, *SEGMENT]]),
        ("plan.json", ("world_size",), None),
    ],
)
def test_one_damaged_file_leaves_the_other_panel(run, name, keys, value):
    change(run, name, *keys, to=value)
    figure, story = drawn(run)
    assert len(of_kind(figure, "label")) == 1 and len(story.notes) == 1 and name in story.notes[0]


@pytest.mark.parametrize("value", [0, "x", None, True, [2], 1])
def test_what_else_is_wrong_in_the_plan_costs_no_more_than_its_words(run, value):
    for key in ("stages", "micro_batches", "accumulation", "replicas"):
        change(run, "plan.json", key, to=value)
    figure, story = drawn(run)
    assert len(of_kind(figure, "label")) == 2 and not story.notes
    assert "(S - 1)" not in figure.caption


def test_the_page_has_the_chart_and_notes_a_damaged_plan_once(tmp_path):
    folder = add_pipeline(make_run(tmp_path / "run", subjects=20, epochs=2), RANKS, MICRO_BATCHES)
    page = run_page.render(read(folder))
    assert 'id="pipeline"' in page.html and 'id="figure-pipeline"' in page.html
    (figure,) = (one for one in page.figures if one.name == "pipeline")
    write_png(figure.axes, figure.legend, tmp_path / "pipeline.png")
    (folder / "plan.json").write_text("{")
    story = read(folder)
    assert 'id="pipeline"' in run_page.render(story).html
    assert len([note for note in story.notes if "plan.json" in note]) == 1
