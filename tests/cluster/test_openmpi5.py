"""Open MPI 5, whose mpirun and daemons are PRRTE's, with options of other names: in a second environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import openmpi5
import pytest
import tiny_runs
from slurm_jobs import FAULTY, SAVER, slurm, submit, wait_until
from ssh_jobs import START_S, are_up, ranks_end, start, waiting

from jobs.spec import Resources

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def _five(monkeypatch) -> None:
    """What these tests start is started with the second environment's Python, and the mpirun beside it."""
    monkeypatch.setattr(sys, "executable", str(openmpi5.python()))


def test_a_killed_rank_is_named_and_all_start_again(cluster, tmp_path):
    job = start(cluster, tmp_path, waiting(tmp_path))
    job.wait(are_up(tmp_path, 3), "three ranks", START_S)
    cluster.exec("n2", ["pkill", "-9", "-f", "python.* .*attended.py"])
    ranks_end(job, ["n1", "n3"], "attended.py")
    entry = job.end()
    assert (entry.state, entry.restarts, entry.hosts) == ("COMPLETED", 1, ("n1", "n2", "n3"))
    assert "rank 1 @ n2\twas killed by signal 9 (SIGKILL)" in job.failures[0]


def test_a_cut_link_ends_the_ranks_on_both_sides_and_a_spare_host_takes_over(cluster, tmp_path):
    job = start(cluster, tmp_path, waiting(tmp_path), resources=Resources(nodes=2))
    job.wait(are_up(tmp_path, 2), "two ranks", START_S)
    assert job.entry().hosts == ("n1", "n2")
    cluster.link("n2", False)
    ranks_end(job, ["n1", "n2"], "attended.py")
    entry = job.end()
    assert (entry.state, entry.restarts, entry.hosts) == ("COMPLETED", 1, ("n1", "n3"))
    assert job.failures[0].split("\t")[2] == "n2"


def test_a_training_over_ssh_that_loses_a_host_ends_finished(cluster, tmp_path):
    shards = tiny_runs.make_shards(tmp_path / "shards")
    changes = {"train__global_batch": 6, "train__epochs": 8, "guards__timeout_s": 15}
    config = tiny_runs.write_config(tmp_path, shards, "run", checkpoint__every_steps=4, **changes)
    task = (sys.executable, "-m", "cingulum", "train", str(config), "--resume")
    resources = Resources(nodes=3, least_nodes=2)
    job = start(cluster, tmp_path, task, resources=resources, shrink=True, global_batch=6)
    folder = tmp_path / "run"
    job.wait(lambda: tiny_runs.steps(folder), "a checkpoint", START_S)
    cluster.power_off("n3")
    ranks_end(job, ["n1", "n2"], "cingulum train")
    entry = job.end()
    assert (entry.state, entry.restarts, entry.hosts) == ("COMPLETED", 1, ("n1", "n2")), job.log
    assert tiny_runs.result(folder)["epochs"] == 8
    assert json.loads((folder / "run.json").read_text())["world_size"] == 2
    assert job.failures[0].split("\t")[2] == "n3"


def test_in_a_batch_job_all_ranks_save_when_told_and_the_training_ends_finished(cluster, tmp_path):
    """SIGUSR2 to the script: mpirun hands it to the ranks of both hosts, and ends with their 75."""
    shards = tiny_runs.make_shards(tmp_path / "shards")
    config = tiny_runs.write_config(tmp_path, shards, "run", train__epochs=3, guards__timeout_s=30)
    job = submit(cluster, tmp_path / "job", [FAULTY, "wait", 0, 5, config, "--resume"])
    wait_until(lambda: Path(f"{config}.waiting").exists(), "step 5")
    slurm(cluster, "scancel", "--batch", "--signal=USR2", job.label)
    Path(f"{config}.go").touch()
    job.wait_for_state("COMPLETED")
    assert "saved and stopped; to be started again" in job.log and job.failures == []
    assert int(job.says("Restarts")) == 1 and "resumed from" in job.log
    assert tiny_runs.result(tmp_path / "run")["world_size"] == 2
    assert [row["step"] for row in tiny_runs.rows(tmp_path / "run")] == [6, 12, 18]


def test_daemons_without_a_signal_of_their_own_leave_the_saving_to_their_ranks(cluster, tmp_path):
    """Slurm sends SIGTERM to all: prted, started by `env --block-signal=TERM`, does not end its ranks."""
    folder = tmp_path / "job"
    job = submit(cluster, folder, [SAVER, folder], requeues=0)
    wait_until(lambda: job.events == ["started"], "the start")
    slurm(cluster, "scontrol", "requeue", job.label)
    job.wait_for_state("COMPLETED")
    assert job.events[1].startswith("saved-on-") and job.events[2:] == ["started", "done"], job.log
    assert job.failures == []


def test_in_a_batch_job_a_killed_rank_is_named(cluster, tmp_path):
    job = submit(cluster, tmp_path / "job", [SAVER, tmp_path / "job"])
    wait_until(lambda: job.events == ["started"], "the start")
    (rank,) = job.pids("n2")
    cluster.exec("n2", ["kill", "-9", str(rank)])
    wait_until(lambda: job.events == ["started", "started"], "the second start")
    assert [line[1] for line in job.failures] == ["137"]


def test_in_a_batch_job_a_cut_link_is_noticed_and_the_job_goes_on_elsewhere(cluster, tmp_path):
    shards = tiny_runs.make_shards(tmp_path / "shards")
    config = tiny_runs.write_config(tmp_path, shards, "run", guards__timeout_s=20)
    job = submit(cluster, tmp_path / "job", [FAULTY, "wait", 0, 5, config, "--resume"])
    wait_until(lambda: Path(f"{config}.waiting").exists(), "step 5")
    cluster.link("n2", up=False)
    Path(f"{config}.go").touch()
    wait_until(lambda: "start 2 on n[1,3]" in job.log, "a start without n2")
    assert [line[2] for line in job.failures] == ["n2"]
    wait_until(lambda: not job.pids("n2"), "the end of the rank on n2", 90)
    job.wait_for_state("COMPLETED")
    assert tiny_runs.result(tmp_path / "run")["world_size"] == 2
