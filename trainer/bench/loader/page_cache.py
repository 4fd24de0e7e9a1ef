"""The kernel's page cache: files dropped from it, or read into it, and how much of them it holds."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_PIECE = 2**22


def drop(paths: Iterable[Path]) -> None:
    """Ask the kernel to forget files' contents. It keeps pages that a process has mapped: see `share`."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # pages not yet on the disk cannot be forgotten
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def fill(paths: Iterable[Path]) -> None:
    """Read files once, so that the cache holds them."""
    buffer = bytearray(_PIECE)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def share(paths: Iterable[Path]) -> float:
    """Share of the files' pages that are in the cache, 0 to 1; by mincore(2)."""
    pages = cached = 0
    for path in paths:
        size = path.stat().st_size
        if size:
            held = _pages_in_cache(path, size)
            pages += len(held)
            cached += sum(held)
    return cached / pages if pages else 0.0


def _pages_in_cache(path: Path, size: int) -> list[bool]:
    library = ctypes.CDLL(None, use_errno=True)
    # Private and writable, although nothing is written: ctypes takes the address of no read-only buffer.
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as mapped:
        held = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        try:
            if library.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), held):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
        finally:
            del first
    return [bool(page & 1) for page in held]
