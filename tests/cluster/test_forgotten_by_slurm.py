"""A Slurm without accounting forgets what has ended; the job's folder tells how it ended."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_jobs import slurm, wait_until

from jobs.testbed import Testbed

ROOT = Path(__file__).parents[2]
# A training would do no more than these lines, and take longer.
SUBMIT = """\
from jobs.schedulers.slurm.launcher import Slurm; from jobs.sites import HERE; from jobs.spec import JobSpec
from jobs.store.store import Store; from jobs.requests.submission import submit
waits = ("sh", "-c", "until [ -e go ]; do sleep 0.1; done")
made = submit(Store(), Slurm(), JobSpec("mine", "command", (waits,), {folder!r}, parallel=False), HERE)
print(made.label)
"""


@pytest.fixture
def forgetful(cluster_machine, tmp_path_factory) -> Iterator[Testbed]:
    """A cluster that forgets jobs as soon as Slurm can be made to."""
    shared = [tmp_path_factory.getbasetemp(), ROOT, Path(sys.prefix), Path(sys.base_prefix)]
    testbed = Testbed.up(1, shared=shared, name=f"forgets-{os.getpid()}", tied=True)
    with (testbed.folder / "etc" / "slurm.conf").open("a") as file:
        file.write("MinJobAge=2\n")
    slurm(testbed, "scontrol", "reconfigure")
    yield testbed
    testbed.down()


def test_a_job_that_slurm_has_forgotten_is_said_to_have_completed_at_the_first_look(forgetful, tmp_path):
    def python(*words: str) -> str:
        environment = {"PYTHONPATH": str(ROOT), "CINGULUM_HOME": str(tmp_path / "home")}
        line = [sys.executable, *words]
        done = forgetful.exec("ctl", line, cwd=tmp_path, environment=environment, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def state() -> str:
        return json.loads(python("-m", "cingulum", "show", job, "--json"))["state"]

    job = python("-c", SUBMIT.format(folder=str(tmp_path))).strip()
    wait_until(lambda: state() == "RUNNING", "the job to run")
    (tmp_path / "go").touch()
    wait_until(lambda: list(tmp_path.glob("home/jobs/*/state.json")), "its end")
    wait_until(lambda: not slurm(forgetful, "squeue", "--noheader", "--states=all"), "Slurm to forget it")
    assert state() == "COMPLETED"
