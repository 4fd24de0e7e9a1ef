"""Jobs for the tests of faults: rendered as `cingulum submit` does, and watched from outside."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import supervised_folder

from jobs.schedulers.slurm.script import batch_script
from jobs.schedulers.slurm.site_keys import SlurmSite
from jobs.spec import JobSpec, Resources
from jobs.testbed import Testbed

ROOT = Path(__file__).parents[2]
FAULTY = ROOT / "tests" / "parallel" / "programs" / "faulty_train.py"
SAVER = ROOT / "tests" / "cluster" / "programs" / "saver.py"
# Two cores of a test machine start TensorFlow on several ranks.
PATIENCE_S = 150


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> None:
    """Poll until the condition holds.

    Raises:
        AssertionError: it did not, within so many seconds; says what was waited for.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.1)


def slurm(cluster: Testbed, *command: str) -> str:
    """What a command of Slurm says on the controller's host."""
    done = cluster.exec("ctl", command, timeout=60, cwd="/")
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


@dataclass(frozen=True)
class Job:
    """A job in the cluster."""

    cluster: Testbed
    label: str
    folder: Path

    @property
    def log(self) -> str:
        """What it has printed, all its starts one after the other."""
        path = self.folder / "out.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def failures(self) -> list[list[str]]:
        """Time, exit code, host or rank, and why, of each failed start."""
        path = self.folder / "failures"
        return [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def events(self) -> list[str]:
        """What saver.py noted."""
        path = self.folder / "events"
        return path.read_text().split() if path.exists() else []

    def says(self, field: str) -> str:
        """A field of `scontrol show job`."""
        found = re.search(
            rf"\b{field}=(\S*)", slurm(self.cluster, "scontrol", "show", "job", "-o", self.label)
        )
        return found[1] if found else ""

    @property
    def state(self) -> str:
        """As Slurm names it."""
        return self.says("JobState")

    def wait_for_state(self, *states: str, seconds: float = PATIENCE_S) -> None:
        """Until it is in one of these states.

        Raises:
            AssertionError: it is not in time; says what the job has printed.
        """
        deadline = time.monotonic() + seconds
        while (state := self.state) not in states:
            assert time.monotonic() < deadline, f"{state}, not {states}, after {seconds:g} s:\n{self.log}"
            time.sleep(0.2)

    def wait_until_stored(self) -> None:
        """Until slurmctld would find this job, running, after a crash: it writes a few seconds late."""
        mark = f"stored-{self.label}-{time.monotonic_ns()}"
        slurm(self.cluster, "scontrol", "update", f"JobId={self.label}", f"Comment={mark}")
        file = self.cluster.folder / "state" / "job_state"
        wait_until(lambda: file.exists() and mark.encode() in file.read_bytes(), f"{mark} in {file}")

    def pids(self, host: str) -> list[int]:
        """Ranks of this job on a host."""
        script = (
            'for p in /proc/[0-9]*; do echo "${p#/proc/} $(tr "\\0" " " <"$p/cmdline" 2>/dev/null)"; done'
        )
        lines = self.cluster.exec(host, ["sh", "-c", script], cwd="/").stdout.splitlines()
        started = re.compile(rf"(\d+) \S*python\S* (?!-I -B ).*{re.escape(str(self.folder.parent))}")
        return [int(found[1]) for line in lines if (found := started.match(line))]


def submit(
    cluster: Testbed,
    folder: Path,
    command: Sequence[str | Path],
    *,
    nodes: int = 2,
    least_nodes: int | None = None,
    minutes: int | None = None,
    requeues: int = 2,
    grace_s: int = 20,
    launcher: Literal["mpirun", "srun"] = "mpirun",
    change: Callable[[str], str] = str,
) -> Job:
    """Submit this command, a rank on each of so many whole hosts; `change` edits the script first."""
    folder.mkdir(exist_ok=True)
    supervised_folder.fill(folder)
    spec = JobSpec(
        "faults",
        "train",
        ((sys.executable, *map(str, command)),),
        str(folder),
        Resources(nodes=nodes, least_nodes=least_nodes, minutes=minutes),
        requeues=requeues,
        shrink=least_nodes is not None,
        grace_s=grace_s,
        environment={"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"},
    )
    script = folder / "job.sbatch"
    site = SlurmSite(launcher=launcher, options=("--exclusive",), interfaces=("eth0",))
    script.write_text(change(batch_script(spec, site, folder, "0123456789abcdef")))
    return Job(cluster, slurm(cluster, "sbatch", "--parsable", str(script)), folder)


def preempt(cluster: Testbed, folder: Path, nodes: int = 3) -> None:
    """Submit an urgent job that needs so many whole hosts, for a second."""
    folder.mkdir(exist_ok=True)
    script = folder / "urgent.sbatch"
    script.write_text("#!/bin/sh\nexit 0\n")
    options = ["--partition=urgent", f"--nodes={nodes}", "--exclusive", "--output=/dev/null"]
    slurm(cluster, "sbatch", *options, str(script))
