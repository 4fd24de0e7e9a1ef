"""The bytes of the shards of one set: positional reads, counted, safe in threads and after a fork.

Temporary errors are retried; a file that changed since the set was opened is noticed; and a read that takes
too long is known while it hangs. Reads may go past the page cache: docs/decisions/0009 says
when that is of use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainer.data.shards.thread_memory import scratch

# Shards kept open at once, well under the usual limit of 1024 files per process.
MOST_OPEN = 128
# What a network file system or a tired disk may say once and not again.
MAY_PASS = frozenset({errno.EIO, errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR})
# Seconds before each further try, about five in all: a server that takes longer blocks instead.
PAUSES_S = (0.05, 0.2, 1.0, 4.0)
# Past the page cache, offsets, lengths and memory are multiples of a disk's blocks, which are no larger.
BLOCK = 4096


class ReadFault(Exception):
    """Bytes that cannot be read; `str` gives the reason, as half a sentence."""


class Identity(NamedTuple):
    """Identity of a file and of its last write."""

    device: int
    inode: int
    nbytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """Return the identity of a file from its `os.stat`."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class UnderWay(NamedTuple):
    """A read in progress: its bytes, and its start by `time.monotonic`."""

    began: float
    shard: str
    offset: int
    nbytes: int


class StoredBytes:
    """Reads parts of the shards of one set.

    Args:
        folder: of the set.
        seen: identity of each shard when the set was opened; by default that of its first read.

    Attributes:
        folder: of the set.
        bytes_read: bytes that this process has read so far.
        past_cache: whether reads go past the page cache.
    """

    def __init__(self, folder: Path, seen: Mapping[str, Identity] | None = None) -> None:
        self.folder = folder
        self.bytes_read = 0
        self.past_cache = False
        self._seen = dict(seen or {})
        self._has_warned = False
        self._start()
        _all.add(self)

    def _start(self) -> None:
        """Reset, as a forked child must: a thread that the child lacks may have held a lock."""
        self._counting = threading.Lock()
        self._files = _OpenFiles(self.folder, past_cache=self.past_cache)
        self._under_way: dict[int, UnderWay] = {}

    def go_past_cache(self) -> None:
        """Read past the page cache from now on, where the file system can; threads must not be reading."""
        self.past_cache = hasattr(os, "O_DIRECT")
        self._start()

    def read(self, shard: str, offset: int, nbytes: int) -> np.ndarray:
        """Return `nbytes` bytes of a shard, uint8 (nbytes,), valid until the thread reads again.

        See `read_into`.
        """
        if not self.past_cache:
            bytes_ = scratch("chunk", nbytes)
            self.read_into(shard, offset, bytes_.data)
            return bytes_
        before = offset % BLOCK
        # On pages of 4 KiB a virtual disk takes about twice as long.
        blocks = scratch("blocks", before + nbytes + -(before + nbytes) % BLOCK, huge_pages=True)
        self._read_counted(shard, offset, nbytes, blocks.data, before)
        return blocks[before : before + nbytes]

    def read_into(self, shard: str, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes of a shard that begin at `offset`. Threads may call it at once.

        A read with a temporary error is repeated for about five seconds, with one warning.

        Raises:
            ReadFault: the file cannot be read, ends too soon, or was removed, replaced, cut short or written
                to since the set was opened.
        """
        if self.past_cache:
            target[:] = self.read(shard, offset, len(target)).data
        else:
            self._read_counted(shard, offset, len(target), target)

    def will_read(self, shard: str, offset: int, nbytes: int) -> None:
        """Announce a coming read to the kernel; it may do nothing."""
        if self.past_cache:
            return
        # The read itself reports what is wrong with the file.
        with contextlib.suppress(OSError):
            file = self._files.get(shard)
            os.posix_fadvise(file.descriptor, offset, nbytes, os.POSIX_FADV_WILLNEED)

    def overdue(self, limit_s: float) -> UnderWay | None:
        """Return the read that has been in progress for longest, if that is longer than `limit_s` seconds."""
        longest = min(list(self._under_way.values()), default=None)
        return longest if longest and time.monotonic() - longest.began > limit_s else None

    def _read_counted(
        self, shard: str, offset: int, nbytes: int, target: memoryview, before: int = 0
    ) -> None:
        """Read into the target, which begins `before` bytes earlier and may be longer than the file."""
        thread = threading.get_ident()
        self._under_way[thread] = UnderWay(time.monotonic(), shard, offset, nbytes)
        try:
            self._read(shard, offset - before, target, before + nbytes)
        finally:
            del self._under_way[thread]
        with self._counting:
            self.bytes_read += nbytes

    def _read(self, shard: str, offset: int, target: memoryview, needed: int) -> None:
        """Fill the target, or `needed` bytes of it where the file ends then."""
        done, pauses = 0, iter(PAUSES_S)
        while done < needed:
            files = self._files
            try:
                file = files.get(shard)
                # One call reads at most 2 GiB; a volume is smaller (shard_writer.LARGEST_VOLUME).
                count = os.preadv(file.descriptor, [target[done:]], offset + done)
                # After the read: a file that was written to before or while we read it is noticed.
                self._check_same(shard, os.fstat(file.descriptor))
            except FileNotFoundError:
                raise ReadFault("the file was removed") from None
            except OSError as error:
                if error.errno == errno.EINVAL and files.past_cache:
                    # Not on this file system, or not with blocks of this size.
                    self.past_cache = False
                    self._files = _OpenFiles(self.folder)
                    continue
                pause = next(pauses, None) if error.errno in MAY_PASS else None
                if pause is None:
                    raise ReadFault(f"it cannot be read ({error.strerror})") from None
                self._warn_once(shard, offset + done, error)
                self._files.forget(shard)  # a stale handle stays stale
                time.sleep(pause)
                continue
            if not count:
                raise ReadFault("the file ends too soon")
            done += count

    def _check_same(self, shard: str, status: os.stat_result) -> None:
        """Raise where an open file has changed, or is no longer the one of that name.

        The bytes of a file that was removed or renamed over could still be read. But another rank, or this
        one when it opens the file again, would fail or get others; so all end, and at once.
        """
        opened = Identity.of(status)
        seen = self._seen.setdefault(shard, opened)
        if opened == seen and status.st_nlink:
            return
        now = Identity.of((self.folder / shard).stat())
        if now == opened == seen:
            return  # some file systems count no names
        if now[:2] != seen[:2]:
            raise ReadFault("the file was replaced by another one")
        if now.nbytes < seen.nbytes:
            raise ReadFault(f"the file was truncated, from {seen.nbytes} bytes to {now.nbytes}")
        if now != seen:
            raise ReadFault("the file was written to")
        # It was away and is back: what we have open is another one.
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def _warn_once(self, shard: str, offset: int, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            sys.stderr.write(
                f"warning: {self.folder / shard}: reading at byte {offset} failed on {socket.gethostname()} "
                f"({error.strerror}); trying again. Further failures like this are not reported.\n"
            )
            sys.stderr.flush()


_all: weakref.WeakSet[StoredBytes] = weakref.WeakSet()


def _start_all() -> None:
    for stored in list(_all):
        stored._start()


os.register_at_fork(after_in_child=_start_all)


class _OpenFile:
    """File descriptor that closes with its last user."""

    def __init__(self, path: Path, *, past_cache: bool) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if past_cache else 0))
        # Not __del__: when Python ends, that comes after `os` is gone.
        weakref.finalize(self, os.close, self.descriptor)


class _OpenFiles:
    """The open shards of this process, opened on first use, the least recently used closed first."""

    def __init__(self, folder: Path, *, past_cache: bool = False) -> None:
        self.past_cache = past_cache
        self._folder = folder
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, shard: str) -> _OpenFile:
        """Return the open file; it stays open at least as long as the caller holds it.

        Raises:
            OSError: it cannot be opened.
        """
        with self._lock:
            file = self._files.get(shard)
            if file is not None:
                self._files.move_to_end(shard)
                return file
        # Outside the lock: where opening hangs, other threads go on with other files.
        opened = _OpenFile(self._folder / shard, past_cache=self.past_cache)
        with self._lock:
            file = self._files.setdefault(shard, opened)
            if len(self._files) > MOST_OPEN:
                self._files.popitem(last=False)
            return file

    def forget(self, shard: str) -> None:
        """Reopen the file the next time."""
        with self._lock:
            self._files.pop(shard, None)
