"""Who holds what of a divided network, as a run keeps it for its report."""

from __future__ import annotations

import csv
import io
import json

import pytest
from planned_networks import small

from trainer.planning.placement import costs, holding, ways
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.units import place
from trainer.report import placement as section
from trainer.report.figure import table
from trainer.report.run_page import divided_network
from trainer.report.story import ReportMaterial

NETWORK = small()


def drawn(layouts, ranks=2, times=1):
    placed = place(NETWORK, layouts)
    lists = task_lists(placed)
    return holding.figures(placed, lists, ranks, times), costs.sent(lists, ranks)


def test_operations_that_are_divided_alike_have_one_row_and_all_bytes_are_told():
    found, sent = drawn(ways.spatial(NETWORK, (2,), range(2)), times=3)
    cut, alone = found["rows"]
    assert [row["count"] for row in found["rows"]] == [3, 1]
    assert (cut["first"], cut["last"], cut["axes"]) == ("conv", "mean", ["axis 1"])
    assert cut["parts"] == [[0, 0.5], [1, 0.5]] and cut["copies"] == 2
    assert cut["features"] > 0 and cut["weights"] > 0
    assert (alone["axes"], alone["parts"]) == ([], [[0, 1.0]])
    total = 3 * sum(one.bytes for one in sent)
    assert sum(row["features"] + row["weights"] for row in found["rows"]) == total
    assert sum(size for _, _, size in found["pairs"]) == total
    assert {(source, target) for source, target, _ in found["pairs"]} == {(0, 1), (1, 0)}
    assert min(found["variables"]) > 0 and min(found["working"]) > 0


def test_operations_that_take_turns_have_two_rows_however_many_they_are():
    rows = holding._in_turn(
        [holding._Row([name], ("channels",) if k % 2 else (), [(0, 1.0)]) for k, name in enumerate("abcdefg")]
    )
    assert [row.names for row in rows] == [["a", "c", "e", "g"], ["b", "d", "f"]]
    assert [row.turns_with for row in rows] == [1, -1]


def test_shares_that_borders_shift_a_little_are_drawn_alike_and_others_are_not():
    def row(share):
        return holding._Row(["x"], ("depth",), [(0, share), (1, 1 - share)])

    assert row(0.5).is_like(row(0.55)) and not row(0.5).is_like(row(0.6))
    assert not row(0.5).is_like(holding._Row(["x"], ("depth",), [(1, 0.5), (0, 0.5)]))


@pytest.fixture
def story(tmp_path):
    def write(**changes):
        found, sent = drawn(ways.filters(NETWORK, {0: 3, 1: 1}, master=False))
        plan = {
            "world_size": 2,
            "way": "by filters",
            "flops": [3.0, 1.0],
            "held": [18, 6],
            "owned": [18, 6],
            "sent_per_update": [one.bytes for one in sent],
            "messages_per_update": [one.messages for one in sent],
            "drawing": found,
            **changes,
        }
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        return ReportMaterial(tmp_path, "", {})

    return write


def test_the_report_draws_parts_ranks_and_what_crosses(story):
    found, cells = divided_network(story())
    assert found is not None and found.way == "by filters"
    first = found.rows[0]
    assert (first.first, first.last) == ("conv", "mean")
    assert [(part.rank, part.share, part.kind, part.words) for part in first.parts] == [
        (0, 0.75, "s1", "0"),
        (1, 0.25, "s2", "1"),
    ]
    assert first.how.startswith("3 operations, cut along channels; feature maps ")
    assert found.rows[-1].how.startswith("1 operation, on rank 0 alone")
    assert [row[2] for row in found.ranks] == ["75\N{NO-BREAK SPACE}%", "25\N{NO-BREAK SPACE}%"]
    assert found.matrix[0][0] == ("", 0.0) and max(found.matrix[0][1][1], found.matrix[1][0][1]) == 1.0
    rows = list(csv.DictReader(io.StringIO(table(section.TABLE_HEADER, cells).csv())))
    assert [row["rank"] for row in rows[:2]] == ["0", "1"] and float(rows[0]["share"]) == 0.75


def test_of_many_ranks_the_pairs_that_send_most_are_listed(story):
    ranks = 20
    many = {
        name: [1] * ranks for name in ("flops", "held", "owned", "sent_per_update", "messages_per_update")
    }
    drawing = {
        "rows": [],
        "pairs": [[k, k + 1, k] for k in range(19)],
        "variables": [1] * ranks,
        "working": [1] * ranks,
    }
    found, _ = divided_network(story(world_size=ranks, drawing=drawing, **many))
    assert found is not None and found.matrix == ()
    assert found.pairs[0] == ("18", "19", "18 B") and len(found.pairs) + found.pairs_left_out == 19
    assert len(found.ranks) + found.ranks_left_out == ranks


def test_a_rank_after_the_sixth_is_striped_and_a_narrow_part_has_no_number():
    assert [section.Part(rank, 0.05).kind for rank in (5, 6)] == ["s6", "s1 again"]
    assert [section.Part(rank, 0.05).words for rank in (9, 10)] == ["9", ""]


def test_a_run_that_is_not_divided_has_no_section_and_damage_is_a_note(story, tmp_path):
    assert divided_network(story(drawing=None)) == (None, [])
    damaged = story(drawing={"rows": 3})
    assert divided_network(damaged) == (None, []) and "plan.json is damaged" in damaged.notes[0]
    (tmp_path / "plan.json").unlink()
    assert divided_network(ReportMaterial(tmp_path, "", {})) == (None, [])
