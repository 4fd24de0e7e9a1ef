"""Where jobs keep their files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from wording import fails_with

from jobs.home import home, job_folder, job_path, new_token
from trainer.errors import JobError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    for name in ("CINGULUM_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))


def test_home_is_where_the_environment_says_in_this_order(monkeypatch, tmp_path) -> None:
    assert home() == tmp_path / "me/.local/share/cingulum"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert home() == tmp_path / "data/cingulum"
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "own"))
    assert home() == tmp_path / "own"


def test_a_relative_data_home_is_ignored_and_a_relative_home_made_absolute(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    assert home() == tmp_path / "me/.local/share/cingulum"
    monkeypatch.setenv("CINGULUM_HOME", "here")
    assert home() == tmp_path / "here"


def test_home_and_the_folders_of_jobs_are_private_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        folder = job_folder(new_token())
    finally:
        os.umask(before)
    assert [mode(folder), mode(folder.parent), mode(home())] == [0o700] * 3


def test_the_path_of_a_job_is_known_before_its_folder_is_made() -> None:
    token = new_token()
    assert not job_path(token).exists()
    assert job_folder(token) == job_path(token) == home() / "jobs" / token
    assert job_folder(token).is_dir()


@pytest.mark.parametrize(
    "token", ["", "../../etc", "0123456789ABCDEF", "0123456789abcde", "0123456789abcdef\n"]
)
def test_only_a_token_names_a_folder(token) -> None:
    with fails_with(JobError):
        job_folder(token)


def test_tokens_do_not_repeat() -> None:
    assert len({new_token() for _ in range(1000)}) == 1000


@pytest.mark.parametrize("mode", [0o707, 0o770])
def test_a_folder_that_others_may_write_to_is_refused(monkeypatch, tmp_path, mode) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "open"))
    with fails_with(JobError):
        home()


def test_a_file_in_its_place_is_refused(monkeypatch, tmp_path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "file"))
    with fails_with(JobError):
        home()
