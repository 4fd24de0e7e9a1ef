"""`cingulum diagnose` on run folders: what it reads, says, and refuses."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import telemetry_lines
from made_up_run import make_run

from cingulum.cli import app
from trainer import report
from trainer.run_folder.record import RunFolder
from trainer.telemetry import records
from trainer.telemetry.evidence import found, read_facts
from trainer.telemetry.records import Step


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Path:
    """A run of a time without telemetry."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "old", subjects=20, epochs=2)
    shutil.rmtree(folder / "telemetry")
    return folder


@pytest.fixture
def told(old, tmp_path) -> Path:
    """A run of two ranks that wait 0.4 of 1 s for the wire; without what a report needs besides."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.yaml", "run.json"):
        (folder / name).write_text((old / name).read_text())
    (folder / "plan.json").write_text(json.dumps({"strategy": "data", "bytes_per_update": 5_000_000}))
    for rank in range(2):
        steps = [Step(n, 1.0, 0.0, 0.2, 0.3, 0.4, 0.1, 0.05, 0.05, first=n == 1) for n in range(1, 9)]
        telemetry_lines.append(records.rank_file(folder, rank), [dataclasses.asdict(step) for step in steps])
    return folder


def test_it_says_what_binds_the_run_how_that_is_known_and_what_to_try(told, capsys):
    assert app.run(["diagnose", str(told)]) == 0
    said = capsys.readouterr().out
    assert f"{told}: network-bound: 40% of a step's 1.00 s" in said and "at most 1.67 times as fast" in said
    assert "each rank sends 4.8 MiB, that is 80 Mbit/s meanwhile" in said
    assert "train.strategy.compression=float16  (now none): half the bytes" in said


def test_as_json_it_says_the_same(told, capsys):
    assert app.run(["diagnose", str(told), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["bound"], said["cause"], said["is_well"], said["run"]) == ("network", None, False, str(told))
    assert said["gain_at_most"] == said["gains"]["network"] == pytest.approx(0.4)
    assert said["settings"][0]["changes"] == {"train.strategy.compression": "float16"}
    assert said["settings"][0]["now"] == {"train.strategy.compression": "none"}


def test_a_report_says_it_too(old, told):
    (old / "telemetry").mkdir()
    for path in (told / "telemetry").iterdir():
        (old / "telemetry" / path.name).write_bytes(path.read_bytes())
    page = report.write(old).read_text()
    assert "What limits the speed" in page and "Network-bound: 40% of a step" in page
    for path in (old / "telemetry").iterdir():
        path.unlink()
    assert "What limits the speed" not in report.write(old).read_text()


def refused(capsys, folder: Path) -> str:
    assert app.run(["diagnose", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "Traceback" not in said
    return said


def test_a_run_without_telemetry_says_so_and_what_is_known_all_the_same(old, capsys):
    said = refused(capsys, old)
    assert "has no telemetry" in said and "telemetry.enabled=true" in said
    assert "Rank 0 waited for input during 0.2% of its epochs." in said
    assert found(old) is None


def test_what_cannot_be_judged_is_refused(told, tmp_path, capsys):
    assert "no such run folder" in refused(capsys, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "config.yaml is missing" in refused(capsys, tmp_path / "empty")
    first = records.rank_file(told, 0)
    whole = first.read_bytes()
    first.write_bytes(b"no json\n" + whole)
    assert "rank-00000.jsonl: is damaged" in refused(capsys, told)
    first.write_bytes(whole.splitlines(keepends=True)[0])
    assert "no steps are recorded after the first one" in refused(capsys, told)


def test_a_damaged_or_newer_configuration_costs_the_settings_alone(told, capsys):
    (told / "config.yaml").write_text("name: x\nfrom_the_future: 1\n")
    (told / "plan.json").unlink()
    (told / "run.json").write_text("{")
    assert app.run(["diagnose", str(told)]) == 0
    said = capsys.readouterr().out
    assert "network-bound: 40%" in said and "no setting of the configuration" in said


def test_servers_are_known_from_the_configuration(tmp_path):
    train = "{strategy: {name: parameter-server, count: 2, mode: async}}"
    (tmp_path / "config.yaml").write_text(f"name: x\ndata: {{shards: s}}\ntrain: {train}\n")
    facts = read_facts(RunFolder(tmp_path))
    assert (facts.strategy, facts.servers) == ("parameter-server", 2)
    assert facts.asynchronous and not facts.colocated
