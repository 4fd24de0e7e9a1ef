"""Reading stored bytes: what may pass is tried again, another file is noticed, a read that hangs is known."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from shard_sets import make_mapped_set, make_shard_set, volume_of
from wording import fails_with

from trainer.data.shards import stored_bytes
from trainer.data.shards.shards import ShardSet
from trainer.errors import ShardError


@pytest.fixture
def shards(tmp_path) -> ShardSet:
    return make_shard_set(tmp_path)


def failing(monkeypatch, number: int, times: int) -> list[int]:
    """Let the next reads fail; returns a list that gets an entry per try."""
    plain, tries = os.preadv, []

    def preadv(descriptor, buffers, offset):
        tries.append(offset)
        if len(tries) <= times:
            raise OSError(number, os.strerror(number))
        return plain(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    return tries


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(stored_bytes.time, "sleep", slept.append)
    return slept


@pytest.mark.parametrize("number", sorted(stored_bytes.MAY_PASS))
def test_a_failure_that_passes_is_tried_again_and_told_once(
    shards, monkeypatch, capsys, short_pauses, number
):
    for row in (2, 3):
        tries = failing(monkeypatch, number, 2)
        assert np.array_equal(shards.read(row), volume_of(row))
        assert len(tries) == 3
        monkeypatch.undo()
        monkeypatch.setattr(stored_bytes.time, "sleep", short_pauses.append)
    assert short_pauses == [*stored_bytes.PAUSES_S[:2]] * 2
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1
    assert f"shard-00000.h5: reading at byte {shards.volumes[2].offset} failed" in said
    assert os.strerror(number) in said
    assert shards.bytes_read == sum(shards.volumes[row].nbytes for row in (2, 3))


def test_a_failure_that_stays_is_named_after_bounded_pauses(shards, monkeypatch, short_pauses):
    tries = failing(monkeypatch, errno.EIO, 10**6)
    volume = shards.volumes[5]
    place = rf"shard-00001.h5, byte {volume.offset}: volume 5 \(subject sub-05\)"
    with pytest.raises(ShardError, match=rf"{place} .* cannot be read \(Input/output error\)"):
        shards.read(5)
    assert len(tries) == 1 + len(stored_bytes.PAUSES_S)
    assert short_pauses == list(stored_bytes.PAUSES_S)
    assert sum(short_pauses) < 10
    assert shards.bytes_read == 0


def test_a_failure_that_cannot_pass_is_not_tried_again(shards, monkeypatch, short_pauses):
    tries = failing(monkeypatch, errno.EACCES, 1)
    with fails_with(ShardError):
        shards.read(5)
    assert (len(tries), short_pauses) == (1, [])


def test_a_stale_handle_is_opened_anew(shards, monkeypatch):
    shards.read(0)
    held = shards._stored._files.get("shard-00000.h5")  # keeps its number in use
    plain = os.preadv

    def preadv(descriptor, buffers, offset):
        if descriptor == held.descriptor:
            raise OSError(errno.ESTALE, "Stale file handle")
        return plain(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    assert np.array_equal(shards.read(1), volume_of(1))


@pytest.mark.parametrize("most", [1, 7])
def test_a_short_read_goes_on_where_it_ended(shards, monkeypatch, most):
    plain = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: plain(fd, [views[0][:most]], offset))
    for row in (0, 9):
        assert np.array_equal(shards.read(row), volume_of(row))


# The shard in use becomes another file.


def removed(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    """By a file of the same size and time, as `mv` of a copy would do."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    beside = path.with_name("beside")
    beside.write_bytes(content)
    os.utime(beside, ns=(status.st_atime_ns, status.st_mtime_ns))
    beside.rename(path)


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def written_to(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(file.read(1))


BECAME = {
    removed: "the file was removed",
    replaced: "the file was replaced by another one",
    cut_short: r"the file was truncated, from (\d+) bytes to \d+",
    emptied: "the file was truncated, from .* bytes to 0",
    written_to: "the file was written to",
}


@pytest.mark.parametrize("change", BECAME)
@pytest.mark.parametrize("in_use", [True, False])
def test_a_shard_that_becomes_another_file_is_named(shards, change, in_use):
    if in_use:
        shards.read(4)
    change(shards.path / "shard-00001.h5")
    place = rf"shard-00001.h5, byte {shards.volumes[6].offset}: volume 6 \(subject sub-06\)"
    for _ in range(2):
        with pytest.raises(ShardError, match=f"{place} is damaged: {BECAME[change]}"):
            shards.read(6)
    assert np.array_equal(shards.read(0), volume_of(0))


def test_a_shard_that_is_replaced_in_the_midst_of_a_read_gives_no_bytes_of_either(shards, monkeypatch):
    plain = os.preadv

    def preadv(descriptor, buffers, offset):
        if offset == shards.volumes[5].offset:
            count = plain(descriptor, [buffers[0][:10]], offset)
            written_to(shards.path / "shard-00001.h5")
            return count
        return plain(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    with fails_with(ShardError):
        shards.read(5)


def test_a_shard_that_is_away_for_a_moment_is_found_again(shards):
    path, elsewhere = shards.path / "shard-00001.h5", shards.path / "elsewhere"
    path.rename(elsewhere)
    with fails_with(ShardError):
        shards.read(6)
    elsewhere.rename(path)
    assert np.array_equal(shards.read(6), volume_of(6))


def test_a_file_system_that_counts_no_names_is_read_all_the_same(shards, monkeypatch, short_pauses):
    plain = os.fstat
    names = ("st_dev", "st_ino", "st_size", "st_mtime_ns")

    def fstat(descriptor):
        status = plain(descriptor)
        return SimpleNamespace(st_nlink=0, **{name: getattr(status, name) for name in names})

    monkeypatch.setattr(os, "fstat", fstat)
    assert np.array_equal(shards.read(6), volume_of(6))
    assert short_pauses == []


# Reads that hang.


class Hanging:
    """Reads of a shard that wait until `go` is set."""

    def __init__(self, monkeypatch, shards: ShardSet, row: int) -> None:
        self.go, self.waiting = threading.Event(), threading.Event()
        plain, place = os.preadv, shards.volumes[row].offset

        def preadv(descriptor, buffers, offset):
            if offset == place:
                self.waiting.set()
                assert self.go.wait(20)
            return plain(descriptor, buffers, offset)

        monkeypatch.setattr(os, "preadv", preadv)
        self.thread = threading.Thread(target=shards.read, args=(row,), daemon=True)
        self.thread.start()
        assert self.waiting.wait(20)


def test_a_read_that_hangs_is_overdue_until_it_ends(shards, monkeypatch):
    assert shards.overdue(0) is None
    hanging = Hanging(monkeypatch, shards, 6)
    assert shards.overdue(100) is None
    while (error := shards.overdue(0.01)) is None:
        pass
    place = f"shard-00001.h5, byte {shards.volumes[6].offset}: reading volume 6 (subject sub-06)"
    assert place in error.message
    assert f"({shards.volumes[6].nbytes} bytes) has taken more than 0.01 s" in error.message
    assert "data.read_timeout" in error.cure
    assert np.array_equal(shards.read(0), volume_of(0)), "other threads go on"
    assert shards.overdue(0.01), "the one that hangs is told, not the last one"
    hanging.go.set()
    hanging.thread.join()
    assert shards.overdue(0) is None


def refused(read, row: int) -> None:
    with pytest.raises(ShardError):
        read(row)


def test_a_shard_whose_opening_hangs_is_overdue_and_holds_nobody_up(shards):
    path = shards.path / "shard-00001.h5"
    path.unlink()
    os.mkfifo(path)  # opening it waits for a writer
    thread = threading.Thread(target=refused, args=(shards.read, 5), daemon=True)
    thread.start()
    while (error := shards.overdue(0.01)) is None:
        pass
    assert "reading volume 5 (subject sub-05)" in error.message
    assert np.array_equal(shards.read(0), volume_of(0))
    os.close(os.open(path, os.O_WRONLY))
    thread.join()


def test_a_label_map_that_hangs_is_named_as_one(tmp_path, monkeypatch):
    shards = make_mapped_set(tmp_path)
    go = threading.Event()
    monkeypatch.setattr(os, "preadv", lambda *_: go.wait(20) and 0)
    thread = threading.Thread(target=refused, args=(shards.read_map, 1), daemon=True)
    thread.start()
    while (error := shards.overdue(0.01)) is None:
        pass
    assert "reading the label map of volume 1 (subject sub-01)" in error.message
    go.set()
    thread.join()


def test_a_forked_child_knows_nothing_of_its_parent_s_reads(shards, monkeypatch):
    hanging = Hanging(monkeypatch, shards, 6)
    child = os.fork()
    if child == 0:
        os._exit(0 if shards.overdue(-1) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hanging.go.set()
    hanging.thread.join()


def test_what_is_looked_at_at_each_read_takes_microseconds(shards):
    """An fstat and the table: far less than reading and decoding a volume."""
    target = memoryview(bytearray(100))
    began = time.thread_time()
    for _ in range(2000):
        shards._stored.read_into("shard-00000.h5", 4096, target)
    assert (time.thread_time() - began) / 2000 < 1e-4


def test_the_kernel_is_told_which_bytes_will_be_read(tmp_path, monkeypatch):
    shards = make_mapped_set(tmp_path)
    told = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda _, offset, nbytes, advice: told.append((offset, nbytes, advice))
    )
    shards.will_read(1)
    shards.will_read(2, with_map=True)
    one, two = shards.volumes[1], shards.volumes[2]
    wanted = [(one.offset, one.nbytes), (two.offset, two.nbytes), (two.map_offset, two.map_nbytes)]
    assert told == [(*place, os.POSIX_FADV_WILLNEED) for place in wanted]
    assert shards.bytes_read == 0


def test_only_the_read_itself_tells_of_a_file_that_is_gone(shards):
    (shards.path / "shard-00000.h5").unlink()
    shards.will_read(0)
    with fails_with(ShardError):
        shards.read(0)
