"""Synchronous parameter servers: plain Keras' weights in one process, and the bytes that were planned."""

from __future__ import annotations

import json

import pytest
from conftest import Launch
from programs.cases import CASES

pytestmark = pytest.mark.slow

# Everything that a server does itself, then what it must leave to the workers.
OPTIONS = (
    *("momentum", "adamw", "clip_norm", "clip_value", "global_clip_norm", "accumulation_clip"),
    *("weight_decay", "ema", "sync_batch_norm", "loss_scale_overflow", "noise"),
)
SEPARATE = [*(f"{name}:2" for name in OPTIONS), "adam:1", "adam:4", "global_clip_norm:4", "ema:1"]
COLOCATED = ["sgd:1", "adam:2", "adam:4", "global_clip_norm:4", "accumulation:4"]


@pytest.fixture(scope="module")
def separate(launch: Launch, tmp_path_factory):
    return _results(launch, tmp_path_factory.mktemp("separate") / "found.json", 6, "separate", SEPARATE)


@pytest.fixture(scope="module")
def colocated(launch: Launch, tmp_path_factory):
    return _results(launch, tmp_path_factory.mktemp("colocated") / "found.json", 4, "colocated", COLOCATED)


def _results(launch, path, processes, placement, runs):
    outcome = launch(processes, "server_cases.py", 4, placement, path, *runs)
    assert outcome.exit_code == 0, outcome.err
    return json.loads(path.read_text())


@pytest.mark.parametrize("run", SEPARATE)
def test_two_workers_and_separate_servers_equal_one_process(run, separate):
    _check(run, separate[run])


@pytest.mark.parametrize("run", COLOCATED)
def test_four_workers_some_of_which_serve_equal_one_process(run, colocated):
    _check(run, colocated[run])


def _check(run, found):
    tolerance = CASES[run.partition(":")[0]].tolerance
    assert found["apart"] <= tolerance
    assert not found["ranks_differ"]
    assert found["moved"] > 10 * tolerance


@pytest.mark.parametrize("run", ["momentum:2", "adam:1", "adam:4"])
def test_separate_roles_send_and_receive_the_planned_bytes(run, separate):
    _check_bytes(separate[run])


@pytest.mark.parametrize("run", ["sgd:1", "adam:2", "adam:4"])
def test_colocated_roles_send_and_receive_the_planned_bytes(run, colocated):
    _check_bytes(colocated[run])


def _check_bytes(found):
    planned = [[n * found["steps"] for n in pair] for pair in found["planned"]]
    idle = [[0, 0]] * (len(found["bytes"]) - len(planned))  # servers that hold nothing
    assert found["bytes"] == planned + idle
