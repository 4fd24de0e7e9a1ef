"""Thirty trials of what can go wrong under a running job: one writer, the same weights, and how long it took.

    pytest tests/cluster/test_one_writer_matrix.py -m deep -s

A trial is its seed: the fault, one rank or two hosts, the step at which it strikes, and when it is over.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import one_writer
import pytest
import tiny_runs
from slurm_jobs import FAULTY, Job, slurm, submit, wait_until

from jobs.testbed import Testbed

pytestmark = [pytest.mark.deep, pytest.mark.slow, pytest.mark.timeout(900)]

TRIALS = 30
FAULTS = ("link cut", "slurmd killed", "controller restarted", "requeued", "powered off", "rank 0 stopped")
STOPPED_S = 120
START_AGAIN = {"link cut", "slurmd killed", "requeued", "powered off"}


@dataclass(frozen=True)
class Trial:
    """What a seed stands for."""

    seed: int
    fault: str
    hosts: int
    step: int
    lasts_s: float

    @classmethod
    def of(cls, seed: int) -> Trial:
        rng = random.Random(seed)
        fault = FAULTS[seed % len(FAULTS)]
        lasts_s = STOPPED_S if fault == "rank 0 stopped" else rng.uniform(5, 60)
        return cls(seed, fault, hosts=1 + seed // len(FAULTS) % 2, step=rng.randint(1, 22), lasts_s=lasts_s)

    def __str__(self) -> str:
        return f"trial {self.seed:2d}: {self.fault}, {self.hosts} host(s), step {self.step}"


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="module")
def reference(tmp_path_factory, shards, cluster) -> Callable[[int], str]:
    """Hash of the weights of a job of so many hosts that nothing interrupted."""
    known: dict[int, str] = {}

    def of(hosts: int) -> str:
        if hosts not in known:
            folder = tmp_path_factory.mktemp(f"reference-{hosts}")
            config = tiny_runs.write_config(folder, shards, "run")
            job = submit(cluster, folder / "job", [FAULTY, "none", 0, 0, config, "--resume"], nodes=hosts)
            job.wait_for_state("COMPLETED")
            known[hosts] = tiny_runs.result(folder / "run")["weights_sha256"]
        return known[hosts]

    return of


@pytest.mark.parametrize("seed", range(TRIALS))
def test_never_two_writers_and_the_weights_of_a_run_that_nothing_interrupted(
    tmp_path, shards, reference, cluster, seed
):
    trial = Trial.of(seed)
    expected = reference(trial.hosts)
    config = tiny_runs.write_config(tmp_path, shards, "run")
    command = [FAULTY, "wait", 0, trial.step, config, "--resume"]
    job = submit(cluster, tmp_path / "job", command, nodes=trial.hosts, requeues=3)
    wait_until(lambda: Path(f"{config}.waiting").exists(), f"step {trial.step}")
    job.wait_until_stored()

    began = time.monotonic()
    heal = strike(trial, cluster, job, job.says("BatchHost"))
    started_s = 0.0
    if trial.fault in START_AGAIN:
        wait_until(lambda: "start 2 on" in job.log, "a second start", 300)
        started_s = time.monotonic() - began
    # From here on a first start that is left goes on beside the second.
    Path(f"{config}.go").touch()
    time.sleep(max(0.0, trial.lasts_s - (time.monotonic() - began)))  # how long the fault lasts
    heal()
    job.wait_for_state("COMPLETED", seconds=400)
    completed_s = time.monotonic() - began
    at_the_end = one_writer.fingerprints(tmp_path / "run")
    up = [name for name in cluster.hosts if cluster.is_up(name)]
    wait_until(lambda: not any(job.pids(name) for name in up), "the end of every rank", 400)

    print(f"{trial}: second start after {started_s:.0f} s, completed after {completed_s:.0f} s")
    assert one_writer.fingerprints(tmp_path / "run") == at_the_end
    assert one_writer.contradictions(tmp_path / "run") == []
    assert [row["step"] for row in tiny_runs.rows(tmp_path / "run")] == [6, 12, 18, 24]
    assert tiny_runs.result(tmp_path / "run")["weights_sha256"] == expected


def strike(trial: Trial, cluster: Testbed, job: Job, host: str) -> Callable[[], None]:
    """Do what the trial is about to the job on its first host; returns what mends it."""
    if trial.fault == "link cut":
        cluster.link(host, up=False)
        return lambda: cluster.link(host, up=True)
    if trial.fault == "slurmd killed":
        cluster.kill_slurmd(host)
        return lambda: cluster.start_slurmd(host)
    if trial.fault == "powered off":
        cluster.power_off(host)
        return lambda: cluster.boot(host)
    if trial.fault == "rank 0 stopped":
        (rank, *_) = job.pids(host)
        cluster.exec(host, ["kill", "-STOP", str(rank)])
        return lambda: _exec(cluster, host, ["kill", "-CONT", str(rank)])
    if trial.fault == "controller restarted":
        cluster.restart_controller()
    else:
        slurm(cluster, "scontrol", "requeue", job.label)
    return lambda: None


def _exec(cluster: Testbed, host: str, command: list[str]) -> None:
    cluster.exec(host, command)
