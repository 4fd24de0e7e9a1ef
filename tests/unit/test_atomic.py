"""A file is replaced whole or not at all."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from trainer import atomic
from trainer.errors import of_files


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_is_replaced_by_bytes_text_or_a_function(tmp_path):
    path = tmp_path / "file"
    for write, content in ((atomic.write_bytes, b"\x00\xff"), (atomic.write_text, "é\n")):
        write(path, content)
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    atomic.write_by(path, lambda beside: beside.write_text("by"))
    assert path.read_text() == "by"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "metrics.jsonl"
    atomic.write_text(path, "old")

    def half(beside: Path) -> None:
        beside.write_text("ne")
        raise error

    with pytest.raises(type(error)):
        atomic.write_by(path, half)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failing", [(os, "fsync"), (Path, "replace")], ids=["fsync", "replace"])
def test_a_disk_that_is_full_at_the_end_leaves_the_old_file(tmp_path, monkeypatch, failing):
    path = tmp_path / "file"
    atomic.write_text(path, "old")
    monkeypatch.setattr(*failing, full)
    with pytest.raises(OSError, match="No space"):
        atomic.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_synced_before_its_name_shows_it_and_the_folder_after(tmp_path, monkeypatch):
    path, seen, fsync = tmp_path / "file", [], os.fsync

    def watched(descriptor: int) -> None:
        seen.append((Path(f"/proc/self/fd/{descriptor}").readlink(), path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    atomic.write_text(path, "new")
    assert seen == [(atomic.beside(path), False), (tmp_path, True)]


def test_what_a_killed_process_left_is_replaced(tmp_path):
    path = tmp_path / "file"
    atomic.beside(path).write_text("a longer text, cut sh")
    atomic.write_text(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_first_error_is_the_one_told(tmp_path):
    with pytest.raises(OSError, match="No space"):
        atomic.write_by(tmp_path / "file", full)  # fails before there is a temporary file to remove


def test_a_write_that_fails_names_the_file_and_a_full_disk_what_is_needed_and_free(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as raised:
        atomic.write_bytes(path, bytes(3 << 20))
    told = of_files(raised.value)
    assert told.message.startswith(f"{path}: no space is left on its disk: 3.0 MiB are needed, ")
    assert told.message.endswith(" are free.") and "Free space" in str(told.cure) and told.exit_code == 1


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT, errno.EFBIG])
def test_other_errors_of_a_write_name_the_file_too(tmp_path, number):
    def failing(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(OSError, match=re.escape(os.strerror(number))) as raised:
        atomic.write_by(tmp_path / "x", failing)
    assert of_files(raised.value).message.startswith(f"{tmp_path / 'x'}: {os.strerror(number)}")
