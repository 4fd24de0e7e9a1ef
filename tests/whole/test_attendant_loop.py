"""The attendant's loop, without MPI: disks that do not answer, and jobs that wait for others."""

from __future__ import annotations

import errno
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.local import attendant as attendant_module
from jobs.local import attended_files, attended_task, processes
from jobs.local.attendant import Attendant
from jobs.local.attended_files import Ledger, TaskEntry, Terms
from jobs.schedulers.base import PROBED

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def _signals_are_put_back(tmp_path: Path) -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)
    processes.end_marked(f"{tmp_path.name}.0", f"{tmp_path.name}.1")


@pytest.fixture
def attendant(tmp_path: Path) -> Callable[..., Attendant]:
    def make(*command: str, after: tuple[Path, ...] = (), **changes) -> Attendant:
        folder = tmp_path / "job"
        folder.mkdir()
        given = {"commands": (command or ("true",),), "grace_s": 5, **changes}
        agreed = Terms(token=tmp_path.name, name="test", folder="/", **given)
        return Attendant(folder, agreed, after)

    return make


def until(file: Path) -> tuple[str, ...]:
    """A command that runs until the file is there."""
    return ("sh", "-c", 'until [ -e "$1" ]; do sleep 0.02; done', "sh", str(file))


def later(what: Callable[[], object], when: Callable[[], bool]) -> None:
    def run() -> None:
        deadline = time.monotonic() + 20
        while not when() and time.monotonic() < deadline:
            time.sleep(0.01)
        what()

    threading.Thread(target=run, daemon=True).start()


def test_a_disk_that_does_not_answer_leaves_the_tasks_alone(attendant, tmp_path, monkeypatch) -> None:
    beats = []

    def beat(folder: Path) -> None:
        beats.append(folder)
        if len(beats) > 2:
            (tmp_path / "go").touch()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(attended_files, "beat", beat)
    monkeypatch.setattr(attended_files, "BEAT_S", 0.0)
    one = attendant(*until(tmp_path / "go"))
    one.run()
    assert len(beats) > 2 and Ledger.read(one.folder).tasks[0].state == "COMPLETED"


def test_a_request_that_cannot_be_taken_away_is_not_obeyed_again_and_again(attendant, tmp_path) -> None:
    one = attendant(*until(tmp_path / "go"))
    attended_files.request(one.folder, "cancel", 0).mkdir()
    later((tmp_path / "go").touch, lambda: one.tasks[0].is_running)
    one.run()
    assert one.tasks[0].entry.state == "COMPLETED"


@pytest.mark.timeout(60)
def test_it_ends_with_its_tasks_where_somebody_removed_the_folder(attendant, tmp_path) -> None:
    one = attendant(*until(tmp_path / "go"))

    def remove() -> None:
        one.folder.rename(tmp_path / "removed")  # at once: it writes while it runs
        shutil.rmtree(tmp_path / "removed")
        (tmp_path / "go").touch()

    later(remove, lambda: (one.folder / attended_files.STATE).exists() and one.tasks[0].is_running)
    one.run()
    assert one.tasks[0].entry.state == "COMPLETED" and not one.folder.exists()


def test_a_job_that_completes_while_it_is_looked_at_is_waited_for(attendant, tmp_path, monkeypatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    first = Ledger.new("0" * 16, [TaskEntry(0, state="RUNNING")])
    first.write(other)

    def is_attended(folder: Path) -> bool:
        first.tasks[0].state = "COMPLETED"  # its attendant writes its last word, and goes
        first.write(folder)
        return False

    monkeypatch.setattr(attended_files, "is_attended", is_attended)
    one = attendant(after=(other,))
    one.run()
    assert one.tasks[0].entry.state == "COMPLETED"


def runs_on_hosts(attendant, tmp_path: Path, up: str, **changes) -> TaskEntry:
    """The end of a job whose hosts answer where a file of their name is there."""
    for name in up.split():
        (tmp_path / name).touch()
    hosts = {str(tmp_path / name): 1 for name in ("n1", "n2", "n3")}
    one = attendant(hosts=hosts, probe=("test", "-e", PROBED), pause_s=0, requeues=0, **changes)
    one.run()
    entry = Ledger.read(one.folder).tasks[0]
    entry.hosts = tuple(Path(name).name for name in entry.hosts)
    return entry


def test_hosts_that_are_silent_before_a_start_are_passed_over(attendant, tmp_path) -> None:
    entry = runs_on_hosts(attendant, tmp_path, "n2 n3", nodes=2, ask_first=True)
    assert (entry.state, entry.hosts, entry.failures) == ("COMPLETED", ("n2", "n3"), 0)
    assert f"{tmp_path / 'n1'}: no answer; passed over" in (tmp_path / "job" / "out.log").read_text()


def test_a_job_that_may_shrink_starts_on_the_hosts_that_answer(attendant, tmp_path) -> None:
    entry = runs_on_hosts(attendant, tmp_path, "n2", nodes=3, least_nodes=1, shrink=True, ask_first=True)
    assert (entry.state, entry.hosts, entry.failures) == ("COMPLETED", ("n2",), 0)


def test_a_job_without_hosts_enough_before_its_start_says_which_are_silent(attendant, tmp_path) -> None:
    entry = runs_on_hosts(attendant, tmp_path, "n2", nodes=2, ask_first=True)
    assert entry.state == "NODE_FAIL" and "1 of the 2 hosts needed are left" in entry.reason
    assert "n1" in entry.reason and "n3" in entry.reason


def test_where_slurm_vouches_for_the_hosts_nobody_is_asked_first(attendant, tmp_path) -> None:
    entry = runs_on_hosts(attendant, tmp_path, "", nodes=2)
    assert (entry.state, entry.hosts) == ("COMPLETED", ("n1", "n2"))


def test_tasks_that_run_at_once_get_hosts_of_their_own(attendant, tmp_path) -> None:
    one = attendant(hosts={"n1": 1, "n2": 1}, commands=(until(tmp_path / "go"), ("true",)), at_once=2)
    later((tmp_path / "go").touch, lambda: one.tasks[1].entry.state == "COMPLETED")
    one.run()
    assert [entry.hosts for entry in Ledger.read(one.folder).tasks] == [("n1",), ("n2",)]


def test_no_more_tasks_run_at_once_than_agreed(attendant, tmp_path) -> None:
    one = attendant(commands=(until(tmp_path / "go"), ("true",)), at_once=1)
    later((tmp_path / "go").touch, lambda: one.tasks[1].entry.reason == "JobArrayTaskLimit")
    one.run()
    first, second = Ledger.read(one.folder).tasks
    assert second.started > first.started and first.ended <= second.ended


def test_how_a_command_ended_is_written_before_its_hosts_are_asked(attendant, monkeypatch) -> None:
    """Silent hosts take long to ask, and whoever asks may be killed meanwhile."""
    at_hand: list[tuple[str, int | None]] = []

    def silent_among(probe, hosts, answer_s) -> list[str]:
        (entry,) = Ledger.read(one.folder).tasks
        at_hand.append((entry.reason, entry.exit_code))
        return []

    monkeypatch.setattr(attended_task, "silent_among", silent_among)
    said = "echo '[rank 1 @ n2] error: the disk is full'; exit 3"
    one = attendant("sh", "-c", said, probe=("true", PROBED), requeues=0)
    one.run()
    assert at_hand == [("rank 1 @ n2: the disk is full", 3)]
    assert Ledger.read(one.folder).tasks[0].failures == 1


def test_what_one_task_came_to_is_written_before_hosts_are_asked_for_the_next(attendant, monkeypatch) -> None:
    at_hand: list[str] = []

    def choose(agreed, taken, lost, silent) -> list[str]:
        if (known := Ledger.read(one.folder)) is not None:
            at_hand.append(known.tasks[0].state)
        return ["here"]

    monkeypatch.setattr(attendant_module, "choose", choose)
    one = attendant("true", commands=(("true",), ("true",)), hosts=("here",), at_once=1)
    one.run()
    assert at_hand[-1] == "COMPLETED"


def test_an_attendant_lives_on_where_it_cannot_look_for_a_moment(attendant, tmp_path, monkeypatch) -> None:
    plain, failures = processes.end_marked, [errno.EMFILE, errno.EIO]

    def end_marked(*marks: str) -> int:
        if failures:
            raise OSError(failures.pop(), "for a moment")
        return plain(*marks)

    monkeypatch.setattr(processes, "end_marked", end_marked)
    one = attendant("true")
    one.run()
    assert not failures and one.tasks[0].entry.state == "COMPLETED"


def test_another_job_whose_state_cannot_be_read_for_a_moment_is_waited_for(
    attendant, tmp_path, monkeypatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    Ledger.new("0" * 16, [TaskEntry(0, state="COMPLETED")]).write(other)
    plain, failures = attended_files.is_attended, [errno.ESTALE, errno.EIO]

    def is_attended(folder: Path) -> bool:
        if failures:
            raise OSError(failures.pop(), "for a moment")
        return plain(folder)

    monkeypatch.setattr(attended_files, "is_attended", is_attended)
    one = attendant(after=(other,))
    one.run()
    assert not failures and one.tasks[0].entry.state == "COMPLETED"
