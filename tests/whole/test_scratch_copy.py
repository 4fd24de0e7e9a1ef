"""A host has one copy of a set, whole or recognised as not, whoever is killed, damaged or in a hurry."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shard_sets import flip_byte, make_mapped_set, make_shard_set, volume_of
from wording import fails_with

from trainer.data.loading import scratch_copy
from trainer.data.loading.node_scratch import ScratchFolder
from trainer.data.loading.scratch_copy import ScratchCopy
from trainer.data.shards.shards import ShardSet
from trainer.errors import ScratchError, ShardError

# A process that copies in small blocks, each of which takes long: `python -c SLOW SHARDS SCRATCH SECONDS`.
SLOW = """
import sys, time
from pathlib import Path
from trainer.data.loading import scratch_copy
from trainer.data.loading.node_scratch import ScratchFolder
from trainer.data.shards.shards import ShardSet
shards, folder, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
scratch_copy.BLOCK = 2000
plain = scratch_copy._read_into
def slowly(buffer, file, source):
    time.sleep(seconds)
    print("reading", source.name, flush=True)
    return plain(buffer, file, source)
scratch_copy._read_into = slowly
copy = scratch_copy.ScratchCopy(ShardSet.open(shards), ScratchFolder.find(folder), threads=1)
copy.make()
near = copy.open()
total = sum(int(near.read(row).astype(int).sum()) for row in range(len(near)))
print("made", copy.bytes_copied, total, flush=True)
sys.stdin.readline()
copy.close(keep=False)
"""


@pytest.fixture
def shards(tmp_path) -> ShardSet:
    return make_shard_set(tmp_path / "shards", 12, per_shard=3)


@pytest.fixture
def scratch(tmp_path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def size_of(shards: ShardSet) -> int:
    return sum(shard.nbytes for shard in shards.index.shards)


def copy_of(shards: ShardSet, scratch: Path, threads: int = 2) -> ScratchCopy:
    return ScratchCopy(shards, ScratchFolder.find(scratch), threads)


def made(shards: ShardSet, scratch: Path) -> ScratchCopy:
    copy = copy_of(shards, scratch)
    copy.make()
    return copy


def left_in(scratch: Path) -> list[str]:
    return sorted(path.name for path in ScratchFolder.find(scratch).ours.rglob("*"))


def start_slow(shards: ShardSet, scratch: Path, seconds: float) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", SLOW, str(shards.path), str(scratch), str(seconds)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def no_file_larger_than(nbytes: int) -> Iterator[None]:
    """As on a disk that fills up: what is written beyond fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_copy_is_the_set_byte_by_byte_and_is_what_is_read(shards, scratch):
    copy = made(shards, scratch)
    assert copy.bytes_copied == size_of(shards)
    for shard in shards.index.shards:
        assert (copy.folder / shard.file).read_bytes() == (shards.path / shard.file).read_bytes()
    assert (copy.folder / "index.json").read_bytes() == (shards.path / "index.json").read_bytes()
    near = copy.open()
    for shard in shards.index.shards:
        (shards.path / shard.file).unlink()
    assert all(np.array_equal(near.read(row), volume_of(row)) for row in range(12))
    assert near.path == shards.path


def test_a_set_with_maps_is_copied_with_its_maps(tmp_path, scratch):
    shards = make_mapped_set(tmp_path / "shards")
    near = made(shards, scratch).open()
    assert all(np.array_equal(near.read_map(row), shards.read_map(row)) for row in range(5))


def test_a_second_user_copies_nothing(shards, scratch):
    first, second = made(shards, scratch), made(shards, scratch)
    assert (first.bytes_copied, second.bytes_copied) == (size_of(shards), 0)


def test_the_last_user_removes_the_copy(shards, scratch):
    first, second = made(shards, scratch), made(shards, scratch)
    first.close(keep=False)
    assert np.array_equal(second.open().read(0), volume_of(0))
    second.close(keep=False)
    assert left_in(scratch) == []


def test_a_copy_that_is_kept_is_found_by_the_next(shards, scratch):
    made(shards, scratch).close(keep=True)
    finder = copy_of(shards, scratch)
    assert finder.find()
    assert np.array_equal(finder.open().read(3), volume_of(3))
    finder.close(keep=True)
    assert made(shards, scratch).bytes_copied == 0


def test_finding_makes_nothing(shards, scratch):
    assert not copy_of(shards, scratch).find()
    assert list(scratch.iterdir()) == []
    made(shards, scratch).close(keep=True)
    (copy_of(shards, scratch).folder / "shard-00001.h5").unlink()
    assert not copy_of(shards, scratch).find()


def test_processes_that_race_for_the_same_scratch_make_one_copy(shards, scratch):
    racing = [start_slow(shards, scratch, 0.01) for _ in range(3)]
    outputs = [[process.stdout.readline()] for process in racing]
    for process, lines in zip(racing, outputs, strict=True):
        while not lines[-1].startswith("made"):
            lines.append(process.stdout.readline())
    assert ScratchFolder.find(scratch).contents(clean=True)[0].in_use
    for process in racing:
        process.communicate("end\n")
    copied, sums = zip(*[map(int, lines[-1].split()[1:]) for lines in outputs], strict=True)
    assert sorted(copied) == [0, 0, size_of(shards)]
    assert set(sums) == {sum(int(volume_of(row).astype(int).sum()) for row in range(12))}
    assert left_in(scratch) == []


def test_a_copy_of_a_killed_process_is_recognised_and_gone_on_with(shards, scratch):
    process = start_slow(shards, scratch, 0.01)
    while "shard-00002.h5" not in process.stdout.readline():
        pass
    process.stdout.readline()  # a block of it is read
    process.send_signal(signal.SIGKILL)
    process.communicate()
    copy = copy_of(shards, scratch)
    assert sorted(path.name for path in copy.folder.iterdir()) == [
        ".shard-00002.h5.partial",
        "shard-00000.h5",
        "shard-00001.h5",
    ]
    with fails_with(ShardError):
        ShardSet.open(copy.folder)
    copy.make()
    assert copy.bytes_copied == sum(shard.nbytes for shard in shards.index.shards[2:])
    near = copy.open()
    assert all(np.array_equal(near.read(row), volume_of(row)) for row in range(12))


def test_a_copy_that_lost_a_shard_gets_it_again(shards, scratch):
    """As when the system removes old files from a folder for temporary files."""
    made(shards, scratch).close(keep=True)
    copy = copy_of(shards, scratch)
    (copy.folder / "shard-00002.h5").unlink()
    copy.make()
    assert copy.bytes_copied == shards.index.shards[2].nbytes
    assert np.array_equal(copy.open().read(7), volume_of(7))


def damage(shards: ShardSet, how: str) -> Path:
    path = shards.path / "shard-00001.h5"
    if how == "flipped":
        flip_byte(path, 100)
    elif how == "cut":
        os.truncate(path, 500)
    elif how == "grown":
        path.write_bytes(path.read_bytes() + b"x")
    else:
        path.unlink()
        if how == "a folder":
            path.mkdir()
    return path


DAMAGES = {
    "flipped": "is damaged: its checksum does not match",
    "cut": "has 500 bytes, not",
    "grown": "bytes, not",
    "missing": "cannot be read .No such file",
    "a folder": "cannot be read .Is a directory",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_source_is_named_and_leaves_nothing(shards, scratch, how):
    path = damage(shards, how)
    copy = copy_of(shards, scratch)
    with pytest.raises(ShardError, match=DAMAGES[how]) as error:
        copy.make()
    assert error.value.message.startswith(f"{path}: ")
    assert error.value.cure == f"To find all damage: cingulum verify {shards.path}"
    assert left_in(scratch) == []


def test_a_copy_that_is_damaged_later_names_its_file_and_the_cure(shards, scratch):
    copy = made(shards, scratch)
    volume = shards.volumes[4]
    flip_byte(copy.folder / volume.shard, volume.offset + 3)
    with pytest.raises(ShardError) as error:
        copy.open().read(4)
    assert error.value.message.startswith(str(copy.folder / volume.shard))
    assert "cingulum scratch --clean" in error.value.cure


def test_a_copy_with_a_damaged_index_names_the_cure(shards, scratch):
    copy = made(shards, scratch)
    flip_byte(copy.folder / "index.json", 0)
    with fails_with(ShardError) as error:
        copy.open()
    assert "cingulum scratch --clean" in error.value.cure


@pytest.fixture
def full(scratch, monkeypatch) -> Iterator[Path]:
    """A scratch of 8 KiB: a real one for root, a made-up answer of the system for others."""
    if os.geteuid() == 0:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k,mode=1777", "tmpfs", scratch], check=True)
        yield scratch
        subprocess.run(["umount", scratch], check=True)
    else:
        monkeypatch.setattr(scratch_copy, "free_bytes", lambda folder: 8192)
        yield scratch


def test_too_little_space_is_told_before_anything_is_copied(shards, full):
    copy = copy_of(shards, full)
    with fails_with(ScratchError) as error:
        copy.make()
    assert error.value.message.startswith(f"{full}: ")
    assert "cingulum scratch --clean" in error.value.cure and "data.cache=none" in error.value.cure
    assert copy.bytes_copied == 0
    assert left_in(full) == []


def test_a_disk_that_fills_while_we_copy_is_told_and_left_as_it_was(shards, scratch):
    copy = copy_of(shards, scratch)
    with no_file_larger_than(1000), fails_with(ScratchError):
        copy.make()
    assert left_in(scratch) == []
    copy_of(shards, scratch).make()


def test_a_copy_that_is_given_up_leaves_nothing(shards, scratch, monkeypatch):
    copy = copy_of(shards, scratch, threads=1)
    plain = scratch_copy._read_into

    def cancelling(buffer, file, source):
        if source.name == "shard-00002.h5":
            copy.cancel()
        return plain(buffer, file, source)

    monkeypatch.setattr(scratch_copy, "_read_into", cancelling)
    copy.make()
    assert 0 < copy.bytes_copied < size_of(shards)
    assert left_in(scratch) == []


def test_a_copy_that_is_given_up_when_it_is_whole_leaves_nothing_either(shards, scratch, monkeypatch):
    """As where another host failed meanwhile."""
    copy = copy_of(shards, scratch)
    plain = copy._fill

    def cancelled_at_the_end(lock):
        plain(lock)
        copy.cancel()

    monkeypatch.setattr(copy, "_fill", cancelled_at_the_end)
    copy.make()
    copy.close(keep=False)
    assert left_in(scratch) == []


def test_who_waits_for_another_copy_can_be_told_to_give_up(shards, scratch):
    held = made(shards, scratch)
    (held.folder / "shard-00000.h5").unlink()  # no whole copy, and it is in use: nobody may mend it
    waiting = copy_of(shards, scratch)
    thread = threading.Thread(target=waiting.make)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    waiting.cancel()
    thread.join(5)
    assert not thread.is_alive()


def test_a_link_in_place_of_the_copy_is_refused(shards, scratch, tmp_path):
    copy = copy_of(shards, scratch)
    ScratchFolder.find(scratch).open()
    (tmp_path / "elsewhere").mkdir()
    copy.folder.symlink_to(tmp_path / "elsewhere")
    with fails_with(ScratchError):
        copy.make()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_place_is_told_with_whether_it_is_of_use(shards, scratch, tmp_path):
    assert copy_of(shards, scratch).about_place == (
        "named by data.scratch; the same disk as the shards, so a copy gains nothing"
    )
    assert copy_of(shards, Path("/proc")).about_place == "named by data.scratch"
    assert copy_of(shards, tmp_path / "none").about_place == "named by data.scratch"
