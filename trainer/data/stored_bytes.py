"""The bytes of the shards of one set: positional reads, counted, safe in threads and after a fork."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from pathlib import Path

# Shards kept open at once, well under the usual limit of 1024 files per process.
MOST_OPEN = 128


class ReadFault(Exception):
    """Bytes that cannot be had; says why, as half a sentence."""


class StoredBytes:
    """Reads parts of the shards of one set.

    Attributes:
        folder: of the set.
        bytes_read: bytes that this process has read so far.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bytes_read = 0
        self._counting = threading.Lock()
        self._files = _OpenFiles()

    def read_into(self, shard: str, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes of a shard that begin at `offset`. Threads may call it at once.

        Raises:
            ReadFault: the file cannot be read, or ends too soon.
        """
        try:
            file = self._files.get(self.folder / shard)
            # One call reads at most 2 GiB; a volume is smaller (shard_writer.LARGEST_VOLUME).
            count = os.preadv(file.descriptor, [target], offset)
        except OSError as error:
            raise ReadFault(f"it cannot be read ({error.strerror})") from None
        if count != len(target):
            raise ReadFault("the file ends too soon")
        with self._counting:
            self.bytes_read += count


class _OpenFile:
    """A file descriptor that closes when nobody uses it any more."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # Not __del__: when Python ends, that comes after `os` is gone.
        weakref.finalize(self, os.close, self.descriptor)


class _OpenFiles:
    """The files this process has open, opened on first use, the least recently used closed first.

    A forked child starts with none: it must not depend on a lock that another thread held at the fork.
    """

    def __init__(self) -> None:
        self._process = -1
        self._start()

    def _start(self) -> None:
        self._files: OrderedDict[Path, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()
        self._process = os.getpid()

    def get(self, path: Path) -> _OpenFile:
        """The open file; it stays open at least as long as the caller holds it."""
        if self._process != os.getpid():
            self._start()
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = _OpenFile(path)
                if len(self._files) > MOST_OPEN:
                    self._files.popitem(last=False)
            self._files.move_to_end(path)
            return file
