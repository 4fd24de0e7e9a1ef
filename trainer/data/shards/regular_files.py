"""Read files of a shard set or an import: regular ones only, and at most the expected size.

A named pipe holds up whoever opens it, a device may never end, and a sparse file of terabytes takes no disk.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def size(path: Path) -> int:
    """Return the size of a regular file in bytes; links are followed, and nothing is opened.

    Raises:
        OSError: it is missing or no regular file; `strerror` says which.
    """
    return checked(path, path.stat()).st_size


def checked(path: Path, status: os.stat_result) -> os.stat_result:
    """Return `os.stat` of a file, if it is a regular one.

    Raises:
        OSError: it is another kind of file; `strerror` says which.
    """
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no file")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
    return status


def opened(path: Path) -> BinaryIO:
    """Open the file for reading, if it is a regular one.

    Raises:
        OSError: it is missing, cannot be opened, or is no regular file.
    """
    size(path)  # before: to open a device may set it to work
    # Without waiting for a writer, should a named pipe have taken its place since.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        checked(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
        OSError: it is missing, cannot be read, is no regular file, or is larger; then nothing was read.
    """
    with opened(path) as file:
        found = os.fstat(file.fileno()).st_size
        if found > most:
            raise OSError(errno.EFBIG, f"it has {found} bytes; at most {most} are read", str(path))
        return file.read(found)  # `most` would be allocated first


def sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hex.

    Raises:
        OSError: it is missing, cannot be read, or is no regular file.
    """
    with opened(path) as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
