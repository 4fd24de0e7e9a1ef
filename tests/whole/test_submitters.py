"""Submitters that are killed, and that are many at once: the store and the cluster agree afterwards.

A file stands in for the cluster, and a real program, run as sbatch is, appends to it; tests/cluster has the
same on a real Slurm.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stand_in_cluster import StandInCluster

from jobs.store import sync
from jobs.store.store import Store

HELPERS = Path(__file__).parents[1] / "helpers"
# Calls of the system that change files or start programs, and at every how manyth of each to kill: SQLite
# makes a hundred of the first.
CALLS = {"pwrite64": 7, "fdatasync": 5, "ftruncate": 3, "unlink": 3}
CALLS |= dict.fromkeys(("write", "fsync", "mkdir", "rename", "link", "vfork"), 1)


@pytest.fixture
def environment() -> dict[str, str]:
    path = os.pathsep.join([str(HELPERS), *filter(None, sys.path)])
    return {**{k: v for k, v in os.environ.items() if k != "CINGULUM_STORE"}, "PYTHONPATH": path}


def until_ended(group: int) -> None:
    """Wait for the launcher's program, which outlives who started it."""
    deadline = time.monotonic() + 60
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < deadline, "the launcher's program still runs"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_submitter_killed_at_any_line_loses_no_job_and_submits_none_twice(environment, in_memory) -> None:
    ran = subprocess.run(
        [sys.executable, HELPERS / "killed_submissions.py", in_memory, "1"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1190,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["wrong"] == []
    # Kills before the row, before the launcher's program, while it ran or after it; and one to the end.
    assert min(len(found["nothing"]), len(found["lost"]), len(found["adopted"])) > 50
    assert any(where.startswith("subprocess.py") for where in found["adopted"])
    assert len(found["finished"]) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("call", "every"),
    sorted(CALLS.items()),
)
def test_a_submitter_killed_within_a_call_of_the_system_leaves_a_whole_store(
    environment, in_memory, call, every
) -> None:
    """Also where SQLite makes, writes or removes its files, which no line of Python is about."""
    if shutil.which("strace") is None:
        why = "strace is needed, which kills a program at its n-th call of the system"
        if os.environ.get("CINGULUM_REQUIRE_CLUSTER") == "1":
            pytest.fail(why)
        pytest.skip(why)
    killed = 0
    for point in range(1, 1000, every):
        folder = in_memory / str(point)
        (folder / "home").mkdir(parents=True, mode=0o700)
        inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={point}"]
        line = ["strace", "-o", folder / "calls", *inject, sys.executable, HELPERS / "submit_once.py"]
        process = subprocess.Popen(
            [*line, folder / "cluster"],
            env={**environment, "CINGULUM_HOME": str(folder / "home"), "PYTHONDONTWRITEBYTECODE": "1"},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        told = process.communicate(timeout=120)[1]
        if process.returncode == 0:
            break
        calls = (folder / "calls").read_text().splitlines()
        assert calls[-1] == "+++ killed by SIGKILL +++", told
        killed += 1
        until_ended(process.pid)
        cluster, store = StandInCluster(folder / "cluster"), Store(folder / "home/jobs.db")
        sync.recover(store, {"slurm": cluster}, settle_s=0)
        there = {token: str(number) for number, token in enumerate(cluster.tokens(), 1)}
        found = {job.token: job.external for job in store.list() if job.external is not None}
        assert found == there, f"killed at call {point}: {calls[-2:]}"
    assert killed > 0
    assert process.returncode == 0, "the submission never came to its end"


def test_processes_that_submit_at_once_lose_and_double_nothing(environment, tmp_path) -> None:
    """All of them find no store at first, and one makes it."""
    program = """\
import os, sys
from pathlib import Path
from stand_in_cluster import StandInCluster
from jobs.sites import HERE
from jobs.spec import JobSpec
from jobs.store.store import Store
from jobs.requests.submission import submit
sys.stdin.readline()
cluster = StandInCluster(Path(sys.argv[1]))
for number in range(5):
    submit(Store(), cluster, JobSpec(f"{os.getpid()} {number}", "train", (("true",),), "/"), HERE)
"""
    environment["CINGULUM_HOME"] = str(tmp_path / "home")
    line = [sys.executable, "-c", program, str(tmp_path / "cluster")]
    workers = [
        subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    told = [worker.communicate("go\n", timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 6, "\n".join(told)
    jobs = Store(tmp_path / "home/jobs.db").list()
    tokens = (tmp_path / "cluster").read_text().split()
    assert len(tokens) == len(set(tokens)) == 30
    assert {job.token: job.external for job in jobs} == {token: str(n) for n, token in enumerate(tokens, 1)}
    assert {job.spec.name for job in jobs} == {f"{w.pid} {number}" for w in workers for number in range(5)}
