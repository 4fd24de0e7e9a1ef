"""What breaks in a cluster, and what becomes of the job: who is named, whether it starts again, and where."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tiny_runs
from slurm_jobs import FAULTY, SAVER, Job, slurm, submit, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards")


def started(cluster, tmp_path: Path, **options) -> Job:
    """A job that waits for a signal."""
    job = submit(cluster, tmp_path / "job", [SAVER, tmp_path / "job"], **options)
    wait_until(lambda: job.events == ["started"], "the start")
    return job


def test_a_host_without_power_is_named_and_the_job_goes_on_without_it(tmp_path, shards, cluster):
    """Three ranks become two, with the same global batch."""
    config = tiny_runs.write_config(
        tmp_path, shards, "run", train__global_batch=6, guards__timeout_s=30, train__epochs=3
    )
    command = [FAULTY, "wait", 0, 5, config, "--resume"]
    job = submit(cluster, tmp_path / "job", command, nodes=3, least_nodes=2)
    wait_until(lambda: Path(f"{config}.waiting").exists(), "step 5")
    Path(f"{config}.go").touch()
    cluster.power_off("n3")
    job.wait_for_state("COMPLETED")
    ((_, _, where, why),) = job.failures
    assert where == "n3" and re.search("connection to it is lost|powered off", why)
    assert "continues with 2 hosts, without n3" in job.log
    assert "start 2 on n[1-2]" in job.log and "/checkpoints/step-" in job.log
    result = tiny_runs.result(tmp_path / "run")
    assert result["world_size"] == 2
    assert len(tiny_runs.rows(tmp_path / "run")) == 3


def test_a_cut_link_ends_all_ranks_and_the_job_goes_on_elsewhere(tmp_path, shards, cluster):
    config = tiny_runs.write_config(tmp_path, shards, "run", guards__timeout_s=20)
    job = submit(cluster, tmp_path / "job", [FAULTY, "wait", 0, 5, config, "--resume"])
    wait_until(lambda: Path(f"{config}.waiting").exists(), "step 5")
    cluster.link("n2", up=False)
    Path(f"{config}.go").touch()
    wait_until(lambda: "start 2 on n[1,3]" in job.log, "a start without n2")
    assert [line[2] for line in job.failures] == ["n2"]
    # Nobody can tell the rank behind the cut link to end. It ends by itself.
    wait_until(lambda: not job.pids("n2"), "the end of the rank on n2", 90)
    job.wait_for_state("COMPLETED")
    assert tiny_runs.result(tmp_path / "run")["world_size"] == 2


def test_the_host_of_the_batch_script_is_lost(tmp_path, cluster):
    """Nobody is left to write that down but the next start."""
    job = started(cluster, tmp_path)
    cluster.power_off("n1")
    wait_until(lambda: "start 2 on n[2-3]" in job.log, "a start on other hosts")
    ((_, code, where, why),) = job.failures
    assert (code, where) == ("-", "n1") and "host of the batch script was lost" in why
    wait_until(lambda: job.events == ["started", "started"], "its ranks")
    slurm(cluster, "scancel", "--batch", "--signal=USR2", job.label)
    job.wait_for_state("COMPLETED")
    assert int(job.says("Restarts")) == 2


def test_a_host_whose_slurmd_died_is_named_and_left_although_the_controller_was_restarted(tmp_path, cluster):
    """The script, on another host, is told by the controller that came back."""
    job = started(cluster, tmp_path)
    job.wait_until_stored()
    cluster.kill_slurmd("n2")
    cluster.restart_controller()
    wait_until(lambda: [line[2] for line in job.failures] == ["n2"], "the script to name n2")
    wait_until(lambda: "start 2 on n[1,3]" in job.log, "a start on other hosts")
    wait_until(lambda: job.events.count("started") == 2, "its ranks")
    if not (job.folder / "saved").exists():  # KillWait may be too short for that on a busy machine
        slurm(cluster, "scancel", "--batch", "--signal=USR2", job.label)
    job.wait_for_state("COMPLETED")
    assert [line[2] for line in job.failures] == ["n2"]


def test_a_job_that_may_shrink_goes_on_without_a_host_that_lost_its_power(tmp_path, cluster):
    job = started(cluster, tmp_path, nodes=3, least_nodes=2)
    cluster.power_off("n3")
    wait_until(lambda: "start 2 on n[1-2]" in job.log, "a start on the hosts that are left")
    assert "continues with 2 hosts, without n3" in job.log
    ((_, _, where, why),) = job.failures
    assert where == "n3" and re.search("connection to it is lost|powered off", why)
    wait_until(lambda: job.events.count("started") == 2, "its ranks")
    if not (job.folder / "saved").exists():  # mpirun may end rank 0 before it could
        slurm(cluster, "scancel", "--batch", "--signal=USR2", job.label)
    job.wait_for_state("COMPLETED")
    assert job.events[-1] == "done" and len(job.failures) == 1


def test_a_job_that_may_shrink_goes_on_without_the_host_of_its_batch_script(tmp_path, cluster):
    """Slurm itself would wait for as many hosts as before: a step on another host has changed the job."""
    folder = tmp_path / "job"
    job = submit(cluster, folder, [SAVER, folder], nodes=3, least_nodes=2)
    wait_until(lambda: job.events == ["started"], "its ranks")
    cluster.power_off("n1")
    wait_until(lambda: "start 2 on n[2-3]" in job.log, "a start on the hosts that are left")
    assert "continues with 2 hosts, without n1" in job.log
    ((_, code, where, why),) = job.failures
    assert (code, where) == ("-", "n1") and "host of the batch script was lost" in why
    wait_until(lambda: job.events == ["started", "started"], "its ranks")
    slurm(cluster, "scancel", "--batch", "--signal=USR2", job.label)
    job.wait_for_state("COMPLETED")


def test_the_allowed_number_of_failures_is_kept(tmp_path, cluster):
    program = tmp_path / "fails.py"
    # A whole line at once: two ranks write.
    program.write_text("import os\nos.write(2, b'error: the disk is full\\n')\nraise SystemExit(1)\n")
    job = submit(cluster, tmp_path / "job", [program], requeues=1)
    job.wait_for_state("FAILED")
    assert int(job.says("Restarts")) == 1
    assert [line[1:] for line in job.failures] == [["1", "", "the disk is full"]] * 2
    assert "failed 2 times: not started again" in job.log


def test_bad_input_is_never_tried_again(tmp_path, cluster):
    program = tmp_path / "refuses.py"
    program.write_text("raise SystemExit(2)\n")
    job = submit(cluster, tmp_path / "job", [program], requeues=3)
    job.wait_for_state("FAILED")
    assert job.says("ExitCode") == "2:0" and int(job.says("Restarts")) == 0 and job.failures == []
    # For when Slurm, which keeps no accounts here, has forgotten it.
    (ended,) = json.loads((job.folder / "state.json").read_text())["tasks"]
    assert (ended["state"], ended["exit_code"], ended["restarts"]) == ("FAILED", 2, 0)
    assert len(ended["hosts"]) == 2 and set(ended["hosts"]) < {"n1", "n2", "n3"}


def test_a_job_that_saved_while_the_controller_was_away_is_started_again(tmp_path, cluster):
    job = started(cluster, tmp_path)
    job.wait_until_stored()
    cluster.kill_controller()
    (rank,) = job.pids("n1")
    cluster.exec("n1", ["kill", "-USR2", str(rank)])
    wait_until(lambda: any(word.startswith("saved") for word in job.events), "the state to be saved")
    wait_until(lambda: cluster.exec("n1", ["pgrep", "-x", "scontrol"]).stdout, "the script to ask in vain")
    cluster.start_controller()
    job.wait_for_state("COMPLETED")
    assert job.events[-2:] == ["started", "done"] and job.failures == []
