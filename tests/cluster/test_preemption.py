"""Jobs that Slurm interrupts save, start again, and end with the weights of one that nothing interrupted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tiny_runs
from slurm_jobs import FAULTY, SAVER, Job, preempt, slurm, submit, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="module")
def reference(tmp_path_factory, shards, cluster) -> Path:
    """The folder of a job of two hosts that nothing interrupted."""
    folder = tmp_path_factory.mktemp("reference")
    config = tiny_runs.write_config(folder, shards, "run")
    job = submit(cluster, folder / "job", [FAULTY, "none", 0, 0, config, "--resume"])
    job.wait_for_state("COMPLETED")
    assert job.failures == [] and not list(job.folder.glob("attempt*"))
    return folder


def weights(folder: Path) -> str:
    return tiny_runs.result(folder / "run")["weights_sha256"]


def arrays(folder: Path) -> list[np.ndarray]:
    return keras.saving.load_model(folder / "run" / "model.keras").get_weights()


def starts_again(folder: Path) -> list[int]:
    """Steps of the checkpoints that later starts went on from."""
    record = json.loads((folder / "run" / "run.json").read_text())
    assert record["world_size"] == 2
    return [start["step"] for start in record["resumed_from"]]


def started_and_waiting(
    cluster, tmp_path: Path, shards: Path, step: int = 7, strategy: str = "data", **options
) -> tuple[Job, Path]:
    """A training of two hosts whose rank 0 waits after this step, until asked to save."""
    config = tiny_runs.write_config(tmp_path, shards, "run", train__strategy=strategy)
    job = submit(cluster, tmp_path / "job", [FAULTY, "wait", 0, step, config, "--resume"], **options)
    wait_until(lambda: Path(f"{config}.waiting").exists(), f"step {step}")
    return job, config


@pytest.mark.parametrize(
    "launcher, strategy",
    [
        ("srun", "spatial"),
        pytest.param("mpirun", "data", marks=pytest.mark.deep),
        pytest.param("srun", "data", marks=pytest.mark.deep),
        pytest.param("mpirun", "filters", marks=pytest.mark.deep),
    ],
)
def test_a_preempted_job_goes_on_at_the_very_step_and_ends_with_the_same_bits(
    tmp_path, shards, reference, cluster, launcher, strategy
):
    """The same bits, that is, where the strategy is the same; a divided network adds up in another order."""
    job, _ = started_and_waiting(cluster, tmp_path, shards, launcher=launcher, strategy=strategy)
    preempt(cluster, tmp_path)
    job.wait_for_state("COMPLETED")
    assert int(job.says("Restarts")) == 1
    saved = re.search(r"stopped at step (\d+) of 24", job.log)
    assert saved and int(saved[1]) >= 7
    assert f"resumed from {tmp_path}/run/checkpoints/step-{int(saved[1]):08d}" in job.log
    assert "asked to save (USR2)" in job.log and "saved and stopped; to be started again" in job.log
    assert starts_again(tmp_path) == [int(saved[1])]
    assert job.failures == []
    if strategy == "data":
        assert weights(tmp_path) == weights(reference)
        return
    for mine, its in zip(arrays(tmp_path), arrays(reference), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-4)
    hosts = json.loads((tmp_path / "run" / "run.json").read_text())["hosts"]
    assert len(set(hosts)) == 2
    counted = tiny_runs.result(tmp_path / "run")["prediction"]["counted_bytes"]
    assert counted["predicted"] == counted["measured"] > 0


def test_a_cancelled_job_saves_and_is_not_started_again(tmp_path, cluster):
    job = submit(cluster, tmp_path / "job", [SAVER, tmp_path / "job"])
    wait_until(lambda: job.events == ["started"], "the start")
    slurm(cluster, "scancel", job.label)
    wait_until(lambda: len(job.events) == 2, "the state to be saved")
    job.wait_for_state("CANCELLED")
    assert job.events[1].startswith("saved-on-") and int(job.says("Restarts")) == 0
    assert job.failures == [] and not list(job.folder.glob("attempt*"))


def test_a_cancelled_training_goes_on_when_it_is_submitted_again(tmp_path, shards, reference, cluster):
    job, config = started_and_waiting(cluster, tmp_path, shards)
    slurm(cluster, "scancel", job.label)
    wait_until(lambda: "stopped at step" in job.log, "the state to be saved")
    job.wait_for_state("CANCELLED")
    assert job.failures == [] and not list(job.folder.glob("attempt*"))

    # The same command goes on, by hand.
    again = submit(cluster, tmp_path / "again", [FAULTY, "none", 0, 0, config, "--resume"])
    again.wait_for_state("COMPLETED")
    assert int(job.says("Restarts")) == 0 and job.state == "CANCELLED"
    assert weights(tmp_path) == weights(reference)


def test_a_job_killed_before_its_first_checkpoint_starts_over(tmp_path, shards, reference, cluster):
    job, config = started_and_waiting(cluster, tmp_path, shards, step=1)
    assert not tiny_runs.steps(tmp_path / "run")
    Path(f"{config}.go").touch()  # for the next start; this one is stopped at once
    (rank,) = job.pids("n2")
    cluster.exec("n2", ["kill", "-9", str(rank)])
    job.wait_for_state("COMPLETED")
    ((_, code, where, why),) = job.failures
    assert (code, where, why) == ("137", "rank 1 @ n2", "was killed by signal 9 (SIGKILL)")
    assert weights(tmp_path) == weights(reference)


def test_a_dead_slurmd_and_a_restarted_controller_cost_no_step_before_the_last_checkpoint(
    tmp_path, shards, reference, cluster
):
    """There is a checkpoint after every second step; rank 0 waits after the seventh."""
    job, config = started_and_waiting(cluster, tmp_path, shards)
    assert tiny_runs.steps(tmp_path / "run")[-1] == 6
    job.wait_until_stored()
    cluster.kill_slurmd("n2")
    cluster.restart_controller()
    wait_until(lambda: [line[2] for line in job.failures] == ["n2"], "the script to tell of n2")
    wait_until(lambda: "start 2 on n[1,3]" in job.log, "a start on other hosts")
    # Told to save while they still ran, the ranks did so, unless KillWait was too short for a busy machine.
    last = tiny_runs.steps(tmp_path / "run")[-1]
    assert last >= 6
    Path(f"{config}.go").touch()
    job.wait_for_state("COMPLETED")
    assert starts_again(tmp_path) == [last]
    assert f"resumed from {tmp_path}/run/checkpoints/step-{last:08d}" in job.log
    assert [row["step"] for row in tiny_runs.rows(tmp_path / "run")] == [6, 12, 18, 24]
    assert weights(tmp_path) == weights(reference)


def test_without_a_signal_of_its_own_a_job_is_preempted_by_sigterm_and_saves(tmp_path, cluster):
    """Slurm sends it to mpirun's daemons, too; they must not end their ranks."""
    job = submit(
        cluster,
        tmp_path / "job",
        [SAVER, tmp_path / "job"],
        nodes=3,
        change=lambda script: re.sub("#SBATCH --signal.*\n", "", script),
    )
    wait_until(lambda: job.events == ["started"], "the start")
    preempt(cluster, tmp_path)
    job.wait_for_state("COMPLETED")
    assert job.events[1].startswith("saved-on-") and job.events[2:] == ["started", "done"]
    assert "USR2" not in job.log and job.failures == []


def test_a_job_at_its_time_limit_saves_and_is_started_again(tmp_path, cluster):
    job = submit(cluster, tmp_path / "job", [SAVER, tmp_path / "job"], minutes=1, grace_s=40)
    job.wait_for_state("COMPLETED")
    assert job.events == ["started", "saved-on-SIGUSR2", "started", "done"]
    assert int(job.says("Restarts")) == 1 and job.failures == []


def test_a_job_that_has_not_saved_at_its_time_limit_is_started_again_a_bounded_number_of_times(
    tmp_path, cluster
):
    program = tmp_path / "saves_for_ever.py"
    program.write_text(
        "import signal, time\n"
        "for number in (signal.SIGUSR2, signal.SIGTERM): signal.signal(number, lambda *_: None)\n"
        "while True: time.sleep(1)\n"
    )
    job = submit(cluster, tmp_path / "job", [program], minutes=1, requeues=0)
    job.wait_for_state("FAILED", seconds=240)
    assert [line[1:] for line in job.failures] == [["-", "", "had not saved when its time was over"]]
    assert "failed 1 times: not started again" in job.log and int(job.says("Restarts")) == 1


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_a_job_requeued_by_its_user_saves_first(tmp_path, cluster, launcher):
    job = submit(cluster, tmp_path / "job", [SAVER, tmp_path / "job"], requeues=0, launcher=launcher)
    wait_until(lambda: job.events == ["started"], "the start")
    slurm(cluster, "scontrol", "requeue", job.label)
    job.wait_for_state("COMPLETED")
    assert job.events[1].startswith("saved-on-") and job.events[2:] == ["started", "done"]
    assert int(job.says("Restarts")) == 1 and job.failures == []


def test_a_rank_that_srun_ends_after_all_have_saved_is_no_failure(tmp_path, cluster):
    """The first rank to end, with 75, ends the step (--kill-on-bad-exit)."""
    command = [SAVER, tmp_path / "job", "late"]
    job = submit(cluster, tmp_path / "job", command, requeues=0, launcher="srun")
    wait_until(lambda: job.events == ["started"], "the start")
    slurm(cluster, "scancel", "--batch", "--signal=USR2", job.label)
    job.wait_for_state("COMPLETED", "FAILED")
    assert "task 1: Terminated" in job.log, job.log
    assert job.state == "COMPLETED" and job.failures == [], job.log
    assert job.events == ["started", "saved-on-SIGUSR2", "started", "done"]
