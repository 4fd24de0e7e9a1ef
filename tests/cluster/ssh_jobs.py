"""Jobs of mpirun over ssh for tests on emulated hosts: started from host ctl, and watched from outside."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.local.attended_files import Ledger, TaskEntry
from jobs.schedulers.base import ENDED
from jobs.sites import Site
from jobs.spec import JobSpec, Resources
from jobs.testbed import Testbed

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "parallel" / "programs"

# Asked every second after two, a silent host is given up after the second question.
QUICK = {
    "OMPI_MCA_oob_tcp_keepalive_time": "2",
    "OMPI_MCA_oob_tcp_keepalive_intvl": "1",
    "OMPI_MCA_oob_tcp_keepalive_probes": "2",
    "CINGULUM_CHECK_HOSTS_S": "3",
}
# From the fault to the end of all ranks; two cores run four hosts, and other tests.
BOUND_S = 40.0
START_S = 90.0
TRAINING_S = 240.0


@dataclass
class Job:
    """A job that was started on host ctl of a testbed."""

    cluster: Testbed
    folder: Path

    def entry(self, task: int = 0) -> TaskEntry:
        known = Ledger.read(self.folder)
        return known.tasks[task] if known else TaskEntry(task)

    @property
    def log(self) -> str:
        return (self.folder / "out.log").read_text(errors="replace")

    @property
    def failures(self) -> list[str]:
        return (self.folder / "failures").read_text().splitlines()

    def wait(self, done: Callable[[], Any], what: str, seconds: float) -> float:
        """Wait for it; how long that took, in seconds."""
        begun = time.monotonic()
        while not done():
            taken = time.monotonic() - begun
            assert taken < seconds, f"waited {taken:.0f} s for {what}: {self.entry()}\n{self.log}"
            time.sleep(0.05)
        return time.monotonic() - begun

    def end(self, seconds: float = TRAINING_S) -> TaskEntry:
        self.wait(lambda: self.entry().state in ENDED, "the end", seconds)
        return self.entry()


def start(
    cluster: Testbed, tmp_path: Path, task: tuple[str, ...], *, hosts: str = "n1\nn2\nn3\n", **changes: Any
) -> Job:
    hostfile = tmp_path / "hosts"
    hostfile.write_text(hosts)
    site = Site(name="test", hostfile=str(hostfile), interfaces=("eth0",), environment=QUICK)
    given = {"resources": Resources(nodes=3), "requeues": 1, **changes}
    spec = JobSpec("test", "command", (task,), str(tmp_path), **given)
    ran = run(cluster, tmp_path, spec, site)
    assert ran.returncode == 0, ran.stderr
    return Job(cluster, Path(ran.stdout.strip()))


def run(cluster: Testbed, tmp_path: Path, spec: JobSpec, site: Site, *before: str) -> Any:
    """Start a job from host ctl."""
    words = (sys.executable, str(Path(__file__).with_name("start_on_hosts.py")))
    return cluster.exec(
        "ctl",
        [*before, *words, spec.to_json(), site.model_dump_json()],
        environment={"CINGULUM_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)},
        timeout=START_S,
    )


def waiting(tmp_path: Path, what: str = "once") -> tuple[str, ...]:
    """A program of MPI, without TensorFlow, whose ranks note that they run."""
    return (sys.executable, str(PROGRAMS / "attended.py"), str(tmp_path), what)


def are_up(tmp_path: Path, ranks: int, start: int = 0) -> Callable[[], bool]:
    return lambda: all((tmp_path / f"rank-{rank}-start-{start}").exists() for rank in range(ranks))


def runs_on(cluster: Testbed, host: str, program: str) -> bool:
    return cluster.exec(host, ["pgrep", "-f", f"python.* .*{program}"], timeout=20).returncode == 0


def ranks_end(job: Job, hosts: list[str], program: str, seconds: float = BOUND_S) -> float:
    return job.wait(
        lambda: job.entry().failures == 1 and not any(runs_on(job.cluster, host, program) for host in hosts),
        "the end of all ranks",
        seconds,
    )
