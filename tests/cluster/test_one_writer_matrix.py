"""Thirty trials of what can go wrong under a running job: one writer, the same weights, and how long it took.

    pytest tests/cluster/test_one_writer_matrix.py -m deep -s

A trial is its seed: the fault, one rank or two hosts, the step at which it strikes, and when it is over.
After the last one a table is printed: medians of the seconds until the last start, and until the end.
"""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import one_writer
import pytest
import tiny_runs
from slurm_jobs import FAULTY, Job, slurm, submit, wait_until

from jobs.testbed import Testbed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRIALS = 30
FAULTS = ("link cut", "slurmd killed", "controller restarted", "requeued", "powered off", "rank 0 stopped")
STOPPED_S = 120
START_AGAIN = {"link cut", "slurmd killed", "requeued", "powered off"}
# The first start's rank runs on beside the second (on two hosts its mpirun ends with what was lost).
LEAVE_AN_ORPHAN = {("link cut", 1), ("slurmd killed", 1)}


@dataclass(frozen=True)
class Trial:
    """What a seed stands for.

    Attributes:
        seed: its number.
        fault: what strikes.
        hosts: of the job, with a rank on each.
        step: at which the fault strikes.
        lasts_s: until it is mended.
        late: the first start goes on only when the second has taken the run over.
    """

    seed: int
    fault: str
    hosts: int
    step: int
    lasts_s: float
    late: bool

    @classmethod
    def of(cls, seed: int) -> Trial:
        rng = random.Random(seed)
        fault = FAULTS[seed % len(FAULTS)]
        lasts_s = STOPPED_S if fault == "rank 0 stopped" else rng.uniform(5, 60)
        hosts, step = 1 + seed // len(FAULTS) % 2, rng.randint(1, 22)
        return cls(
            seed, fault, hosts, step, lasts_s, (fault, hosts) in LEAVE_AN_ORPHAN and rng.random() < 0.5
        )

    def __str__(self) -> str:
        late = ", the first start late" if self.late else ""
        return f"trial {self.seed:2d}: {self.fault}, {self.hosts} host(s), step {self.step}{late}"


@dataclass(frozen=True)
class Outcome:
    """What became of a trial.

    Attributes:
        trial: which it was.
        starts: of the run, all in all.
        last_start_s: from the fault to the last start; None where the first one went on.
        completed_s: from the fault to the job's end.
    """

    trial: Trial
    starts: int
    last_start_s: float | None
    completed_s: float

    def __str__(self) -> str:
        last = f"the last after {self.last_start_s:.0f} s, " if self.last_start_s is not None else ""
        return f"{self.trial}: {self.starts} start(s), {last}completed after {self.completed_s:.0f} s"


@pytest.fixture(scope="module")
def outcomes() -> Iterator[list[Outcome]]:
    """Those of the trials that passed; their table is printed after the last one."""
    found: list[Outcome] = []
    yield found
    print("\n| Fault | Hosts | Passed | Started again after | Completed after |")
    print("| --- | --- | --- | --- | --- |")
    for fault, hosts in sorted({(o.trial.fault, o.trial.hosts) for o in found}):
        these = [o for o in found if (o.trial.fault, o.trial.hosts) == (fault, hosts)]
        again = [o.last_start_s for o in these if o.last_start_s is not None]
        started = f"{statistics.median(again):.0f} s" if again else "-"
        completed = statistics.median(o.completed_s for o in these)
        print(f"| {fault} | {hosts} | {len(these)} | {started} | {completed:.0f} s |")


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
    tmp_path, shards, reference, cluster, outcomes, seed
):
    trial = Trial.of(seed)
    expected = reference(trial.hosts)
    config = tiny_runs.write_config(tmp_path, shards, "run")
    command = [FAULTY, "wait", 0, trial.step, config, "--resume"]
    job = submit(cluster, tmp_path / "job", command, nodes=trial.hosts, requeues=3)
    wait_until(lambda: Path(f"{config}.waiting").exists(), f"step {trial.step}")
    job.wait_until_stored()

    began, began_at = time.monotonic(), time.time()
    heal = strike(trial, cluster, job, job.says("BatchHost"))
    if trial.fault in START_AGAIN:
        wait_until(lambda: "start 2 on" in job.log, "a second start", 300)
    if trial.late:
        reads = tmp_path / "run" / ".writers" / "00000002.reads"
        wait_until(reads.exists, "the second start to take the run over")
    # From here on a first start that is left goes on beside the second, which gives it 20 s to end.
    Path(f"{config}.go").touch()
    if trial.late:
        wait_until(lambda: "another process writes this run" in job.log, "the first start to be refused")
    time.sleep(max(0.0, trial.lasts_s - (time.monotonic() - began)))  # how long the fault lasts
    heal()
    job.wait_for_state("COMPLETED", seconds=400)
    completed_s = time.monotonic() - began
    at_the_end = one_writer.fingerprints(tmp_path / "run")
    up = [name for name in cluster.hosts if cluster.is_up(name)]
    wait_until(lambda: not any(job.pids(name) for name in up), "the end of every rank", 400)

    starts = re.findall(r"^(\S+) cingulum: start \d+ on", job.log, re.MULTILINE)
    last_start_s = _time(starts[-1]) - began_at if len(starts) > 1 else None
    outcome = Outcome(trial, len(starts), last_start_s, completed_s)
    print(outcome)
    assert one_writer.fingerprints(tmp_path / "run") == at_the_end
    assert one_writer.contradictions(tmp_path / "run") == []
    assert [row["step"] for row in tiny_runs.rows(tmp_path / "run")] == [6, 12, 18, 24]
    assert tiny_runs.result(tmp_path / "run")["weights_sha256"] == expected
    outcomes.append(outcome)


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


def _time(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp()
