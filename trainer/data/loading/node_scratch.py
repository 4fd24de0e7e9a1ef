"""Local scratch of a host: our folder on it, the users of its content, and cleaning.

    <scratch>/cingulum-<uid>/        ours alone, mode 0700
        <content hash>/              a copy of a shard set; whole when its index.json is there
        <content hash>.lock          flock: shared by those who read the copy, exclusive to make or remove it

A lock ends with the process that holds it, however that ends, so nothing has to be cleaned up after a kill.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer import batch_environment
from trainer.data.shards.index import INDEX_NAME
from trainer.errors import ScratchError, typed

# Where to look, in this order, before the system's folder for temporary files.
VARIABLES = ("CINGULUM_SCRATCH", batch_environment.SCRATCH, "TMPDIR")


@dataclass(frozen=True)
class ScratchFolder:
    """A folder for scratch.

    Attributes:
        folder: on this host.
        chosen_by: what named it, such as `$TMPDIR`.
    """

    folder: Path
    chosen_by: str

    @classmethod
    def find(cls, configured: Path | None, environment: Mapping[str, str] | None = None) -> ScratchFolder:
        """Return the place that the configuration names, else the environment, else the system."""
        if configured is not None:
            return cls(configured.absolute(), "data.scratch")
        environment = os.environ if environment is None else environment
        for name in VARIABLES:
            if environment.get(name):
                return cls(Path(environment[name]).absolute(), f"${name}")
        return cls(Path(tempfile.gettempdir()), "the system's folder for temporary files")

    @property
    def ours(self) -> Path:
        """Return our folder in it."""
        return self.folder / f"cingulum-{os.geteuid()}"

    def open(self) -> Path:
        """Return our folder in it; make it if it is missing.

        Raises:
            ScratchError: the place is missing or not writable, or our folder's name is that of a link, of
                another user's folder, or of one that others may enter.
        """
        cure = f"It comes from {self.chosen_by}. Set another (data.scratch=FOLDER) or none (data.cache=none)."
        try:
            mode = self.folder.stat().st_mode
            if not stat.S_ISDIR(mode):
                raise ScratchError(f"{self.folder}: is not a folder.", cure=cure)
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise ScratchError(
                    f"{self.folder}: anybody may replace files here (it has no sticky bit).",
                    cure="Make a folder of your own in it, mode 0700, and set data.scratch to it.",
                )
            make_ours(self.ours)
        except OSError as error:
            raise ScratchError(
                f"{self.folder}: cannot be used as scratch ({error.strerror}).", cure=cure
            ) from None
        return self.ours

    def contents(self, *, clean: bool = False) -> list[CopyOnScratch]:
        """Return the copies in our folder, by name; empty where there is no such folder.

        Args:
            clean: whether to remove what is not in use.

        Raises:
            ScratchError: the folder with our name belongs to another user.
            OSError: a file cannot be removed.
        """
        if not os.path.lexists(self.ours):
            return []
        make_ours(self.ours)
        copies = []
        # A lock without a copy is what a run leaves that could not copy.
        for name in sorted({entry.name.removesuffix(".lock") for entry in self.ours.iterdir()}):
            copy = self.ours / name
            lock = Lock.take(lock_of(copy), alone=True)
            gone = clean and lock is not None
            if copy.is_dir():
                whole = (copy / INDEX_NAME).is_file()
                copies.append(CopyOnScratch(copy, bytes_in(copy), whole, in_use=lock is None, removed=gone))
            if lock is not None:
                remove(copy, lock) if gone or not copy.is_dir() else lock.close()
        return copies


def make_ours(folder: Path) -> None:
    """Make a folder that only we may enter, or check that it is one.

    Raises:
        ScratchError: something else has its name, as in an attack by a link in a shared folder.
        OSError: it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        what = "a link" if stat.S_ISLNK(status.st_mode) else "no folder"
        raise ScratchError(f"{folder}: is {what}.", cure=f"See who made it, and remove it: ls -ld {folder}")
    if status.st_uid != os.geteuid():
        raise ScratchError(
            f"{folder}: belongs to user {status.st_uid}, not to you.",
            cure="Set another place with data.scratch, and inform the administrator of this host.",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise ScratchError(
            f"{folder}: other users may enter it (mode {stat.S_IMODE(status.st_mode):04o}).",
            cure=f"If you trust its content: chmod 700 {typed(folder)}; else remove it.",
        )


class Lock:
    """Holds a lock file, shared or exclusive, until `close` or the end of the process.

    Use `take`.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, *, alone: bool) -> Lock | None:
        """Return the lock, or None while another holder excludes ours. Never waits.

        Raises:
            OSError: the file cannot be made, or its file system knows no locks.
        """
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = cls(path, os.open(path, flags, 0o600))
            try:
                if not lock._try(fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
                    lock.close()
                    return None
                if lock._is_in_place():
                    return lock
            except BaseException:
                lock.close()
                raise
            lock.close()  # its holder has removed the file meanwhile, so ours locks nothing

    def become_alone(self) -> bool:
        """Take the lock exclusively; return False, and close it, where others hold it or its file is gone.

        Of several holders that give up their share by this at once, one succeeds: each gives up its share
        before it looks for those of the others.
        """
        if self._try(fcntl.LOCK_EX) and self._is_in_place():
            return True
        self.close()
        return False

    def remove(self) -> None:
        """Remove the file and close it; requires the exclusive lock."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Release it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _try(self, how: int) -> bool:
        try:
            fcntl.flock(self._descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _is_in_place(self) -> bool:
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._descriptor)
        return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)


@dataclass(frozen=True)
class CopyOnScratch:
    """Copy on scratch of one content hash.

    Attributes:
        path: its folder.
        nbytes: what its files hold, in bytes.
        whole: whether it has an index, which comes last.
        in_use: whether a process reads it or makes it now.
        removed: whether it was removed now.
    """

    path: Path
    nbytes: int
    whole: bool
    in_use: bool
    removed: bool = False


def lock_of(copy: Path) -> Path:
    """Return the lock file of a copy."""
    return copy.with_name(f"{copy.name}.lock")


def remove(copy: Path, lock: Lock) -> None:
    """Remove a copy and then its lock, which is held exclusively."""
    if copy.is_symlink():
        copy.unlink()
    elif copy.is_dir():
        # First the index: what a kill leaves now is no whole set.
        (copy / INDEX_NAME).unlink(missing_ok=True)
        shutil.rmtree(copy)
    lock.remove()


def bytes_in(copy: Path) -> int:
    """Return the bytes of the files in a folder, while others may write or remove them."""
    total = 0
    try:
        with os.scandir(copy) as entries:
            for entry in entries:
                total += entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        pass
    return total
