"""Which strategy `auto` takes, and when it takes another: candidates, predictions and measured updates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from wording import fails_with

from cingulum.cli.app import run
from trainer import config as configuration
from trainer.config import AutoConfig
from trainer.config.strategy import PLANNED, SIMULATED
from trainer.errors import ConfigError
from trainer.planning import choice
from trainer.planning.choice import Candidate, Choice
from trainer.report import run_page
from trainer.runs.watching import Watch

DEMO = Path(__file__).parents[2] / "examples" / "demo.yaml"
AUTO = AutoConfig(name="auto")


def candidate(name: str, step_s: float | None, **more: Any) -> Candidate:
    return Candidate(label=name, section={"name": name}, step_s=step_s, **{"fits": True, **more})


def choose(*tried: Candidate) -> Choice:
    found = choice.first({}, ("a", "b"), (4, 1), list(tried))
    assert found is not None
    return found


THREE = (candidate("data", 3.0), candidate("spatial", 1.0), candidate("filters", 2.0))


def test_the_shortest_predicted_update_that_fits_is_taken():
    assert choose(*THREE).now.label == "spatial"
    assert choose(THREE[0], candidate("spatial", 1.0, fits=False), THREE[2]).now.label == "filters"
    refused = candidate("spatial", None, fits=False, refused="too small")
    assert choice.first({}, ("a",), (4, 1), [refused]) is None
    only = choose(refused, candidate("data", None))
    assert only.now.label == "data" and "only one" in only.told()
    assert "spatial (1 s per update, predicted)" in choose(*THREE).told()


@pytest.mark.parametrize(
    ("measured_s", "left", "restart_s", "then"),
    [
        (1.5, 1000, 10.0, "spatial"),  # slower than predicted, and still ahead of all others
        (2.1, 1000, 10.0, "spatial"),  # hardly behind
        (2.5, 1000, 10.0, "filters"),
        (2.5, 20, 10.0, "spatial"),  # too few updates are left for the change
        (2.5, 21, 10.0, "filters"),
    ],
)
def test_another_one_goes_on_where_it_promises_so_much_that_the_change_is_paid(
    measured_s, left, restart_s, then
):
    found = choose(*THREE).reconsidered(measured_s, step=40, left=left, restart_s=restart_s)
    assert found.now.label == then and found.candidates[1].measured_s == measured_s
    assert found.changes == (() if then == "spatial" else ((40, 1, 2),))


def test_the_fastest_of_three_that_were_tried_stays():
    four = choose(*THREE, candidate("hybrid", 3.5))
    second = four.reconsidered(9.0, step=10, left=1000, restart_s=1.0)
    third = second.reconsidered(8.0, step=20, left=900, restart_s=1.0)
    assert (second.now.label, third.now.label) == ("filters", "data")
    # hybrid promises more still, and is not tried any more: filters are the best of the three.
    last = third.reconsidered(12.0, step=30, left=800, restart_s=1.0)
    assert last.now.label == "filters" and last.changes == ((10, 1, 2), (20, 2, 0), (30, 0, 2))
    assert last.reconsidered(8.1, step=40, left=700, restart_s=1.0).now.label == "filters"


def test_a_choice_is_read_again_from_plan_json_and_what_is_damaged_is_not():
    found = choose(*THREE).reconsidered(9.0, step=10, left=1000, restart_s=1.0)
    kept = json.loads(json.dumps(Watch(found, None).content()))
    assert choice.recorded(kept) == found
    assert choice.recorded({"strategy": "data"}) is None and choice.recorded(None) is None
    kept["auto"]["candidates"][0]["section"] = {"name": "spatial", "no_such_key": 1}
    assert choice.recorded(kept) is None


class Alone:
    """A world of one rank: what all ranks tell is what this one does."""

    def allgather_object(self, value: Any) -> list[Any]:
        return [value]


def test_updates_are_compared_once_when_enough_are_counted_and_the_first_two_are_not():
    watch = Watch(choose(*THREE), after=3)
    for seconds in (100.0, 50.0, 1.0, 2.0):
        watch.add(seconds)
        assert watch.reconsidered(Alone(), 5, 10**6) is None
    watch.add(9.0)
    found = watch.reconsidered(Alone(), 5, 10**6)
    assert found is not None and found.candidates[1].measured_s == 2.0
    assert watch.reconsidered(Alone(), 6, 10**6) is None
    never = Watch(choose(*THREE), after=None)
    for _ in range(100):
        never.add(9.0)
    assert never.reconsidered(Alone(), 100, 10**6) is None


def labels(ranks: int, samples: int, *, auto: AutoConfig = AUTO, normalised=False, speeds=()) -> list[str]:
    found = choice.sections(auto, ranks, samples, normalised=normalised, speeds=speeds or [1.0] * ranks)
    return [choice.label(one) for one in found]


def test_every_number_of_replicas_that_divides_ranks_and_samples_is_tried():
    found = labels(4, 8)
    assert found[0] == "data" and "spatial, 2 replicas" in found and "spatial" in found
    assert "hybrid, 2 replicas, 4 micro-batches" in found and "hybrid, 8 micro-batches" in found
    assert not any("4 replicas" in one for one in found)
    assert "data" not in labels(3, 4) and "spatial" in labels(3, 4)
    assert labels(2, 4, auto=AutoConfig(name="auto", among=["spatial"])) == ["spatial"]
    assert "hypergraph" not in labels(16, 16) and "hypergraph, 2 replicas" in labels(16, 16)


def test_a_strategy_of_ones_own_is_tried_once_and_first():
    own = AutoConfig(name="auto", among=["spatial", "mine.py:Mine", "mine.py:Mine"])
    assert labels(2, 4, auto=own) == ["Mine", "spatial"]


def test_no_candidate_takes_batch_norm_over_other_samples():
    assert not any("micro-batches" in one for one in labels(4, 8, normalised=True))


def test_unequal_devices_get_filters_by_speed_where_replicas_are_alike():
    assert "filters, shares by speed" in labels(2, 2, speeds=[1.0, 0.5])
    assert "filters" in labels(2, 2, speeds=[1.0, 0.95])
    unlike = labels(4, 4, speeds=[1.0, 0.5, 0.5, 1.0])
    assert "filters, shares by speed" in unlike and not any("filters, 2 replicas" in one for one in unlike)
    assert "filters, 2 replicas, shares by speed" in labels(4, 4, speeds=[1.0, 0.5, 1.0, 0.5])


def test_what_would_change_updates_is_refused(tmp_path):
    with fails_with(ConfigError):
        configuration.parse(
            f"{{name: x, data: {{shards: {tmp_path}}}, train: {{strategy: auto, sync_batch_norm: false}}}}"
        )
    for name in ("parameter-server", "auto", "mine.py", "x" * 1000 + ":Y"):
        with pytest.raises(ValidationError):
            AutoConfig(name="auto", among=[name])


class Told:
    """A run's folder and notes, as far as the section asks for them."""

    def __init__(self, folder):
        self.folder, self.notes = folder, []


def test_the_report_has_the_fastest_first_and_tells_changes(tmp_path):
    found = choose(*THREE, candidate("hybrid", None, fits=False, refused="two samples"))
    found = found.reconsidered(9.0, step=10, left=1000, restart_s=1.0)
    (tmp_path / "plan.json").write_text(json.dumps(Watch(found, None).content()))
    section = run_page.of(Told(tmp_path))
    assert section is not None and section.name == "filters"
    assert section.changes == ("After update 10 filters went on in place of spatial.",)
    assert [row[0] for row in section.rows] == ["filters", "data", "spatial", "hybrid"]
    assert [row[1] for row in section.rows] == ["trains", "", "", "two samples"]
    assert section.rows[2][2:4] == ("1.00 s", "9.00 s")
    (tmp_path / "plan.json").write_text('{"auto": {}}')
    told = Told(tmp_path)
    assert run_page.of(told) is None and "damaged" in told.notes[0]


@pytest.mark.parametrize(("command", "known"), [("plan", PLANNED), ("simulate", SIMULATED)])
def test_a_typo_in_a_strategys_name_is_told_with_all_that_sections_say_is_possible(command, known, capsys):
    assert run([command, str(DEMO), "--strategy", "spatiall"]) == 2
    said = capsys.readouterr().err
    assert "Did you mean 'spatial'?" in said
    assert all(f"--strategy {name}" in " ".join(said.split()) for name in known)
