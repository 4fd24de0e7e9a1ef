"""What the lease on a run folder asks of the file system, in calls that may meet those of another start.

As in trainer/leases/lease.py, `os.` calls on names as text.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from trainer.errors import RunError
from trainer.leases import claims
from trainer.leases.claims import Owner

# Removing a staging folder competes with its owner's last call, and with files that are open on this host.
_TRIES = 100
_LOOKS = 5
_PAUSE_S = 0.1
# A name that is not there, or a folder that was removed under its handle (NFS).
GONE = frozenset({errno.ENOENT, errno.ESTALE})


def is_gone(path: str) -> bool:
    """Return whether a folder was removed or renamed; False where that cannot be seen now.

    A handle that NFS no longer takes may be one of a folder that is there still, after its server failed
    over: such a name is looked up again.
    """
    for left in reversed(range(_LOOKS)):
        try:
            os.stat(path)
            return False
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.ESTALE:
                return False
        if left:
            time.sleep(_PAUSE_S)
    return True


def make(path: str, made: list[str]) -> None:
    """Make a folder, and those above it, where they are missing; add them to `made`, the uppermost first."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent == path:
            raise
        make(parent, made)
        make(path, made)
    else:
        made.append(path)


def unmake(folder: str, made: list[str]) -> None:
    """Remove the folders that were made, as far as nothing is in them."""
    with contextlib.suppress(OSError):
        for path in (f"{folder}/{claims.WRITERS}", *reversed(made)) if made else ():
            os.rmdir(path)


def fence_off(folder: str, owner: Owner) -> None:
    """Remove the staging folder of a start, for good: from then on every rename of that start fails.

    Whoever does it renames the folder to the same name, so that of two who do it at once neither goes on
    before the folder is removed. Renamed alone it would not do: over NFS a process may hold its handle.

    Raises:
        RunError: it cannot be emptied, as a process on this host holds a file of it open (NFS).
    """
    fenced = f"{folder}/.fenced-{owner.token}"
    with or_gone():
        os.rename(claims.staging_of(folder, owner.token), fenced)
    for _ in range(_TRIES):
        try:
            with or_gone():
                remove_tree(fenced)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                raise
        time.sleep(_PAUSE_S)
    raise RunError(
        f"{fenced}: cannot be removed; {owner} may hold a file of it open.",
        cure="End that process first.",
        path=fenced,
    )


def remove_tree(path: str) -> None:
    """Remove a file or a link, or a folder with all that is in it.

    Raises:
        FileNotFoundError: it is gone: somebody else has removed it.
        OSError: such as ENOTEMPTY, where something was added meanwhile.
    """
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    for name in os.listdir(path):
        with or_gone():
            remove_tree(f"{path}/{name}")
    os.rmdir(path)


@contextlib.contextmanager
def or_gone() -> Iterator[None]:
    """Ignore in this context that a name, or the folder that it was in, is gone."""
    try:
        yield
    except OSError as error:
        if error.errno not in GONE:
            raise


def link(source: str, target: str) -> bool:
    """Return whether `target` is `source` now; False where there is another."""
    try:
        os.link(source, target)
    except FileExistsError:
        # NFS repeats a request whose answer was lost, and then finds what the first one made.
        return os.stat(target).st_ino == os.stat(source).st_ino
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        raise RunError(
            f"{os.path.dirname(target)}: its file system has no hard links ({error.strerror}), which a run "
            "folder needs.",
            cure="Put run folders on another one: runs=...",
            path=os.path.dirname(target),
        ) from None
    return True


def write(path: str, content: bytes) -> None:
    """Write a small new file, and wait until it is on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    except OSError as error:
        error.filename = path  # a full disk: the error of a write names no file
        raise
    finally:
        os.close(descriptor)


def inode(path: Path) -> int | None:
    """Return the number of what has this name, a link included; None where there is nothing."""
    try:
        return int(os.lstat(os.fspath(path)).st_ino)
    except FileNotFoundError:
        return None


def is_folder(path: Path) -> bool:
    """Return whether there is a folder of this name."""
    try:
        return stat.S_ISDIR(os.stat(os.fspath(path)).st_mode)
    except FileNotFoundError:
        return False
