"""What a run writes about its time is read back as it was, and cut where a run is resumed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import telemetry_lines
from wording import fails_with

from trainer.errors import RunError
from trainer.telemetry import json_lines, records, trace
from trainer.telemetry.facts import RunFacts
from trainer.telemetry.intervals import Interval, StepIntervals, Transfer
from trainer.telemetry.records import HostEpoch, ServerStep, Step
from trainer.telemetry.verdict import verdict

STEP = Step(1, 1.0, 0.1, 0.2, 0.3, 0.1, 0.2, 0.1, 0.2, transfers=(Transfer("reduce", 1, 64, 0.2),))
HOST = HostEpoch(
    1, 4, 9.0, "node.1", (0, 1), {"eth0": {"sent": 5, "received": 6}}, 150.0, 2, 7, 8, (), 3.0, "counted"
)


def _step(number: int, **changes: float) -> dict[str, float]:
    return {**dataclasses.asdict(dataclasses.replace(STEP, step=number)), **changes}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    telemetry_lines.append(records.rank_file(tmp_path, 3), [_step(1), _step(2)])
    telemetry_lines.append(records.rank_file(tmp_path, 3), [_step(3)])
    telemetry_lines.append(records.host_file(tmp_path, "node.1"), [dataclasses.asdict(HOST)])
    telemetry_lines.append(
        records.server_file(tmp_path, 1), [{"step": 1, "receive": 1, "update": 2, "send": 3, "wait": 4}]
    )
    found = records.read(tmp_path)
    assert [step.step for step in found.steps[3]] == [1, 2, 3]
    assert found.steps[3][0] == STEP
    assert found.hosts == {"node.1": (HOST,)}
    assert found.servers == {1: (ServerStep(1, 1, 2, 3, 4),)}


def test_a_run_without_telemetry_is_empty(tmp_path: Path) -> None:
    assert records.read(tmp_path).is_empty


def test_a_line_cut_short_is_left_out_and_cut_away(tmp_path: Path) -> None:
    path = records.rank_file(tmp_path, 0)
    telemetry_lines.append(path, [_step(1), _step(2), _step(3)])
    path.write_bytes(path.read_bytes()[:-9])
    assert [step.step for step in records.read(tmp_path).steps[0]] == [1, 2]
    path.write_bytes(b"\0\0\0\n" + path.read_bytes())
    json_lines.cut(tmp_path, 1)
    telemetry_lines.append(path, [_step(2)])
    assert [step.step for step in records.read(tmp_path).steps[0]] == [1, 2]


@pytest.mark.parametrize("line", ["{", "[]", '{"step": 1}'])
def test_a_damaged_file_is_named(tmp_path: Path, line: str) -> None:
    path = records.rank_file(tmp_path, 0)
    path.parent.mkdir()
    path.write_text(f"{line}\n")
    with fails_with(RunError):
        records.read(tmp_path)


def test_keys_of_a_newer_version_are_passed_over(tmp_path: Path) -> None:
    telemetry_lines.append(records.rank_file(tmp_path, 0), [_step(1, later=5.0)])
    assert records.read(tmp_path).steps[0] == (STEP,)


def test_means_leave_the_traced_step_out() -> None:
    steps = [dataclasses.replace(STEP, seconds=30.0, other=29.2, first=True), STEP]
    found = records.mean([*steps, dataclasses.replace(STEP, forward=0.4, seconds=1.2)])
    assert found["forward"] == pytest.approx(0.3)
    assert sum(found[part] for part in records.PARTS) == pytest.approx(found["seconds"])
    assert records.mean(steps[:1]) == {}


def test_the_rank_that_needs_most_time_itself_is_named_with_the_part() -> None:
    # All four steps are equally long: the quick ranks wait for the slow one.
    quick = {**records.mean([STEP]), "seconds": 2.0, "exposed": 1.1}
    slow = {**records.mean([STEP]), "seconds": 2.0, "exposed": 0.1, "backward": 1.3}
    found = records.slowest({0: quick, 1: quick, 2: slow, 3: quick})
    assert found == records.Slowest(2, pytest.approx(1.9 / 0.9), "backward")
    assert records.slowest({0: quick}) == records.Slowest(0, 1.0, "backward")
    assert records.slowest({0: {}, 1: {}}) is None


OLD = Path(__file__).parent / "telemetry_of_old"


def test_telemetry_of_the_first_version_is_read() -> None:
    """Written by cingulum 0.1.0 before lines had a version: a run of two ranks, a server of another run."""
    found = records.read(OLD)
    assert [step.step for step in found.steps[1]] == [1, 2, 3, 4, 5, 6]
    assert found.steps[1][0].first and found.steps[1][1].exposed == 0.0628796
    assert all(step.transfers == () for own in found.steps.values() for step in own)
    assert found.servers[0][3] == ServerStep(4, 5.6e-05, 0.001545, 0.002735, 0.020923)
    assert found.hosts["n2"][0].ranks == (1,)
    judged = verdict(found, RunFacts(hosts=("n1", "n2"), bytes_sent=4720))
    assert judged is not None and (judged.bound, judged.cause) == ("network", "small steps")


def test_a_trace_of_the_first_version_is_joined_with_lines_of_this_one(tmp_path: Path) -> None:
    """A run that an older cingulum began, and this one resumed."""
    path = trace.rank_file(tmp_path, 0)
    path.parent.mkdir()
    shutil.copy(trace.rank_file(OLD, 0), path)
    later = StepIntervals(3, 1790000000.146, 0.045, (Interval("forward", 1790000000.151, 1790000000.161),))
    telemetry_lines.append(path, trace.lines([later]))
    told = json.loads(trace.join(tmp_path, ("a",)).read_text())["traceEvents"]
    names = [event["name"] for event in told if event["ph"] == "X"]
    assert names[:2] == ["step 1", "input wait"] and {"step 3", "forward"} <= set(names)
    last = max((event for event in told if event["ph"] == "X"), key=lambda event: event["ts"])
    assert (last["name"], last["args"]["step"]) == ("forward", 3)
    assert last["ts"] == pytest.approx(105_000.0, abs=0.5)
