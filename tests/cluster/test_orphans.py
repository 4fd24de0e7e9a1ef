"""A start that runs on after Slurm has given it up: it changes nothing, and counts no failure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from slurm_jobs import Job, slurm, submit, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Start 1 fails when it is told to; start 2 ends well when it is told to.
PROGRAM = """
import os, sys, time
from pathlib import Path

folder = Path(sys.argv[1])
start = 1 + int(os.environ.get("SLURM_RESTART_COUNT") or 0)
(folder / f"began-{start}").touch()
while not (folder / f"go-{start}").exists():
    time.sleep(0.05)
sys.exit(1 if start == 1 else 0)
"""


def started(cluster, tmp_path: Path) -> tuple[Job, str]:
    """A job of one rank that runs, and its host."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    job = submit(cluster, tmp_path / "job", [program, tmp_path], nodes=1)
    wait_until(lambda: (tmp_path / "began-1").exists(), "start 1")
    job.wait_until_stored()
    return job, job.says("BatchHost")


@pytest.mark.parametrize("fault", ["slurmd", "link"])
def test_an_orphan_neither_requeues_its_successor_nor_notes_a_failure(cluster, tmp_path, fault):
    job, host = started(cluster, tmp_path)
    if fault == "slurmd":
        cluster.kill_slurmd(host)
    else:
        cluster.link(host, up=False)
    wait_until(lambda: (tmp_path / "began-2").exists(), "start 2, on another host")
    assert job.says("BatchHost") != host
    before = job.failures
    ((_, code, where, _),) = before  # the next start's line: the host was lost
    assert (code, where) == ("-", host)
    (tmp_path / "go-1").touch()
    said = "start 1 is over" if fault == "slurmd" else "Slurm does not answer, so nothing more is done"
    wait_until(lambda: said in job.log, "the orphan's end", 400)
    wait_until(lambda: not supervisors(cluster, host), "the end of its supervisor", 60)
    assert job.failures == before and job.state == "RUNNING" and int(job.says("Restarts")) == 1
    (tmp_path / "go-2").touch()
    job.wait_for_state("COMPLETED")
    assert int(job.says("Restarts")) == 1 and job.failures == before
    assert len(re.findall(r"cingulum: start \d+ on", job.log)) == 2
    assert slurm(cluster, "squeue", "-h", "-j", job.label, "-o", "%T") in ("", "COMPLETED")


def supervisors(cluster, host: str) -> str:
    return cluster.exec(host, ["pgrep", "-f", "supervisor --label"], cwd="/").stdout
