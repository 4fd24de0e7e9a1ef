"""A testbed leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs.testbed import Testbed, layout, namespaces

SECONDS = 30


pytestmark = pytest.mark.usefixtures("cluster_machine")


def cli(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cingulum", "testbed", *arguments]


def done(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(cli(*arguments), capture_output=True, text=True, timeout=SECONDS, check=False)


def eventually(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, f"waited {SECONDS} s in vain for {what}"
        time.sleep(0.005)


def of_processes(file: str) -> dict[int, bytes]:
    """Content of a file in /proc of every process."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found[int(entry.name)] = (entry / file).read_bytes()
        except OSError:
            continue
    return found


def own_namespaces(numbers: set[int]) -> set[str]:
    """The namespaces of these processes that are not ours too."""
    ours = {str(entry.readlink()) for entry in Path("/proc/self/ns").iterdir()}
    found = set()
    for number in numbers:
        try:
            found |= {str(entry.readlink()) for entry in Path(f"/proc/{number}/ns").iterdir()}
        except OSError:
            continue
    return found - ours


def all_namespaces() -> set[str]:
    return own_namespaces({int(entry.name) for entry in Path("/proc").glob("[0-9]*")})


@dataclass(frozen=True)
class Traces:
    """What of a testbed can be found on the machine, by its name."""

    name: str

    def processes(self) -> set[int]:
        mark = f"{namespaces.MARK}={layout.BASE / self.name}".encode()
        path = str(layout.BASE / self.name).encode()
        marked = {number for number, text in of_processes("environ").items() if mark in text.split(b"\0")}
        return marked | {number for number, text in of_processes("cmdline").items() if path in text}

    def left(self) -> list[str]:
        found = [f"process {number}" for number in self.processes()]
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found += [f"mount {line}" for line in mounts if self.name in line]
        groups = [path for path in Path("/sys/fs/cgroup").rglob("*") if self.name in path.name]
        found += [f"cgroup {path}" for path in groups]
        found += [f"folder {layout.BASE / self.name}"] if os.path.lexists(layout.BASE / self.name) else []
        found += [f"link {path}" for path in Path("/sys/class/net").iterdir() if path.name in ("n1", "br0")]
        return found


@pytest.fixture
def traces(request) -> Traces:
    found = Traces(f"end-{os.getpid()}")
    assert found.left() == []
    request.addfinalizer(lambda: done("down", "--name", found.name))
    return found


def test_down_leaves_nothing_and_may_be_said_twice(traces):
    up = done("up", "--name", traces.name, "--hosts", "2", "--cpus-per-host", "0.5", "--delay", "1ms")
    assert up.returncode == 0, up.stderr
    kinds = {found.split()[0] for found in traces.left()}
    assert kinds == {"process", "cgroup", "folder"}, "this test could not see what is there to be left"
    theirs = own_namespaces(traces.processes())
    assert len(theirs) >= 2 + 3 * 5  # of the switch two or more, of each host five
    down = done("down", "--name", traces.name)
    assert (down.returncode, down.stdout) == (0, f"{traces.name}: taken down\n")
    assert traces.left() == []
    assert not theirs & all_namespaces()
    again = done("down", "--name", traces.name)
    assert (again.returncode, again.stdout) == (0, "there is no testbed to take down\n")


STAGES = ["kept", "pids/switch", "pids/n2", "pids/munged.pid", "pids/slurmctld.pid"]


def begun(traces: Traces, stage: str, *more: str) -> subprocess.Popen[str]:
    """A `testbed up` that has come as far as to have made this file."""
    argv = cli("up", "--name", traces.name, "--hosts", "3", "--cpus-per-host", "0.5", *more)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: (layout.BASE / traces.name / stage).exists(), f"{stage}")
    assert process.poll() is None, "it was up before we could interrupt it"
    return process


@pytest.mark.parametrize("stage", STAGES)
def test_after_a_kill_in_the_middle_of_up_down_still_leaves_nothing(traces, stage):
    process = begun(traces, stage)
    process.kill()
    process.communicate(timeout=SECONDS)
    assert traces.left() != []
    status = done("status", "--name", traces.name)
    assert status.returncode == 1
    assert "is half made" in status.stderr
    down = done("down", "--name", traces.name)
    assert (down.returncode, down.stdout) == (0, f"{traces.name}: taken down\n")
    assert traces.left() == []


@pytest.mark.parametrize("stage", ["etc", "db/mysql"])
def test_after_a_kill_no_program_that_up_was_running_works_on(traces, stage):
    """`cp` of /etc, and what makes MariaDB's first files for seconds, outside of all namespaces."""
    process = begun(traces, stage, "--accounting")
    process.kill()
    process.communicate(timeout=SECONDS)
    down = done("down", "--name", traces.name)
    assert (down.returncode, down.stderr) == (0, "")
    assert traces.left() == []


def test_who_waits_for_the_end_of_a_pipe_does_not_wait_for_the_testbed(traces):
    reader, writer = os.pipe()
    argv = cli("up", "--name", traces.name, "--hosts", "1", "--no-slurm")
    subprocess.run(argv, pass_fds=[writer], capture_output=True, timeout=SECONDS, check=True)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        readable, _, _ = select.select([pipe], [], [], 5)
        assert readable == [pipe]
        assert pipe.read() == b""


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_up_that_is_interrupted_takes_everything_down_itself(traces, number, code, stage):
    process = begun(traces, stage)
    process.send_signal(number)
    _, told = process.communicate(timeout=SECONDS)
    assert process.returncode == code
    assert "Traceback" not in told
    assert traces.left() == []


def test_an_up_that_fails_takes_everything_down_and_says_why(traces):
    argv = [sys.executable, "-c", FAILING, traces.name]
    up = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert up.returncode == 1
    assert "slurmctld" in up.stderr
    assert "NoSuchKey" in up.stderr, "the reason is in a log that is gone by now"
    assert traces.left() == []


FAILING = """
import sys
from jobs.testbed import Testbed, slurm_daemons
from trainer.errors import CingulumError
right = slurm_daemons.slurm_conf
slurm_daemons.slurm_conf = lambda *given: right(*given) + "NoSuchKey=1\\n"
slurm_daemons.CONTROLLER_SECONDS = 3
try:
    Testbed.up(1, name=sys.argv[1])
except CingulumError as error:
    sys.exit(str(error))
"""


TIED = """
import os, sys
from jobs.testbed import Testbed
Testbed.up(1, slurm=False, name=sys.argv[1], tied=True)
os._exit(0)
"""


def test_a_tied_testbed_ends_with_the_process_that_made_it(traces):
    subprocess.run([sys.executable, "-c", TIED, traces.name], timeout=SECONDS, check=True)
    eventually(lambda: not traces.processes(), "the end of its processes")
    assert done("down", "--name", traces.name).returncode == 0
    assert traces.left() == []


def test_testbeds_run_side_by_side_and_one_goes_without_the_other(traces, tmp_path):
    one = Testbed.up(1, slurm=False, name=traces.name, tied=True)
    other = Testbed.up(1, slurm=False, name=f"{traces.name}-b", tied=True, folder=tmp_path / "files")
    try:
        assert one.exec("n1", ["hostname"]).stdout == "n1\n"
        one.down()
        assert other.exec("n1", ["hostname"]).stdout == "n1\n"
        assert (tmp_path / "files" / "testbed.json").exists()
    finally:
        other.down()
        one.down()
    assert not (tmp_path / "files").exists()
    assert traces.left() == []
