"""An import that is killed at any moment, or runs into a full disk, goes on to the very same bytes.

Real processes. One that has all libraries loaded forks a child per import, which takes a tenth of the time of
a fresh interpreter; where worker processes take part, the interpreter is fresh.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from made_images import bids

from trainer.data.importing.import_request import ImportRequest
from trainer.data.importing.importing import run
from trainer.data.shards.shards import ShardSet
from trainer.errors import ShardError

ROOT = Path(__file__).parents[2]

# Imports as often as it is told to: {"target": ..., "moment": ..., "part": ...} per line of standard input. A
# child dies by SIGKILL just before its change of a file number `moment`, from 0; writing the second half of a
# file's content is a change. A child that lives says how many there are. The exit code comes last.
_IMPORTS = """
import json, os, signal, sys
from pathlib import Path
from trainer.data.importing.import_request import ImportRequest
from trainer.data.importing.importing import run
import trainer.data.importing.quality_sheet

def changes(event, given):
    if event == "open":
        return isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR) and "/set" in str(given[0])
    return event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")

def child(order):
    moment, count = order["moment"], 0
    def hook(event, given):
        nonlocal count
        if changes(event, given):
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
    fsync = os.fsync
    def synced(descriptor):
        hook("os.rename", ())
        fsync(descriptor)
    os.fsync = synced
    def halved(path, content):
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
            file.flush()
            hook("os.rename", ())
            file.write(content[len(content) // 2 :])
    Path.write_bytes = halved
    sys.addaudithook(hook)
    run(ImportRequest(source=Path(sys.argv[1]), target=Path(order["target"]), size=16, workers=1,
                      volumes_per_shard=2, part=order["part"]))
    print("changes", count, flush=True)
    os._exit(0)

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        child(json.loads(line))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print("code", code, flush=True)
"""


def request(source: Path, target: Path) -> ImportRequest:
    return ImportRequest(source=source, target=target, size=16, workers=1, volumes_per_shard=2)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def cohort(tmp_path_factory) -> Path:
    return bids(tmp_path_factory.mktemp("cohort") / "cohort", 7)


@pytest.fixture(scope="module")
def whole(cohort, tmp_path_factory) -> dict[str, bytes]:
    target = tmp_path_factory.mktemp("whole") / "whole"
    run(request(cohort, target))
    return files(target)


class Imports:
    """Imports in forked children."""

    def __init__(self, cohort: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _IMPORTS, str(cohort)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip

    def to(self, target: Path, moment: int, part: str | None = None) -> list[int]:
        """Import, killed at a moment or not (-1); the changes of a child that lived, and the exit code."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"target": str(target), "moment": moment, "part": part}) + "\n")
        self._process.stdin.flush()
        said = []
        while True:
            what, number = self._process.stdout.readline().split()
            said.append(int(number))
            if what == "code":
                return said

    def end(self) -> None:
        self._process.communicate(timeout=20)


@pytest.fixture(scope="module")
def imports(cohort) -> Iterator[Imports]:
    running = Imports(cohort)
    yield running
    running.end()


def test_killed_before_any_change_of_a_file_it_goes_on_to_the_same_bytes(imports, whole, tmp_path):
    """Every fourth moment (a file has five), each with a fresh target: not whole, and it goes on."""
    changes, code = imports.to(tmp_path / "set", -1)
    assert code == 0
    assert files(tmp_path / "set") == whole
    assert changes > 60, "opening, half writing, syncing and renaming of 14 files"
    indexed = []
    for moment in range(0, changes, 4):
        target = tmp_path / f"set-{moment}"
        assert imports.to(target, moment) == [-signal.SIGKILL]
        indexed.append((target / "index.json").exists())
        if indexed[-1]:
            assert len(ShardSet.open(target)) == 7
        else:
            with pytest.raises(ShardError):
                ShardSet.open(target)
        assert imports.to(target, -1)[-1] == 0
        assert files(target) == whole, moment
        shutil.rmtree(target)
    assert indexed == sorted(indexed)
    assert set(indexed) == {False, True}, "before the index, and in what is cleared up after it"


def test_killed_again_and_again_it_gets_there(imports, whole, tmp_path):
    """The same target all the while: each import gets a little further than the one before."""
    random, target, kills = np.random.default_rng(0), tmp_path / "set", 0
    # Later and later, since the tables at the end are made anew each time.
    while (code := imports.to(target, kills + int(random.integers(3, 14)))[-1]) == -signal.SIGKILL:
        kills += 1
    assert (code, kills >= 10) == (0, True)
    assert files(target) == whole


def test_parts_that_are_killed_lead_to_the_same_bytes(imports, whole, tmp_path):
    """Each of three parts is killed before its every third change of a file, and begun again."""
    target, kills = tmp_path / "set", 0
    for part in ("2/3", "1/3", "3/3"):
        moment = 0
        while imports.to(target, moment, part)[-1] == -signal.SIGKILL:
            moment, kills = moment + 3, kills + 1
            assert not list(target.glob("shard-*.h5"))
    assert kills > 8
    assert imports.to(target, -1)[-1] == 0
    assert files(target) == whole


@pytest.mark.parametrize("shards", [1, 3])
def test_killed_from_outside_its_workers_end_and_it_goes_on(cohort, whole, tmp_path, shards):
    script = tmp_path / "importer.py"
    script.write_text(_WITH_WORKERS)
    target = tmp_path / "set"
    process = subprocess.Popen([sys.executable, str(script), str(cohort), str(target)], cwd=ROOT)
    deadline = time.monotonic() + 60
    while len(list(target.glob("shard-*.h5"))) < shards:
        assert time.monotonic() < deadline
        assert process.poll() is None
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert alive == [], "a worker outlived its parent"
    left = {path: path.stat().st_mtime_ns for path in target.rglob("*")}
    time.sleep(0.2)
    assert left == {path: path.stat().st_mtime_ns for path in target.rglob("*")}
    with pytest.raises(ShardError):
        ShardSet.open(target)
    run(request(cohort, target))
    assert files(target) == whole


_WITH_WORKERS = """
import sys, time
from pathlib import Path
import trainer.data.importing.import_work as import_work
from trainer.data.importing.import_request import ImportRequest
from trainer.data.importing.importing import run
examine = import_work.examine
def slow(task):
    time.sleep(0.05)
    return examine(task)
import_work.examine = slow
if __name__ == "__main__":
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    run(ImportRequest(source=source, target=target, size=16, workers=2, volumes_per_shard=2))
"""


# A full disk.


class Disk:
    """A folder with as much room as it is given.

    A file system of its own where we may mount one (as root). Elsewhere no file may grow beyond the room: an
    error to a program too, but of another name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        line = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder)]
        self.mounted = os.geteuid() == 0 and subprocess.run(line, check=False).returncode == 0
        self.kib = 4

    def resize(self, kib: int) -> None:
        self.kib = kib
        if self.mounted:
            subprocess.run(["mount", "-o", f"remount,size={kib}k", str(self.folder)], check=True)

    def free(self) -> None:
        if self.mounted:
            subprocess.run(["umount", str(self.folder)], check=True)

    def limit(self) -> None:
        if not self.mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.kib * 1024, self.kib * 1024))

    @property
    def said(self) -> tuple[int, str]:
        """Exit code and message when it is full."""
        return (1, "the disk is full") if self.mounted else (2, "cannot be written (File too large)")


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    small = Disk(folder)
    yield small
    small.free()


def command(source: Path, target: Path, disk: Disk) -> subprocess.CompletedProcess[str]:
    line = ["import", str(source), str(target), "--size=16", "--workers=1", "--volumes-per-shard=2"]
    return subprocess.run(
        [sys.executable, "-m", "cingulum", *line],
        capture_output=True, text=True, cwd=ROOT, check=False, preexec_fn=disk.limit,
    )  # fmt: skip


def test_on_a_full_disk_it_says_so_and_goes_on_where_there_is_room(cohort, whole, disk):
    """Room that grows bit by bit: each time a little more is done, and nothing half is left as whole."""
    target, kept = disk.folder / "set", []
    for kib in (4, 40, 96) if disk.mounted else (1, 4, 16):
        disk.resize(kib)
        done = command(cohort, target, disk)
        assert (done.returncode, disk.said[1] in done.stderr) == (disk.said[0], True), done.stderr
        assert "Traceback" not in done.stderr
        with pytest.raises(ShardError):
            ShardSet.open(target)
        shards = {path.name: path.read_bytes() for path in target.glob("shard-*.h5")}
        assert all(whole[name] == content for name, content in shards.items())
        assert not list(target.rglob("*.partial"))
        kept.append(len(shards))
    assert kept == sorted(kept)
    assert len(set(kept)) >= (3 if disk.mounted else 1)
    disk.resize(1024)
    done = command(cohort, target, disk)
    assert done.returncode == 0, done.stderr
    assert ("kept from before" in done.stdout) == disk.mounted
    assert files(target) == whole
