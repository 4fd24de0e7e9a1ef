"""The lease on a run folder: at most one start writes it, whatever became of those before.

Every write is a rename out of the start's own staging folder, and what is removed is renamed into it. To take
a run over (lease_taking.py) is to remove the staging folders of all earlier starts, before anything is read:
whatever an earlier start was about to do then fails: docs/decisions/0042-one-writer.md. claims.py has files.

All calls of the file system are `os.` calls on names as text: tests/helpers/lease_model.py puts a model of a
file system in their place, and searches for interleavings that break the promise.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from trainer.errors import Fenced, RunError
from trainer.leases import claims, lease_files
from trainer.leases.claims import Owner
from trainer.transient import TransientErrors


class Lease:
    """What `lease_taking.take` gave: the right to write a run folder, until a later start takes it over.

    Args:
        folder: of the run.
        owner: this start.
        made: folders that `take` made, the run folder last; those that stay empty are removed at the end.

    Attributes:
        missed_beats: what kept a heartbeat from being written; the next one is tried all the same.
    """

    def __init__(self, folder: str, owner: Owner, made: list[str]) -> None:
        self.folder, self.owner = folder, owner
        self.staging = claims.staging_of(folder, owner.token)
        self._made = made
        self._numbers = itertools.count()
        self.missed_beats = TransientErrors(
            f"{self.staging}/{claims.HEARTBEAT}: could not be written",
            consequence=f"After {claims.SILENT_S:g} s another start may take the run over.",
        )
        self._ended = threading.Event()
        self._heart: threading.Thread | None = None

    @property
    def start(self) -> int:
        """The number of this start."""
        return self.owner.start

    @property
    def is_held(self) -> bool:
        """Whether no other start has taken over the run so far; an early notice, not the safeguard."""
        return not lease_files.is_gone(self.staging)

    def place_for(self, path: Path) -> Path:
        """Return a new name in the staging folder for what becomes `path`."""
        return Path(f"{self.staging}/{next(self._numbers)}-{path.name}")

    def put(self, source: Path, target: Path) -> None:
        """Rename what was prepared at `place_for` to its name.

        Raises:
            Fenced: another start has taken the run over, or the run folder was renamed: nothing was changed.
            OSError: it cannot be renamed.
        """
        with self.guarded():
            inode = os.stat(os.fspath(source)).st_ino
            try:
                os.rename(os.fspath(source), os.fspath(target))
            except OSError as error:
                # NFS repeats a request whose answer was lost, and answers the second one with ENOENT.
                if error.errno == errno.EXDEV:
                    raise _elsewhere(target) from None
                if error.errno != errno.ENOENT or not (self.is_held and lease_files.inode(target) == inode):
                    raise

    def remove(self, path: Path) -> None:
        """Remove a file, a link or a folder with all that is in it; nothing that a link leads to.

        Raises:
            FileNotFoundError: there is none.
            Fenced: as `put`.
        """
        aside = self.place_for(path)
        with self.guarded():
            inode = lease_files.inode(path)
            try:
                os.rename(os.fspath(path), os.fspath(aside))
            except OSError as error:
                if error.errno == errno.EXDEV:
                    raise _elsewhere(path) from None
                if error.errno != errno.ENOENT or inode is None or lease_files.inode(aside) != inode:
                    raise
            lease_files.remove_tree(os.fspath(aside))

    def make_folder(self, path: Path) -> None:
        """Make a folder of the run folder, and those above it that are missing.

        Raises:
            Fenced: as `put`.
            FileExistsError: there is a file of that name.
        """
        if lease_files.is_folder(path):
            return
        if os.fspath(path.parent) != self.folder:
            self.make_folder(path.parent)
        aside = self.place_for(path)
        with self.guarded():
            os.mkdir(os.fspath(aside))
            try:
                self.put(aside, path)
            except OSError as error:
                os.rmdir(os.fspath(aside))
                if not lease_files.is_folder(path):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Raise `Fenced` in place of any error in this context if another start has taken over the run
        meanwhile.
        """
        try:
            yield
        except Fenced:
            raise
        except Exception as error:
            if self.is_held:
                raise
            raise self.fenced() from error

    def fenced(self) -> Fenced:
        """Return the error that says why this start may write no more."""
        with contextlib.suppress(OSError, RunError):
            other = claims.last(self.folder)
            if other is not None and other.start > self.start:
                return Fenced(
                    f"{self.folder}: another process writes this run: {other}.",
                    cure="This start has stopped and changes nothing more; the other one continues.",
                    path=self.folder,
                )
        return Fenced(
            f"{self.folder}: was renamed or removed while this run wrote it.",
            cure="Do not move a run while it is trained. Resume it where it is now: cingulum train "
            "FOLDER/config.yaml --resume runs=... name=...",
            path=self.folder,
        )

    def beat(self) -> None:
        """Tell others that this start lives, every `BEAT_S` seconds from a thread, until it ends."""

        def beating() -> None:
            name = f"{self.staging}/{claims.HEARTBEAT}"
            for number in itertools.count():
                with self.missed_beats.survived(), contextlib.suppress(FileNotFoundError):  # fenced off
                    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644)
                    try:
                        os.write(descriptor, b"%020d\n" % number)
                    finally:
                        os.close(descriptor)
                if self._ended.wait(claims.BEAT_S):
                    return

        self._heart = threading.Thread(target=beating, name="lease", daemon=True)
        self._heart.start()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Say that this start has ended; what it prepared and did not put is gone."""
        self._ended.set()
        if self._heart is not None:
            self._heart.join(claims.BEAT_S)
        with contextlib.suppress(OSError, RunError):
            writers = f"{self.folder}/{claims.WRITERS}"
            found = set(os.listdir(self.folder)) if self._made else set()
            if found == {claims.WRITERS, os.path.basename(self.staging)}:
                # Nothing was put. All claims go, or none: a number that is free again could be given twice.
                os.rename(writers, f"{self.staging}/writers")
        with contextlib.suppress(OSError, RunError):
            lease_files.fence_off(self.folder, self.owner)
        with contextlib.suppress(OSError):
            for made in reversed(self._made):
                os.rmdir(made)


def _elsewhere(path: Path) -> RunError:
    return RunError(
        f"{path}: is on another file system than the run folder, so files cannot be renamed to it.",
        cure="Put the whole run folder on one file system with room (runs=...), without links in it.",
        path=path,
    )
