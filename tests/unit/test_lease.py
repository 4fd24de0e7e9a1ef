"""The lease on a run folder, on a real file system: who holds it, what it does, how it ends."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import one_writer
import pytest
from wording import fails_with

from trainer import atomic
from trainer.errors import Fenced, RunError
from trainer.leases import claims, lease_files, lease_taking
from trainer.leases.claims import Owner
from trainer.leases.lease import Lease


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(lease_taking, "EARLIER_S", 0.0)


@pytest.fixture(autouse=True)
def _no_heart_outlives_its_test(monkeypatch) -> Iterator[None]:
    beating: list[Lease] = []

    def beat(self: Lease) -> None:
        plain(self)
        beating.append(self)

    plain = Lease.beat
    monkeypatch.setattr(Lease, "beat", beat)
    yield
    for held in beating:
        held._ended.set()
        held._heart.join()


def mine(restart: int = 0, **changes: object) -> Owner:
    """This process, as that start of Slurm's job 47."""
    environment = {"SLURM_JOB_ID": "47", "SLURM_RESTART_COUNT": str(restart)}
    return dataclasses.replace(claims.myself(environment), **changes)


def files(folder: Path) -> list[str]:
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.endswith("/heartbeat"))


def test_what_is_written_under_a_lease_is_there_and_nothing_else(tmp_path):
    run = tmp_path / "runs" / "run"
    with lease_taking.take(run, mine()) as held, atomic.through(held):
        atomic.make_folder(run / "a" / "b")
        atomic.write_text(run / "a" / "b" / "file", "one")
        atomic.write_text(run / "a" / "b" / "file", "two")
        atomic.write_text(run / "a" / "gone", "")
        atomic.remove(run / "a" / "gone")
        assert claims.holder(run) == held.owner and held.start == 1
    assert files(run) == [".writers/00000001.json", ".writers/00000001.reads", "a/b/file"]
    assert (run / "a" / "b" / "file").read_text() == "two" and claims.holder(run) is None
    assert one_writer.leftovers(run) == [] and atomic.lease_of(run / "file") is None


def test_who_is_taken_over_can_do_nothing_more_and_names_the_other(tmp_path):
    run = tmp_path / "run"
    first = lease_taking.take(run, mine())
    with atomic.through(first):
        atomic.write_text(run / "file", "first")
        atomic.make_folder(run / "folder")
    second = lease_taking.take(run, mine(restart=1))
    before = files(run)
    named = (
        rf"another process writes this run: job 47, start 2, on {socket.gethostname()} \(pid {os.getpid()}\)"
    )
    with atomic.through(first):
        for action in (
            lambda: atomic.write_text(run / "file", "late"),
            lambda: atomic.write_text(run / "new", "late"),
            lambda: atomic.remove(run / "file"),
            lambda: atomic.remove(run / "folder"),
            lambda: atomic.make_folder(run / "more" / "folders"),
        ):
            with pytest.raises(Fenced, match=named):
                action()
    first.release()
    assert not first.is_held and second.is_held
    assert files(run) == before and (run / "file").read_text() == "first" and (run / "folder").is_dir()
    second.release()


def test_a_living_owner_of_another_job_is_named_and_stays(tmp_path):
    with lease_taking.take(tmp_path / "run", mine()) as held:
        for other in (mine(), claims.myself({}), claims.myself({"SLURM_JOB_ID": "48"})):
            with fails_with(RunError):
                lease_taking.take(tmp_path / "run", other)
        assert held.is_held and one_writer.starts(tmp_path / "run").keys() == {1}


def test_an_earlier_start_of_the_same_job_does_not_take_over_from_a_later_one(tmp_path):
    with lease_taking.take(tmp_path / "run", mine(restart=2)), fails_with(Fenced):
        lease_taking.take(tmp_path / "run", mine(restart=1))


@pytest.mark.parametrize("gone", [{"began": 1}, {"pid": 2**22 + 1}])
def test_a_dead_owner_on_this_host_is_passed_over_at_once(tmp_path, gone):
    dead = lease_taking.take(tmp_path / "run", mine(**gone))
    said: list[str] = []
    with lease_taking.take(tmp_path / "run", claims.myself({}), say=said.append) as held:
        assert held.start == 2 and not dead.is_held and said == []


def test_an_owner_on_another_host_lives_as_long_as_its_heart_beats(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BEAT_S", 0.05)
    run, said = tmp_path / "run", []
    far = lease_taking.take(run, mine(boot="another", host="n2"))
    assert claims.holder(run, wait_s=20) == far.owner
    with fails_with(RunError):
        lease_taking.take(run, claims.myself({}), say=said.append, patience_s=20)
    assert len(said) == 1 and "waiting for job 47, start 1, on n2" in said[0]
    far._ended.set()
    far._heart.join()
    assert claims.holder(run, wait_s=0.3) is None
    with lease_taking.take(run, claims.myself({}), patience_s=0.3) as held:
        assert held.start == 2 and not far.is_held


def test_a_start_that_puts_nothing_leaves_nothing_of_what_it_made(tmp_path):
    with lease_taking.take(tmp_path / "runs" / "run", mine()):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run").mkdir()
    with lease_taking.take(tmp_path / "run", mine()):
        pass
    assert files(tmp_path / "run") == [".writers/00000001.json", ".writers/00000001.reads"]


def test_the_copy_of_a_run_folder_that_is_trained_is_nobodys(tmp_path):
    with lease_taking.take(tmp_path / "run", mine()):
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        assert claims.holder(tmp_path / "copy") is None
        with lease_taking.take(tmp_path / "copy", claims.myself({})) as held:
            assert held.start == 2
    assert one_writer.leftovers(tmp_path / "copy") == []


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"start": "1"}', b"\xff"])
def test_a_damaged_claim_is_named_and_nothing_is_touched(tmp_path, content):
    run = tmp_path / "run"
    (run / ".writers").mkdir(parents=True)
    (run / ".writers" / "00000001.json").write_bytes(content)
    with fails_with(RunError):
        lease_taking.take(run, mine())
    assert files(run) == [".writers/00000001.json"]


def test_a_folder_that_was_renamed_is_not_made_again(tmp_path):
    held = lease_taking.take(tmp_path / "run", mine())
    (tmp_path / "run").rename(tmp_path / "moved")
    with atomic.through(held):
        for action in (
            lambda: atomic.write_text(tmp_path / "run" / "file", ""),
            lambda: atomic.make_folder(tmp_path / "run" / "folder"),
        ):
            with fails_with(Fenced):
                action()
    held.release()
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


def test_an_answer_that_was_lost_counts_as_done(tmp_path, monkeypatch):
    rename, link = os.rename, os.link

    def renamed_and_lost(source, target):
        rename(source, target)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    def linked_and_lost(source, target):
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", linked_and_lost)
    with lease_taking.take(tmp_path / "run", mine()) as held, atomic.through(held):
        monkeypatch.setattr(os, "rename", renamed_and_lost)
        atomic.write_text(tmp_path / "run" / "file", "")
        atomic.write_text(tmp_path / "run" / "other", "")
        atomic.remove(tmp_path / "run" / "other")
        monkeypatch.undo()
    assert one_writer.starts(tmp_path / "run").keys() == {1}
    assert [path.name for path in (tmp_path / "run").iterdir() if path.is_file()] == ["file"]


def test_a_file_system_that_cannot_is_said_in_words(tmp_path, monkeypatch):
    def no_links(source, target):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", no_links)
        with fails_with(RunError):
            lease_taking.take(tmp_path / "run", mine())
    assert list(tmp_path.iterdir()) == []

    def elsewhere(source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    with lease_taking.take(tmp_path / "run", mine()) as held:
        place = held.place_for(Path("file"))
        place.touch()
        monkeypatch.setattr(os, "rename", elsewhere)
        with fails_with(RunError):
            held.put(place, tmp_path / "run" / "file")
        monkeypatch.undo()


def test_an_error_of_a_leased_folder_stays_what_it_is_while_the_lease_is_held(tmp_path):
    with lease_taking.take(tmp_path / "run", mine()) as held, atomic.through(held):
        (tmp_path / "run" / "file").touch()
        with pytest.raises(FileNotFoundError):
            atomic.remove(tmp_path / "run" / "nothing")
        with pytest.raises(FileExistsError):
            atomic.make_folder(tmp_path / "run" / "file")
        with pytest.raises(FileNotFoundError):
            atomic.write_text(tmp_path / "run" / "no" / "folder", "")
        assert {path.name for path in Path(held.staging).iterdir()} <= {"heartbeat"}


def test_the_next_start_of_a_process_takes_over_without_a_gap(tmp_path, monkeypatch):
    run = tmp_path / "run"
    first = lease_taking.take(run, mine())
    held = []
    plain = lease_files.link

    def link(aside: str, name: str) -> bool:
        # Until the next claim is there, the one before is held and keeps others off.
        held.append(first.is_held)
        with fails_with(RunError):
            lease_taking._wait_for(str(run), first.owner, mine(job=""), print, print, 1.0)
        return plain(aside, name)

    monkeypatch.setattr(lease_files, "link", link)
    with lease_taking.take(run, mine(), after=first) as second:
        assert held == [True] and (first.start, second.start) == (1, 2)
        assert not first.is_held and second.is_held and not first._heart.is_alive()
        with pytest.raises(Fenced):
            first.put(second.place_for(run / "a"), run / "a")
        first.release()
        assert second.is_held and claims.last(str(run)) == second.owner
    assert not second.is_held


PASSING = (errno.ESTALE, errno.EIO, errno.ENOSPC, errno.EACCES, errno.EINTR)


def wait_until(condition, what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


@pytest.mark.parametrize("call", ["open", "write", "close"])
@pytest.mark.parametrize("number", PASSING, ids=errno.errorcode.get)
def test_one_error_of_the_file_system_does_not_end_a_heartbeat(tmp_path, monkeypatch, capsys, call, number):
    monkeypatch.setattr(claims, "BEAT_S", 0.02)
    plain, failures = getattr(os, call), [number, number]

    def fails_twice(*arguments):
        result = plain(*arguments)
        if threading.current_thread().name == "lease" and failures:
            if call == "open":
                os.close(result)
            raise OSError(failures.pop(), "for a moment")
        return result

    with lease_taking.take(tmp_path / "run", mine()) as held:
        monkeypatch.setattr(os, call, fails_twice)
        wait_until(lambda: not failures, "the errors")
        monkeypatch.setattr(os, call, plain)
        before = claims.beat_of(str(tmp_path / "run"), held.owner)
        wait_until(lambda: claims.beat_of(str(tmp_path / "run"), held.owner) != before, "a heartbeat")
        wait_until(lambda: held.missed_beats.in_a_row == 0, "the end of the errors")
        assert held.missed_beats.count == 2
    said = capsys.readouterr().err
    assert said.count("heartbeat: could not be written 2 times") == 1 and "for a moment" in said


def test_a_heartbeat_that_cannot_be_written_for_long_is_named_with_what_follows(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(claims, "BEAT_S", 0.01)
    plain = os.write

    def full(descriptor, content):
        if threading.current_thread().name == "lease":
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(descriptor, content)

    monkeypatch.setattr(os, "write", full)
    with lease_taking.take(tmp_path / "run", mine()) as held:
        wait_until(lambda: held.missed_beats.count > 10, "ten errors")
        assert held.is_held
    said = capsys.readouterr().err
    assert said.count("warning:") == 1
    assert "could not be written for" in said and "No space left on device" in said
    assert "After 60 s another start may take the run over." in said


def test_a_handle_that_is_stale_for_a_moment_does_not_end_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(lease_files, "_PAUSE_S", 0.0)
    plain, failures = os.stat, [errno.ESTALE] * 2

    def stale(path, *arguments, **options):
        if str(path).endswith(held.owner.token) and failures:
            raise OSError(failures.pop(), "Stale file handle")
        return plain(path, *arguments, **options)

    with lease_taking.take(tmp_path / "run", mine()) as held:
        monkeypatch.setattr(os, "stat", stale)
        assert held.is_held and not failures
        failures += [errno.ESTALE] * 100
        assert not held.is_held
        failures.clear()


def test_an_owner_whose_heartbeat_cannot_be_read_is_not_taken_for_dead(tmp_path, monkeypatch):
    """Neither is it an error as long as it may be read again."""
    run, plain = tmp_path / "run", lease_taking.claims.beat_of
    far = lease_taking.take(run, mine(boot="another", host="n2"))
    failures = [errno.EIO] * 2

    def unreadable(folder, owner):
        if failures:
            raise OSError(failures.pop(), "Input/output error")
        return plain(folder, owner)

    monkeypatch.setattr(claims, "beat_of", unreadable)
    monkeypatch.setattr(claims, "BEAT_S", 0.05)
    with fails_with(RunError):
        lease_taking.take(run, claims.myself({}), patience_s=20)
    failures += [errno.EIO] * 10_000
    with pytest.raises(OSError, match="Input/output error"):
        lease_taking.take(run, claims.myself({}), patience_s=0.3)
    assert far.is_held
    far.release()


@pytest.mark.parametrize("limit_s", [0.001, 1.0, 9.9, 30.0, 1e6])
def test_an_owner_may_miss_five_beats_however_impatient_a_run_is(limit_s):
    assert 5 * claims.BEAT_S <= claims.patience(limit_s) <= claims.SILENT_S
