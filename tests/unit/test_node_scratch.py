"""The folder on local scratch is ours or refused, and what is used there is never removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from wording import fails_with

from cingulum.cli import app
from trainer.data.loading.node_scratch import Lock, ScratchFolder, lock_of
from trainer.errors import ScratchError

HASH = "c0ffee"


def place(folder: Path) -> ScratchFolder:
    return ScratchFolder.find(folder)


def copy_in(folder: Path, name: str = HASH, *, whole: bool = True) -> Path:
    copy = place(folder).open() / name
    copy.mkdir()
    (copy / "shard-00000.h5").write_bytes(b"x" * 1000)
    if whole:
        (copy / "index.json").write_text("{}")
    return copy


def test_the_configuration_is_asked_first_then_the_environment_then_the_system(tmp_path):
    environment = {"TMPDIR": "/t", "SLURM_TMPDIR": "/s", "CINGULUM_SCRATCH": "/c"}
    found = [ScratchFolder.find(tmp_path, environment)]
    for name in ("CINGULUM_SCRATCH", "SLURM_TMPDIR", "TMPDIR"):
        found.append(ScratchFolder.find(None, environment))
        del environment[name]
    found.append(ScratchFolder.find(None, {"TMPDIR": ""}))
    assert [(str(each.folder), each.chosen_by) for each in found[:-1]] == [
        (str(tmp_path), "data.scratch"),
        ("/c", "$CINGULUM_SCRATCH"),
        ("/s", "$SLURM_TMPDIR"),
        ("/t", "$TMPDIR"),
    ]
    assert found[-1].chosen_by.startswith("the system's")


def test_our_folder_is_ours_alone(tmp_path):
    ours = place(tmp_path).open()
    assert ours == tmp_path / f"cingulum-{os.geteuid()}"
    assert ours.stat().st_mode & 0o777 == 0o700
    assert place(tmp_path).open() == ours


def test_a_missing_place_is_named_with_who_named_it(tmp_path):
    with fails_with(ScratchError) as error:
        ScratchFolder.find(None, {"SLURM_TMPDIR": str(tmp_path / "gone")}).open()
    assert "It comes from $SLURM_TMPDIR" in error.value.cure
    assert error.value.exit_code == 2


def test_a_file_is_no_place(tmp_path):
    (tmp_path / "file").write_text("")
    with fails_with(ScratchError):
        place(tmp_path / "file").open()


@pytest.mark.parametrize(
    "use", [ScratchFolder.open, ScratchFolder.contents, lambda place: place.contents(clean=True)]
)
def test_a_link_in_our_place_is_refused_and_what_it_leads_to_is_untouched(tmp_path, use):
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (victim / "precious").write_text("")
    place(tmp_path).ours.symlink_to(victim)
    with fails_with(ScratchError):
        use(place(tmp_path))
    assert (victim / "precious").exists()


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    place(tmp_path).open().chmod(0o755)
    with fails_with(ScratchError):
        place(tmp_path).open()


def test_somebody_elses_folder_is_refused(tmp_path, monkeypatch):
    """Another user is made up: only root could make a folder of another one."""
    mine = os.geteuid()
    made = place(tmp_path).open()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    made.rename(place(tmp_path).ours)
    with pytest.raises(ScratchError, match=f"belongs to user {mine}, not to you"):
        place(tmp_path).open()


def test_a_place_where_everybody_may_replace_our_folder_is_refused(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with fails_with(ScratchError):
        place(tmp_path / "shared").open()
    (tmp_path / "shared").chmod(0o1777)
    place(tmp_path / "shared").open()


def test_many_hold_a_lock_together_and_one_alone(tmp_path):
    path = tmp_path / "x.lock"
    first, second = Lock.take(path, alone=False), Lock.take(path, alone=False)
    assert first and second
    assert Lock.take(path, alone=True) is None
    assert not first.become_alone()
    alone = second
    assert alone.become_alone()
    assert Lock.take(path, alone=False) is None
    alone.close()
    assert Lock.take(path, alone=True)


def test_a_lock_whose_file_was_removed_is_no_lock(tmp_path, monkeypatch):
    """Between opening the file and locking it, who held it removes it: the new file counts."""
    path = tmp_path / "x.lock"
    before = Lock.take(path, alone=True)
    plain, opened = os.open, []

    def opening(*arguments):
        opened.append(plain(*arguments))
        if len(opened) == 1:
            before.remove()
        return opened[-1]

    monkeypatch.setattr(os, "open", opening)
    lock = Lock.take(path, alone=True)
    monkeypatch.undo()
    assert len(opened) == 2
    assert lock._is_in_place()
    assert Lock.take(path, alone=True) is None


def test_who_becomes_alone_on_a_removed_file_is_not(tmp_path):
    path = tmp_path / "x.lock"
    lock = Lock.take(path, alone=False)
    path.unlink()
    assert not lock.become_alone()


def test_of_many_who_leave_at_once_one_is_the_last(tmp_path):
    """Real processes: each gives up its share and looks for those of the others."""
    program = (
        "import sys; from pathlib import Path; from trainer.data.loading.node_scratch import Lock\n"
        "lock = Lock.take(Path(sys.argv[1]), alone=False)\n"
        "print('held', flush=True); sys.stdin.readline()\n"
        "print(lock.become_alone(), flush=True); sys.stdin.readline()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    path = tmp_path / "x.lock"
    held = [subprocess.Popen([sys.executable, "-c", program, path], **pipes) for _ in range(4)]
    for process in held:
        assert process.stdout.readline() == "held\n"
    for process in held:
        process.stdin.write("leave\n")
        process.stdin.flush()
    answers = [process.stdout.readline() for process in held]
    for process in held:
        process.communicate("end\n")
    assert sorted(answers) == ["False\n"] * 3 + ["True\n"]


def test_cleaning_removes_what_nobody_uses(tmp_path):
    used, idle, half = (copy_in(tmp_path, name, whole=name != "half") for name in ("a", "b", "half"))
    reading = Lock.take(lock_of(used), alone=False)
    (place(tmp_path).ours / "left.lock").write_text("")
    found = place(tmp_path).contents(clean=True)
    assert [(each.path.name, each.nbytes, each.whole, each.in_use, each.removed) for each in found] == [
        ("a", 1002, True, True, False),
        ("b", 1002, True, False, True),
        ("half", 1000, False, False, True),
    ]
    assert (used.exists(), idle.exists(), half.exists()) == (True, False, False)
    reading.close()
    assert sorted(path.name for path in place(tmp_path).ours.iterdir()) == ["a", "a.lock"]


def test_listing_removes_nothing(tmp_path):
    copy = copy_in(tmp_path)
    assert [each.removed for each in place(tmp_path).contents()] == [False]
    assert copy.exists()


def test_nothing_is_made_by_looking(tmp_path):
    assert place(tmp_path).contents() == place(tmp_path).contents(clean=True) == []
    assert list(tmp_path.iterdir()) == []


def test_the_command_lists_and_cleans(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CINGULUM_SCRATCH", str(tmp_path))
    assert app.run(["scratch"]) == 0
    assert "no copies (the place is $CINGULUM_SCRATCH)" in capsys.readouterr().out
    copy = copy_in(tmp_path)
    reading = Lock.take(lock_of(copy), alone=False)
    assert app.run(["scratch", "--clean"]) == 0
    assert capsys.readouterr().out == f"{HASH}      1002 B  in use\n"
    reading.close()
    assert app.run(["scratch", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": str(place(tmp_path).ours),
        "copies": [{"content_hash": HASH, "bytes": 1002, "whole": True, "in_use": False, "removed": False}],
    }
    assert app.run(["scratch", str(tmp_path), "--clean"]) == 0
    assert capsys.readouterr().out == f"{HASH}      1002 B  removed\n"
    assert not copy.exists()
