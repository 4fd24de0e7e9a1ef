"""Write files atomically: a file name holds the old or the new content, also after a power cut.

In a run folder that this process writes under a lease (`through`), they are prepared in the lease's staging
folder, and not beside their name: trainer/leases/lease.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import NO_SPACE, DiskFull

if TYPE_CHECKING:
    from trainer.leases.lease import Lease

# Of this process, by run folder: a run has one, and whoever writes one of its files needs it.
_leases: dict[Path, Lease] = {}


@contextlib.contextmanager
def through(lease: Lease) -> Iterator[None]:
    """Make this module write and remove under the lease what is in the lease's folder, within a context."""
    folder = Path(lease.folder).absolute()
    _leases[folder] = lease
    try:
        yield
    finally:
        del _leases[folder]


def lease_of(path: Path) -> Lease | None:
    """Return the lease under which this process writes the run folder of `path`; None without one."""
    if not _leases:
        return None
    return next((lease for folder in path.absolute().parents if (lease := _leases.get(folder))), None)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Raises:
        OSError: the disk is full or the file cannot be written; what was there is untouched.
    """
    with named(path, len(content)):
        write_by(path, lambda beside: beside.write_bytes(content))


def write_text(path: Path, text: str) -> None:
    """Write a file of UTF-8 atomically; raises what `write_bytes` does."""
    write_bytes(path, text.encode())


def write_private(path: Path, text: str) -> None:
    """Write a UTF-8 file that only its owner may read, atomically; raises what `write_bytes` does."""

    def write(temporary: Path) -> None:
        temporary.unlink(missing_ok=True)  # what a killed process left may have another mode
        temporary.touch(mode=0o600)
        temporary.write_text(text, encoding="utf-8")

    write_by(path, write)


def write_by(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary name, sync, rename; raises what `write_bytes` does.

    Raises:
        Fenced: another start has taken over the run folder that `path` is in.
    """
    lease = lease_of(path)
    temporary = beside(path) if lease is None else lease.place_for(path)
    try:
        with named(path), guarded(path):
            write(temporary)
            sync(temporary)
            put(temporary, path)
            sync(path.parent)
    except BaseException:  # Ctrl-C, too
        with contextlib.suppress(OSError):  # the first error is the one worth telling
            temporary.unlink()
        raise


def put(temporary: Path, path: Path) -> None:
    """Rename a prepared file to its name, under `lease_of(path)`."""
    lease = lease_of(path)
    if lease is None:
        temporary.replace(path)
    else:
        lease.put(temporary, path)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it; nothing that a link leads to.

    Raises:
        FileNotFoundError: there is none.
    """
    lease = lease_of(path)
    if lease is not None:
        lease.remove(path)
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are missing."""
    lease = lease_of(path)
    if lease is None:
        path.mkdir(parents=True, exist_ok=True)
    else:
        lease.make_folder(path)


def guarded(path: Path) -> contextlib.AbstractContextManager[None]:
    """Return a context whose errors are `Fenced` once another start has taken over the run folder."""
    lease = lease_of(path)
    return contextlib.nullcontext() if lease is None else lease.guarded()


@contextlib.contextmanager
def named(path: Path, needed: int | None = None) -> Iterator[None]:
    """Name `path` in errors of the file system raised in this context: an open file has no name in them.

    Args:
        path: the file that is written.
        needed: its size in bytes, where it is known.

    Raises:
        DiskFull: there is no space for it.
    """
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DiskFull(error, path, needed) from error
        if error.filename is None:
            error.filename = str(path)
        raise


def beside(path: Path) -> Path:
    """Return the temporary name of a file: always the same, so that a killed process's file is replaced."""
    return path.with_name(f".{path.name}.partial")


def sync(path: Path) -> None:
    """Wait until a file or the entries of a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
