"""The body of a batch script, run by bash with stand-ins for Slurm. tests/cluster have the real one."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from jobs.rendering import batch_script
from jobs.sites import Site
from jobs.spec import JobSpec

SUBMISSION = "0123456789abcdef"


class Bench:
    """A job's folder, and a PATH on which scontrol and sinfo say what a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "it's a $(job)"
        self.programs = folder / "bin"
        self.folder.mkdir()
        self.programs.mkdir()
        self.calls = folder / "calls"
        self.calls.touch()
        self.slurm_says("JobState=RUNNING PreemptTime=None StartTime=2026-01-01T00:00:00 ExcNodeList=(null)")
        self.program("sinfo", "true")

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def slurm_says(self, fields: str) -> None:
        """What `scontrol show job` prints; other uses of scontrol are noted in `calls`."""
        show = f'if [ "$1" = show ]; then echo {shlex.quote(f"JobId=7 {fields}")}; exit; fi'
        self.program("scontrol", f'{show}\necho "$*" >>{shlex.quote(str(self.calls))}')

    def start(self, command: str, *, shrink: bool = False, requeues: int = 1) -> subprocess.Popen[bytes]:
        spec = JobSpec(
            "t",
            "command",
            (("bash", "-c", command),),
            str(self.folder),
            parallel=False,
            requeues=requeues,
            shrink=shrink,
        )
        script = self.folder.parent / "job.sbatch"
        script.write_text(batch_script(spec, Site(), self.folder, SUBMISSION))
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "n[1-3]"}
        environment = {**os.environ, **slurm, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        environment["SLURMD_NODENAME"] = "n1"
        with (self.folder / "out.log").open("ab") as log:
            return subprocess.Popen(["bash", str(script)], env=environment, stdout=log, stderr=log)

    def run(self, command: str, *, shrink: bool = False, requeues: int = 1) -> int:
        return self.start(command, shrink=shrink, requeues=requeues).wait(timeout=30)

    @property
    def failures(self) -> list[list[str]]:
        path = self.folder / "failures"
        return [line.split("\t")[1:] for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def requeued(self) -> int:
        return self.calls.read_text().splitlines().count("requeue 7")


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(("code", "requeued"), [(0, 0), (2, 0), (75, 1), (1, 1), (137, 1)])
def test_what_an_exit_code_leads_to(bench, code, requeued):
    assert bench.run(f"exit {code}") == code
    assert bench.requeued == requeued
    assert len(bench.failures) == (1 if code in (1, 137) else 0)
    assert not (bench.folder / "attempt").exists()


@pytest.mark.parametrize(
    ("code", "requeues", "state"),
    [(0, 1, "COMPLETED"), (2, 1, "FAILED"), (1, 0, "FAILED"), (75, 1, None), (1, 1, None)],
)
def test_the_folder_tells_how_a_task_ended_and_nothing_of_one_that_goes_on(bench, code, requeues, state):
    ending = bench.folder / "state.json"
    ending.write_text("of a start before")
    assert bench.run(f"exit {code}", requeues=requeues) == code
    if state is None:
        assert not ending.exists()
        return
    (task,) = json.loads(ending.read_text())["tasks"]
    assert (task["task"], task["state"], task["exit_code"], task["restarts"]) == (0, state, code, 0)
    assert abs(task["ended"] - time.time()) < 60


LOST = """ORTE has lost communication with a remote daemon.

  HNP daemon   : [[39242,0],0] on node n1
  Remote daemon: [[39242,0],2] on node n3
"""


@pytest.mark.parametrize(
    ("said", "where", "why"),
    [
        (
            "epoch 1\n[rank 1 @ n2] error: the disk is full\n[rank 0 @ n1] error: x",
            "rank 1 @ n2",
            "the disk is full",
        ),
        ("[rank 1 @ n2] KeyError: 'x'", "rank 1 @ n2", "KeyError: 'x'"),
        (
            "[rank 0 @ n1] no progress for 9 s while reading the next batch; ending all ranks",
            "rank 0 @ n1",
            "no progress for 9 s while reading the next batch; ending all ranks",
        ),
        (
            "mpirun noticed that process rank 1 with PID 0 on node n2 exited on signal 9 (Killed).",
            "rank 1 @ n2",
            "was killed by signal 9",
        ),
        (LOST, "n3", "the way to it is lost"),
        ("srun: error: n2: task 1: Killed", "rank 1 @ n2", "Killed"),
        ("srun: error: Node failure on n3", "n3", "the way to it is lost"),
        ("error: the learning rate is too high", "", "the learning rate is too high"),
        ("all was well", "", "ended with exit code 3"),
    ],
)
def test_who_is_at_fault_is_read_from_this_start_alone(bench, said, where, why):
    (bench.folder / "out.log").write_text("[rank 9 @ n9] error: of an earlier start\n")
    assert bench.run(f"echo {shlex.quote(said)}; exit 3") == 3
    assert bench.failures == [["3", where, why]]


def test_a_host_that_slurm_calls_down_is_at_fault_whatever_was_said(bench):
    bench.program("sinfo", "echo 'n1 allocated'; echo 'n3 down*'; echo 'n2 idle*'")
    bench.run("echo '[rank 0 @ n1] error: x'; exit 1", shrink=True)
    assert bench.failures == [["1", "n2,n3", "down, says Slurm: powered off, or its link is cut"]]


@pytest.mark.parametrize("shrink", [False, True])
def test_a_silent_host_is_left_out_when_that_was_asked_for(tmp_path, shrink):
    bench = Bench(tmp_path)
    bench.slurm_says("JobState=RUNNING PreemptTime=None ExcNodeList=n9")
    said = "[rank 2 @ n3] error: does not answer rank 0 @ n1: it is stopped"
    bench.run(f"echo '{said}'; exit 1", shrink=shrink)
    asked = "update JobId=7 ExcNodeList=n9,n3 NumNodes=2 NumTasks=2 NumCPUs=2"
    assert bench.calls.read_text().splitlines() == ["requeue 7", *([asked] if shrink else [])]


def test_failures_are_counted_and_the_job_ends_after_those_allowed(bench):
    assert [bench.run("exit 1", requeues=2) for _ in range(3)] == [1, 1, 1]
    assert bench.requeued == 2 and len(bench.failures) == 3
    log = (bench.folder / "out.log").read_text()
    assert "failed 3 times: not started again" in log
    # By hand it is tried once more.
    assert bench.run("exit 0", requeues=2) == 0


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PENDING"])
def test_a_job_that_slurm_has_ended_is_not_brought_back(bench, state):
    bench.slurm_says(f"JobState={state} PreemptTime=None")
    assert bench.run("exit 75") == 75
    assert bench.requeued == 0


@pytest.mark.parametrize(("at", "failed"), [("2026-01-01T00:00:09", 0), ("2025-12-31T23:59:59", 1)])
def test_being_preempted_in_this_start_is_no_failure(bench, at, failed):
    bench.slurm_says(f"JobState=RUNNING PreemptTime={at} StartTime=2026-01-01T00:00:00")
    assert bench.run("exit 1") == 1
    assert bench.requeued == 1 and len(bench.failures) == failed


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_signal_is_passed_on_and_the_script_waits_for_what_it_started(bench, number):
    process = bench.start("trap 'sleep 0.2; exit 75' USR2; touch ready; while :; do sleep 0.01; done")
    deadline = time.monotonic() + 20
    while not (bench.folder / "ready").exists():
        assert time.monotonic() < deadline, "waited in vain for the command to start"
        time.sleep(0.01)
    assert (bench.folder / "attempt").read_text() == "n1\n"
    process.send_signal(number)
    assert process.wait(timeout=20) == 75
    assert bench.requeued == 1 and bench.failures == []


def test_a_start_that_was_never_ended_counts_as_failed(bench):
    (bench.folder / "attempt").write_text("n7\n")
    assert bench.run("exit 0") == 0
    assert bench.failures == [["-", "n7", "the host of the batch script was lost during the start before"]]
    (bench.folder / "attempt").write_text("n8\n")
    assert bench.run("exit 0", requeues=1) == 1
