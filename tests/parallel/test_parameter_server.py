"""Synchronous parameter servers: plain Keras' weights in one process, and the bytes that were planned."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Launch
from programs.cases import CASES

pytestmark = pytest.mark.slow

# Of two workers, and of four, some of which serve: processes, and cases with their number of servers.
PROCESSES = {"separate": 6, "colocated": 4}
# What a server does itself, and what it must leave to the workers.
RUNS = {
    "separate": (
        *("momentum:2", "adam:1", "adam:4", "global_clip_norm:4", "accumulation_clip:2", "noise:2"),
        *("sync_batch_norm:2", "loss_scale_overflow:2", "ema:1", "compiled:2"),
    ),
    "colocated": ("sgd:1", "adam:2", "adam:4", "accumulation:4"),
}
DEEP = {
    "separate": ("adamw:2", "clip_norm:2", "clip_value:2", "global_clip_norm:2", "weight_decay:2", "ema:2"),
    "colocated": ("global_clip_norm:4",),
}
EVERY = [(placement, run) for placement, runs in RUNS.items() for run in runs]
EVERY += [
    pytest.param(placement, run, marks=pytest.mark.deep) for placement, runs in DEEP.items() for run in runs
]


@pytest.fixture(scope="module")
def found(
    launch: Launch, asked_for: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Any]:
    """What is found of a placement's run; all runs of it that are asked for are of one launch."""

    @functools.cache
    def of(placement: str) -> dict[str, Any]:
        path = tmp_path_factory.mktemp(placement) / "found.json"
        runs = asked_for("run", placement=placement)
        outcome = launch(PROCESSES[placement], "server_cases.py", 4, placement, path, *runs)
        assert outcome.exit_code == 0, outcome.err
        results: dict[str, Any] = json.loads(path.read_text())
        return results

    return lambda placement, run: of(placement)[run]


@pytest.mark.parametrize("placement, run", EVERY)
def test_workers_and_servers_equal_one_process(
    placement: str, run: str, found: Callable[[str, str], Any]
) -> None:
    result, tolerance = found(placement, run), CASES[run.partition(":")[0]].tolerance
    assert result["apart"] <= tolerance
    assert not result["ranks_differ"]
    assert result["moved"] > 10 * tolerance


@pytest.mark.parametrize(
    "placement, run",
    [("separate", run) for run in ("momentum:2", "adam:1", "adam:4")]
    + [("colocated", run) for run in ("sgd:1", "adam:2", "adam:4")],
)
def test_all_roles_send_and_receive_the_planned_bytes(
    placement: str, run: str, found: Callable[[str, str], Any]
) -> None:
    result = found(placement, run)
    planned = [[n * result["steps"] for n in pair] for pair in result["planned"]]
    idle = [[0, 0]] * (len(result["bytes"]) - len(planned))  # servers that hold nothing
    assert result["bytes"] == planned + idle
