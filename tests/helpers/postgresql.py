"""A real PostgreSQL, run as another user than root, on a socket in a new folder, that may be killed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PASSWORD = "hunter2"  # noqa: S105
# PostgreSQL refuses to be run by root.
NOBODY = pwd.getpwnam("nobody")


def url(folder: Path, password: str = PASSWORD) -> str:
    """The address of the store in the database whose socket is in this folder."""
    return f"postgresql+psycopg://me:{password}@/postgres?host={folder}"


class Database:
    """A PostgreSQL with a user `me`, who has a password."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self._programs, self._data = folder, programs, folder / "data"
        (folder / "password").write_text(PASSWORD)
        (folder / "password").chmod(0o644)
        folder.chmod(0o711)
        os.chown(folder, NOBODY.pw_uid, NOBODY.pw_gid)
        ways = ["-A", "scram-sha-256", "--pwfile", folder / "password"]
        made = self._run("initdb", "-N", "-D", self._data, "-U", "me", *ways)
        assert made.wait(120) == 0
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        place = ["-c", f"unix_socket_directories={self.folder}", "-c", "listen_addresses="]
        self._server = self._run("postgres", "-D", self._data, *place, "-c", "fsync=off")
        told = self._data / "postmaster.pid"  # its first line is the process, its eighth how far it is
        deadline = time.monotonic() + 60
        while True:
            lines = told.read_text().split("\n") if told.exists() else []
            if lines[:1] == [str(self._server.pid)] and lines[7:8] and lines[7].strip() == "ready":
                return
            may_come = self._server.poll() is None and time.monotonic() < deadline
            assert may_come, f"PostgreSQL does not start: {(self.folder / 'log').read_text()[-2000:]}"
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill -9 of all its processes: without a checkpoint, all connections cut."""
        assert self._server is not None
        if self._server.poll() is not None:
            return
        server = self._server.pid
        os.kill(server, signal.SIGSTOP)  # it starts no other process from now on
        others = [int(one) for one in Path(f"/proc/{server}/task/{server}/children").read_text().split()]
        for process in [server, *others]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._server.wait(30)
        # Where one of them still has the shared memory, the next server does not start.
        deadline = time.monotonic() + 30
        while not all(map(_has_ended, others)):
            assert time.monotonic() < deadline, "processes of PostgreSQL do not end"
            time.sleep(0.001)

    def _run(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self._programs / name, *map(str, words)],
                user=NOBODY.pw_uid,
                group=NOBODY.pw_gid,
                extra_groups=[],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def _has_ended(process: int) -> bool:
    """Return whether a process is gone, or only its parent must still take note of that."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextmanager
def started(parent: str | None = None) -> Iterator[Database]:
    """Start one in a new folder of this parent; skip the test where there is none, or fail if
    CINGULUM_REQUIRE_CLUSTER=1.
    """
    programs = _programs()
    if programs is None or os.geteuid() not in (0, NOBODY.pw_uid):
        why = "PostgreSQL's server programs, and root to run them as another user, are needed"
        pytest.fail(why) if os.environ.get("CINGULUM_REQUIRE_CLUSTER") == "1" else pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="cingulum-pg-", dir=parent))
    try:
        made = Database(folder, programs)
        made.start()
        try:
            yield made
        finally:
            made.kill()
    finally:
        shutil.rmtree(folder)


def _programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs; Debian does not put them on PATH."""
    beside = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    found = shutil.which("initdb")
    return beside[-1].parent if beside else Path(found).parent if found else None
