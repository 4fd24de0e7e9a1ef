"""The lease on a run folder: at most one start writes it, whatever became of those before.

Every write is a rename out of the start's own staging folder, and what is removed is renamed into it. To take
a run over is to remove the staging folders of all earlier starts, before anything is read: whatever an
earlier start was about to do then fails. docs/decisions/0043-lease.md; trainer/claims.py has the files.

All calls of the file system are `os.` calls on names as text: tests/helpers/lease_model.py puts a model of a
file system in their place, and searches for interleavings that break the promise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from trainer import claims, lease_files
from trainer.claims import Owner
from trainer.errors import Fenced, RunError

# A start of the same job before this one has so long to end by itself.
EARLIER_S = 20.0
_LOOK_S = 0.2


class Lease:
    """What `take` gave: the right to write a run folder, until a later start takes it over.

    Args:
        folder: of the run.
        owner: this start.
        made: folders that `take` made, the run folder last; those that stay empty are removed at the end.
    """

    def __init__(self, folder: str, owner: Owner, made: list[str]) -> None:
        self.folder, self.owner = folder, owner
        self.staging = claims.staging_of(folder, owner.token)
        self._made = made
        self._numbers = itertools.count()
        self._ended = threading.Event()
        self._heart: threading.Thread | None = None

    @property
    def start(self) -> int:
        """The number of this start."""
        return self.owner.start

    @property
    def is_held(self) -> bool:
        """Whether nobody has taken the run over so far; for telling early, not for safety."""
        try:
            os.stat(self.staging)
        except OSError as error:
            return error.errno not in lease_files.GONE
        return True

    def place_for(self, path: Path) -> Path:
        """A new name in the staging folder for what becomes `path`."""
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
        """A context in which an error is `Fenced` where another start has taken the run over meanwhile."""
        try:
            yield
        except Fenced:
            raise
        except Exception as error:
            if self.is_held:
                raise
            raise self.fenced() from error

    def fenced(self) -> Fenced:
        """Why this start may write no more."""
        with contextlib.suppress(OSError, RunError):
            other = claims.last(self.folder)
            if other is not None and other.start > self.start:
                return Fenced(
                    f"{self.folder}: another process writes this run: {other}.",
                    cure="This start has stopped, and changes nothing more; that one goes on.",
                )
        return Fenced(
            f"{self.folder}: was renamed or removed while this run wrote it.",
            cure="Leave it where it is while it is trained. Go on where it lies now: cingulum train "
            "FOLDER/config.yaml --resume runs=... name=...",
        )

    def beat(self) -> None:
        """Tell others that this start lives, every `BEAT_S` seconds from a thread, until it ends."""

        def beating() -> None:
            name = f"{self.staging}/{claims.HEARTBEAT}"
            with contextlib.suppress(OSError):  # fenced off, or a disk that is away: said where it matters
                for number in itertools.count():
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


def take(
    folder: Path,
    mine: Owner,
    *,
    say: Callable[[str], None] = lambda text: None,
    beat: Callable[[str], None] = lambda text: None,
    patience_s: float = claims.SILENT_S,
) -> Lease:
    """Take the lease on a run folder, which is made where it is missing. Nothing may be read before.

    Args:
        folder: of the run.
        mine: this process, as `claims.myself` tells.
        say: tells people for whom we wait.
        beat: is called while we wait.
        patience_s: seconds without a heartbeat after which an owner that cannot be seen counts as dead.

    Raises:
        RunError: a process that lives writes this run, or a claim is damaged.
        Fenced: a later start of this very job writes it.
        OSError: the folder cannot be written.
    """
    place = os.fspath(folder)
    for left in (4, 3, 2, 1, 0):
        made: list[str] = []
        try:
            lease_files.make(place, made)
            with contextlib.suppress(FileExistsError):
                os.mkdir(f"{place}/{claims.WRITERS}")
            owner = _claim(place, mine, lambda other: _wait_for(place, other, mine, say, beat, patience_s))
        except OSError as error:
            if error.errno in lease_files.GONE and left:
                continue  # a start that had put nothing has removed the folder under our hands
            lease_files.unmake(place, made)
            raise
        except BaseException:
            lease_files.unmake(place, made)
            raise
        lease = Lease(place, owner, made)
        try:
            if _fence_off_earlier(lease):
                lease.beat()
                return lease
        except BaseException:
            lease.release()
            raise
        lease.release()
    raise RunError(f"{place}: is removed again and again.", cure="Who else starts a run of this name?")


def _claim(folder: str, mine: Owner, wait_for: Callable[[Owner], None]) -> Owner:
    """Claim the next number, as soon as the owner of the last one may be passed over.

    Raises:
        FileNotFoundError: the folder is gone.
    """
    while True:
        before = claims.last(folder)
        if before is not None and claims.has_staging(folder, before):
            wait_for(before)
        token = secrets.token_hex(8)
        staging, aside = claims.staging_of(folder, token), f"{folder}/{claims.WRITERS}/.{token}"
        os.mkdir(staging)
        owner = dataclasses.replace(
            mine,
            start=before.start + 1 if before else 1,
            token=token,
            inode=os.stat(staging).st_ino,
        )
        claimed = False
        try:
            lease_files.write(aside, json.dumps(dataclasses.asdict(owner)).encode() + b"\n")
            claimed = lease_files.link(aside, claims.path_of(folder, owner.start))
        finally:
            with lease_files.or_gone():
                os.unlink(aside)
            if not claimed:
                with lease_files.or_gone():
                    os.rmdir(staging)
        if claimed:
            return owner


def _wait_for(
    folder: str,
    other: Owner,
    mine: Owner,
    say: Callable[[str], None],
    beat: Callable[[str], None],
    patience_s: float,
) -> None:
    """Return when the owner has ended, is dead, or is an earlier start of our job that had time to end."""
    if other.is_gone():
        return
    if mine.precedes(other):
        raise Fenced(
            f"{folder}: another process writes this run: {other}.",
            cure="It is a later start of the same job: this one changes nothing.",
        )
    alive = other.is_gone() is False
    ours = other.precedes(mine)
    if not alive or ours:
        say(f"{folder}: waiting for {other}, which writes this run, to end or to fall silent")
    began = time.monotonic()
    first = claims.beat_of(folder, other)
    while claims.has_staging(folder, other) and not other.is_gone():
        alive = alive or claims.beat_of(folder, other) != first
        if alive and not ours:
            raise being_written(folder, other)
        waited = time.monotonic() - began
        if waited > (min(EARLIER_S, patience_s) if ours else patience_s):
            return
        beat(f"waiting for {other} to end")
        time.sleep(_LOOK_S)


def being_written(folder: str, other: Owner) -> RunError:
    """The refusal of a run that a process of another job, or none, is writing."""
    return RunError(
        f"{folder}: another process writes this run: {other}.",
        cure="It is being trained: wait for it, or stop it first. Another run needs another name: name=...",
    )


def _fence_off_earlier(lease: Lease) -> bool:
    """Fence off all earlier starts; False where one that had put nothing took our claim away too."""
    folder, start = lease.folder, lease.start
    writers = f"{folder}/{claims.WRITERS}"
    try:
        names = os.listdir(writers)
    except FileNotFoundError:
        return False
    ready = [int(name[:-6]) for name in names if name.endswith(".reads")]
    for number in range(max((n for n in ready if n < start), default=1), start):
        earlier = claims.read(folder, number)
        if earlier is None:
            return False
        lease_files.fence_off(folder, earlier)
    # Only now: as long as an earlier start is not fenced off, it may still take the claims away.
    if claims.read(folder, start) != lease.owner:
        return False
    marker = lease.place_for(Path("reads"))
    with lease.guarded():
        lease_files.write(os.fspath(marker), b"")
    lease.put(marker, Path(f"{writers}/{start:08d}.reads"))
    return True


def _elsewhere(path: Path) -> RunError:
    return RunError(
        f"{path}: lies on another file system than the run folder, so that nothing can be renamed to it.",
        cure="Put the run folder as a whole where there is room, with runs=..., and no link into it.",
    )
