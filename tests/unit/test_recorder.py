"""A run's telemetry while it runs: files, means, stragglers, traces, scalars, and a disk that is full."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
import telemetry_lines
import tensorflow as tf

from trainer.config import TelemetryConfig
from trainer.ranks import world as worlds
from trainer.telemetry import json_lines, records, scalars, trace
from trainer.telemetry.intervals import Interval, StepIntervals, Transfer
from trainer.telemetry.recorder import Recorder, straggler_warning
from trainer.telemetry.records import HostEpoch, Slowest

# Kind, start, end, bytes.
STEP = (
    ("input", -1.0, -0.5, 0),
    ("forward", 0.0, 2.0, 0),
    ("statistics", 0.5, 1.0, 0),
    ("backward", 2.0, 4.0, 0),
    ("reduce", 3.0, 5.0, 800),
    ("wait", 4.0, 5.0, 0),
    ("update", 5.0, 6.0, 0),
)


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    monkeypatch.setattr(worlds, "_world", worlds.World())
    return Recorder(TelemetryConfig(trace=True), worlds.World(), tmp_path)


def steps(recorder: Recorder, numbers: range) -> None:
    """Made-up steps of 7 s; the first of all was traced."""
    made = [
        StepIntervals(
            number,
            10.0 * number - 1,
            7.0,
            tuple(
                Interval(kind, 10.0 * number + start, 10.0 * number + end, None, size)
                for kind, start, end, size in STEP
            ),
            first=number == 1,
        )
        for number in numbers
    ]
    recorder.timeline.take = lambda: [made.pop(0) for _ in list(made)]


def test_an_epoch_is_told_in_its_row_and_in_the_files(recorder, tmp_path):
    said: list[str] = []
    recorder.start_epoch()
    steps(recorder, range(1, 4))
    row = recorder.close_epoch(1, 3, said.append)
    assert row["timeline"] == {
        "seconds": 7.0, "input_wait": 0.5, "forward": 1.5, "backward": 2.0, "exposed": 1.5, "update": 1.0,
        "other": 0.5, "overlapped": 1.0,
    }  # fmt: skip
    assert (row["slowest_rank"], row["slowest_ratio"], said) == (0, 1.0, [])
    steps(recorder, range(4, 6))
    recorder.close_epoch(2, 5, said.append)
    recorder.close()
    found = records.read(tmp_path)
    assert [step.step for step in found.steps[0]] == [1, 2, 3, 4, 5]
    assert [step.first for step in found.steps[0]] == [True, False, False, False, False]
    assert found.steps[0][4].transfers == (Transfer("reduce", None, 800, 2.0),)
    assert all(line["version"] == 2 for line in json_lines.read(records.rank_file(tmp_path, 0)))
    ((first, second),) = found.hosts.values()
    assert (first.step, second.step, second.epoch, second.ranks) == (3, 5, 2, (0,))
    assert row["energy_j"] == first.energy_j


def test_energy_is_that_of_hosts_that_count_it(recorder, monkeypatch):
    steps(recorder, range(1, 4))
    assert recorder.close_epoch(1, 3, print)["energy_j"] is None
    joules = iter((1.0, 13.5))
    monkeypatch.setattr(
        recorder._usage, "_counter", SimpleNamespace(is_there=True, sample=lambda: next(joules))
    )
    recorder.start_epoch()
    steps(recorder, range(4, 6))
    assert recorder.close_epoch(2, 5, print)["energy_j"] == 12.5


def test_energy_of_a_run_says_on_how_many_hosts_it_was_counted(tmp_path):
    (tmp_path / "telemetry").mkdir()
    for host, joules in (("a", 4.0), ("b", None)):
        usage = HostEpoch(
            1, 3, 1.0, host, (0,), {}, 0.0, 1, 1, 1, energy_j=joules, energy_source=joules and "a meter"
        )
        records.host_file(tmp_path, host).write_text(json.dumps(dataclasses.asdict(usage)) + "\n")
    assert records.energy(tmp_path) == (4.0, "on 1 of 2 hosts, a meter")
    records.host_file(tmp_path, "b").unlink()
    assert records.energy(tmp_path) == (4.0, "a meter")
    records.host_file(tmp_path, "a").unlink()
    assert records.energy(tmp_path) is None


def test_an_epoch_of_nothing_but_a_traced_step_has_no_timeline(recorder):
    steps(recorder, range(1, 2))
    assert recorder.close_epoch(1, 1, print).keys() == {"energy_j"}


def test_a_full_disk_ends_the_telemetry_and_not_the_training(recorder, tmp_path, capsys):
    (tmp_path / "telemetry").write_text("in the way")
    for epoch in (1, 2):
        steps(recorder, range(3 * epoch, 3 * epoch + 2))
        assert recorder.close_epoch(epoch, 4, print)["timeline"]["forward"] == 1.5
    assert capsys.readouterr().err.count("telemetry ends here") == 1


def test_nothing_is_told_or_exchanged_where_it_is_switched_off(tmp_path):
    class Alone(worlds.World):
        def allgather_object(self, value: Any) -> Any:
            raise AssertionError("a collective that other ranks do not know of")

    recorder = Recorder(TelemetryConfig(enabled=False), Alone(), tmp_path)
    recorder.start_epoch()
    recorder.step(1, 1.0)
    assert recorder.close_epoch(1, 1, print) == {}
    recorder.close()
    recorder.join_traces()
    assert not list(tmp_path.iterdir())


def test_a_slow_rank_is_named_with_what_it_costs():
    means = {"seconds": 0.5, "exposed": 0.1}
    said = straggler_warning(Slowest(3, 2.0, "backward"), means, "node-1", 100)
    assert said is not None and "rank 3 on node-1" in said and "2.00 times" in said
    assert "backward pass" in said and "20.0 s longer" in said
    assert straggler_warning(Slowest(3, 1.2, "backward"), means, "node-1", 100) is None
    assert straggler_warning(Slowest(3, 2.0, "backward"), means, "node-1", 4) is None  # 0.8 s


def test_the_trace_has_every_rank_and_part(recorder, tmp_path):
    steps(recorder, range(1, 3))
    recorder.flush()
    telemetry_lines.append(trace.rank_file(tmp_path, 1), [{"step": 1, "events": [[0, "forward", 9.0, 1.0]]}])
    trace.join(tmp_path, ("a", "b"))
    told = json.loads((tmp_path / "telemetry" / "trace.json").read_text())["traceEvents"]
    slices = [event for event in told if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == {0, 1}
    of_first = {e["name"]: (e["ts"], e["dur"]) for e in slices if e["pid"] == 0 and e["args"]["step"] == 1}
    assert of_first == {
        "step 1": (0.0, 7e6), "input": (0.0, 0.5e6), "forward": (1e6, 2e6), "backward": (3e6, 2e6),
        "wait": (5e6, 1e6), "update": (6e6, 1e6), "reduce 0": (4e6, 2e6), "statistics": (1.5e6, 0.5e6),
    }  # fmt: skip
    names = {event["args"]["name"] for event in told if event["name"] == "process_name"}
    assert names == {"rank 0 @ a", "rank 1 @ b"}


def test_a_trace_ends_before_it_fills_the_disk(recorder, tmp_path, monkeypatch):
    recorder._traces_left = 2
    steps(recorder, range(1, 5))
    recorder.flush()
    steps(recorder, range(5, 8))
    recorder.flush()
    assert len(json_lines.read(trace.rank_file(tmp_path, 0))) == 2


def test_scalars_hold_the_parts_and_the_hosts(recorder):
    steps(recorder, range(2, 4))
    row = {"step": 3, "loss": 0.5, "val_auc": None, **recorder.close_epoch(1, 3, print)}
    found = scalars.of_row(row) | scalars.of_hosts(recorder.hosts)
    assert found["timeline/exposed"] == 1.5 and found["loss"] == 0.5 and "val_auc" not in found
    assert found[f"hosts/{recorder.hosts[0].host}/cpu_percent"] == recorder.hosts[0].cpu_percent


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ESTALE, errno.EIO], ids=errno.errorcode.get)
def test_what_cannot_be_written_for_a_moment_is_written_later_and_said_once(
    recorder, tmp_path, monkeypatch, capsys, number
):
    plain, failures = os.write, [number, number]

    def fails(file, content):
        if failures:
            plain(file, content[:9])
            raise OSError(failures.pop(), os.strerror(number))
        return plain(file, content)

    monkeypatch.setattr(os, "write", fails)
    for step in range(1, 5):
        steps(recorder, range(step, step + 1))
        recorder.flush()
    monkeypatch.setattr(os, "write", plain)
    recorder.close()
    written = json_lines.read(records.rank_file(tmp_path, 0))
    assert [line["step"] for line in written] == [1, 2, 3, 4]
    said = capsys.readouterr().err
    assert said.count("warning:") == 1 and "could not be written" in said and os.strerror(number) in said


def test_events_that_cannot_be_written_for_a_moment_do_not_end_a_training(tmp_path, monkeypatch, capsys):
    write = scalars.tensorboard(tmp_path, 1)
    full = tf.errors.ResourceExhaustedError(None, None, "No space left on device")
    plain, failures = tf.summary.scalar, [full]

    def scalar(name, value):
        if failures:
            raise failures.pop()
        return plain(name, value)

    monkeypatch.setattr(tf.summary, "scalar", scalar)
    write({"step": 1, "loss": 0.5}, ())
    write({"step": 2, "loss": 0.25}, ())
    assert capsys.readouterr().err.count("events could not be written once") == 1
    assert next(tmp_path.iterdir()).name.endswith(".start-1")
