"""Files that are old or new under their name, never half, whatever stops us and also after a power cut."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from trainer.errors import NO_SPACE, DiskFull


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
    """Write a file of UTF-8 that nobody else may read, atomically; raises what `write_bytes` does."""

    def write(temporary: Path) -> None:
        temporary.unlink(missing_ok=True)  # what a killed process left may have another mode
        temporary.touch(mode=0o600)
        temporary.write_text(text, encoding="utf-8")

    write_by(path, write)


def write_by(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary name beside `path`, sync, rename; raises what `write_bytes` does."""
    temporary = beside(path)
    try:
        with named(path):
            write(temporary)
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    except BaseException:  # Ctrl-C, too
        with contextlib.suppress(OSError):  # the first error is the one worth telling
            temporary.unlink()
        raise


@contextlib.contextmanager
def named(path: Path, needed: int | None = None) -> Iterator[None]:
    """A context whose errors of the file system name `path`: a write to an open file names none by itself.

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
    """The temporary name of a file: always the same, so that what a killed process left is replaced."""
    return path.with_name(f".{path.name}.partial")


def sync(path: Path) -> None:
    """Wait until a file or the entries of a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
