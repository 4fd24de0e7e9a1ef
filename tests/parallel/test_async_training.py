"""Asynchronous training under a real mpirun: workers that die, a server that dies, stopping and resuming."""

from __future__ import annotations

import json
import random
import socket

import pytest
import tiny_runs

from trainer.telemetry import records

PROGRAM = "faulty_async.py"
RECOVERY = {"OMPI_MCA_orte_enable_recovery": "1"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return tiny_runs.make_shards(tmp_path_factory.mktemp("async") / "shards")


def write(tmp_path, shards, name, *, strategy=(), **changes):
    return tiny_runs.write_config(
        tmp_path,
        shards,
        name,
        train__strategy={"name": "parameter-server", "mode": "async", **dict(strategy)},
        **changes,
    )


def check_whole(folder, epochs):
    """Every step of every epoch was applied once, and its staleness counted."""
    rows, found = tiny_runs.rows(folder), tiny_runs.result(folder)
    assert [row["step"] for row in rows] == [6 * (epoch + 1) for epoch in range(epochs)]
    assert sum(found["staleness"]["updates"].values()) == found["steps"] == 6 * epochs
    assert rows[-1]["loss"] < rows[0]["loss"]
    return found


def test_a_worker_killed_at_any_step_does_not_stop_three(launch, tmp_path, shards):
    """kill -9, while it holds tickets and has computed a gradient that nobody gets."""
    config = write(tmp_path, shards, "killed", strategy={"staleness": 3})
    at = random.Random().randrange(1, 5)
    done = launch(4, PROGRAM, "kill", 1, at, config, environment=RECOVERY)
    assert "[rank 1 @" in done.err and "is gone; training goes on with 2 worker(s)" in done.err, (at, done)
    found = check_whole(tmp_path / "killed", 4)
    # The one server sends all weights for every step that is begun, and gets as many gradients for an update.
    weights = 4 * json.loads((tmp_path / "killed" / "run.json").read_text())["parameters"]
    assert 24 * weights <= found["bytes_sent"] < 30 * (weights + 1024), (found, weights)
    assert 24 * weights <= found["bytes_received"] < 30 * (weights + 1024), (found, weights)
    updates = list(found["updates_per_worker"].values())
    assert updates[1] <= at - 1 and sum(updates) == 24 and len(found["dead_workers"]) == 1
    assert (tmp_path / "killed" / "report.html").is_file()
    for rank in (0, 2):  # the living tell where their time went
        steps = records.read(tmp_path / "killed").steps[rank]
        assert len(steps) == updates[rank] and all(one.forward > 0 and one.exposed > 0 for one in steps)
        assert all(abs(sum(getattr(one, p) for p in records.PARTS) - one.seconds) < 1e-4 for one in steps)


def test_a_run_is_saved_when_asked_and_goes_on_under_another_strategy(launch, tmp_path, shards):
    """Stopped under two servers; one process goes on with the weights and slots that both held."""
    config = write(tmp_path, shards, "stopped", strategy={"count": 2})
    # Where mpirun is told to outlive ranks, its own exit code is 0: see jobs/local/surviving.py.
    done = launch(4, PROGRAM, "stop", 1, 4, config)
    assert done.exit_code == 75 and "as asked; the state is saved" in done.err, done
    (saved,) = tiny_runs.steps(tmp_path / "stopped")[-1:]
    done = launch(0, PROGRAM, "none", 0, 0, config, "train.strategy=data", "--resume")
    assert done.exit_code == 0 and f"step-{saved:08d}" in done.err, done
    rows = tiny_runs.rows(tmp_path / "stopped")
    assert [row["step"] for row in rows] == [6, 12, 18, 24]
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_a_dead_server_ends_the_run_with_its_name(launch, tmp_path, shards):
    config = write(tmp_path, shards, "lost", train__epochs=40)
    done = launch(3, PROGRAM, "kill-server", 2, 5, config, environment=RECOVERY, timeout=150)
    assert "error: server 0 @" in done.err and "is gone" in done.err, done
    assert not (tmp_path / "lost" / "result.json").exists()


@pytest.mark.parametrize(
    ("fault", "process", "said"),
    [
        ("kill-start", 1, "rank 1 @ {host} (process 1) did not connect to server 0"),
        ("kill-start", 2, "server 0 @ {host} (process 2) has not sent"),
        ("kill-meeting", 1, "Process 1 of 3 did not connect to process 0"),
    ],
)
def test_one_that_dies_before_addresses_are_exchanged_is_named_and_ends_the_run(
    launch, tmp_path, shards, fault, process, said
):
    config = write(tmp_path, shards, "absent")
    # After a process died, mpirun may not know the exit code: server 0 writes it down.
    environment = {**RECOVERY, "CINGULUM_END_FILE": str(tmp_path / "end")}
    done = launch(3, PROGRAM, fault, process, 5, config, environment=environment, timeout=90)
    assert (fault, process) != ("kill-start", 1) or (tmp_path / "end").read_text() == "1\n", done
    assert said.format(host=socket.gethostname()) in done.err and "within 5 s" in done.err, done
    assert "Traceback" not in done.err and not (tmp_path / "absent").exists(), done


def test_what_cannot_be_is_told_once_before_anything_is_computed(launch, tmp_path, shards):
    config = write(tmp_path, shards, "bad", strategy={"placement": "colocated"})
    done = launch(2, PROGRAM, "none", 0, 0, config)
    assert done.exit_code == 2 and done.err.count("train.strategy.placement: async") == 1, done
    assert "orte_enable_recovery" not in json.dumps(done.err.splitlines()[0])
