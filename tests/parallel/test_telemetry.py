"""What two real ranks tell of their time: parts that add up, a rank slowed on purpose, and a resumed run."""

from __future__ import annotations

import json
import socket

import pytest
import tiny_runs
from tiny_runs import PROGRAM

from trainer.telemetry import records
from trainer.telemetry.prediction import RunPrediction


@pytest.fixture(scope="module")
def slow_run(tmp_path_factory, launch):
    """The folder of a run whose rank 1 is slow, and what that run said."""
    folder = tmp_path_factory.mktemp("slow")
    shards = tiny_runs.make_shards(folder / "shards")
    changes = {"telemetry__trace": True, "train__deterministic": False, "train__epochs": 2}
    config = tiny_runs.write_config(folder, shards, "run", **changes)
    slow = launch(2, PROGRAM, "slow", 1, 1, config)
    assert slow.exit_code == 0, slow.err
    return folder / "run", slow


def test_the_parts_of_every_step_of_every_rank_add_up(slow_run):
    folder, _ = slow_run
    found = records.read(folder)
    assert found.steps.keys() == {0, 1}
    for steps in found.steps.values():
        assert [step.step for step in steps] == list(range(1, 13))
        assert [step.first for step in steps] == [True, *[False] * 11]
        for step in steps:
            parts = [getattr(step, part) for part in records.PARTS]
            assert min(parts) >= 0 and sum(parts) == pytest.approx(step.seconds, abs=1e-5)
            assert step.forward > 0 and step.backward > 0 and step.exposed > 0


def test_a_rank_that_is_slowed_on_purpose_is_named(slow_run):
    folder, outcome = slow_run
    for row in tiny_runs.rows(folder):
        assert (row["slowest_rank"], row["slowest_part"]) == (1, "other")
        assert row["slowest_ratio"] > 1
    assert f"warning: rank 1 on {socket.gethostname()} slows down the others" in outcome.err
    quick, slow = (records.mean(steps) for steps in records.read(folder).steps.values())
    assert slow["other"] > 0.4 and quick["exposed"] > slow["exposed"]


def test_hosts_tell_what_they_did_and_the_report_shows_it(slow_run):
    folder, _ = slow_run
    ((name, epochs),) = records.read(folder).hosts.items()
    assert name == socket.gethostname() and [epoch.step for epoch in epochs] == [6, 12]
    for epoch in epochs:
        assert epoch.ranks == (0, 1) and epoch.cpu_percent > 0 and epoch.rss_bytes > 10**8
        # Only what a counter counts; a virtual machine has none as a rule.
        assert (epoch.energy_j is None) == (epoch.energy_source is None)
    page = (folder / "report.html").read_text()
    assert 'id="time"' in page and "Rank 1 is the slowest" in page


def test_the_trace_has_both_ranks(slow_run):
    folder, _ = slow_run
    told = json.loads((folder / "telemetry" / "trace.json").read_text())["traceEvents"]
    names = {(event["pid"], event["name"]) for event in told}
    assert names >= {(rank, name) for rank in (0, 1) for name in ("step 12", "reduce 0", "statistics")}


STRATEGIES = {
    "data": {"name": "data", "reduction": "per_tensor"},
    "servers": {"name": "parameter-server", "count": 2, "placement": "colocated"},
}


@pytest.mark.parametrize("strategy", ["data", "servers"])
def test_what_was_predicted_is_what_was_counted_and_the_links_are_timed_without_a_trace(
    strategy, tmp_path, launch
):
    """Bytes to the last one; and weights as of a run that writes no telemetry, which times no link."""
    shards = tiny_runs.make_shards(tmp_path / "shards")
    changes = {"train__strategy": STRATEGIES[strategy], "train__epochs": 2, "train__sync_batch_norm": False}
    for name in ("with", "without"):
        config = tiny_runs.write_config(tmp_path, shards, name, **changes, telemetry__enabled=name == "with")
        outcome = launch(2, "command.py", "train", config)
        assert outcome.exit_code == 0, outcome.err
    known = RunPrediction.read(tmp_path / "with")
    assert known is not None and len(known.timed) >= 2 and known.link.bytes_per_second > 0
    assert (known.began, known.step) == (0, 6) and known.step_s > known.compute_s > 0
    steps = [step for own in records.read(tmp_path / "with").steps.values() for step in own]
    assert len(steps) == 24
    for step in steps:
        assert sum(transfer.bytes for transfer in step.transfers) == known.counted > 0
    plan = json.loads((tmp_path / "with" / "plan.json").read_text())
    if strategy == "data":
        assert known.sent == [plan["bytes_per_update"]] * 2
    else:
        assert known.sent == [w + s for w, s in zip(plan["worker_sent"], plan["server_sent"], strict=True)]
    result = tiny_runs.result(tmp_path / "with")
    assert result["prediction"]["counted_bytes"]["ratio"] == 1
    assert result["prediction"]["step_s"]["measured"] > 0
    assert "Predicted and measured" in (tmp_path / "with" / "report.html").read_text()
    assert not (tmp_path / "without" / "prediction.json").exists()
    assert result["weights_sha256"] == tiny_runs.result(tmp_path / "without")["weights_sha256"]


@pytest.mark.slow
def test_a_resumed_run_tells_each_step_once(slow_run, launch):
    folder, _ = slow_run
    config = folder.parent / "run.yaml"
    # Lines that a killed session wrote after its last checkpoint, one of them cut short.
    path = records.rank_file(folder, 1)
    with path.open("a") as file:
        file.write(
            path.read_text().splitlines()[-1].replace('"step": 12', '"step": 13') + '\n{"step": 14, "sec'
        )
    (folder / "result.json").unlink()
    outcome = launch(2, PROGRAM, "none", 0, 0, config, "--resume", "train.epochs=3")
    assert outcome.exit_code == 0, outcome.err
    for steps in records.read(folder).steps.values():
        assert [step.step for step in steps] == list(range(1, 19))
        assert [step.step for step in steps if step.first] == [1, 13]
