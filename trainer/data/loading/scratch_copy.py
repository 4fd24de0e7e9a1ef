"""Copy a shard set to a host's local scratch, once for all processes and jobs of the host.

The process with the exclusive lock copies; the others find a complete copy when the lock is free again. Each
reader then holds the lock, shared. A copy is made as a set is written: a shard has another name until its
checksum is verified, and the index comes last. So the rest of a killed process is never taken for a complete
set, and the next process continues it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import queue
import threading
from pathlib import Path

from trainer import atomic, byte_sizes
from trainer.data.loading.node_scratch import Lock, ScratchFolder, bytes_in, lock_of, make_ours, remove
from trainer.data.shards.index import INDEX_NAME, ShardRecord
from trainer.data.shards.shards import ShardSet
from trainer.errors import DamagedShardError, ScratchError, ShardError, typed

# Read and written at once by each thread.
BLOCK = 4 << 20
# How often to look whether a lock is free.
POLL_S = 0.05
CLEAN = "cingulum scratch --clean"


class ScratchCopy:
    """A copy on local scratch that this process makes, or waits for, and then reads.

    Args:
        shards: the set.
        place: the scratch.
        threads: that copy, each a shard at a time.

    Attributes:
        folder: of the copy.
        bytes_copied: bytes that this process has read from the set's own folder.
        bytes_wanted: bytes that it has to copy; 0 while it waits, and where the copy is complete.
    """

    def __init__(self, shards: ShardSet, place: ScratchFolder, threads: int) -> None:
        self.folder = place.ours / shards.content_hash
        self.bytes_copied = 0
        self.bytes_wanted = 0
        self._shards = shards
        self._place = place
        self._threads = threads
        self._counting = threading.Lock()
        self._cancelled = threading.Event()
        self._seen = 0
        self._lock: Lock | None = None

    @property
    def about_place(self) -> str:
        """Return which setting named the scratch, and whether a copy there gains anything."""
        chosen_by = f"named by {self._place.chosen_by}"
        try:
            alike = self._place.folder.stat().st_dev == self._shards.path.stat().st_dev
        except OSError:  # `make` says why
            return chosen_by
        return f"{chosen_by}; the same disk as the shards, so a copy gains nothing" if alike else chosen_by

    def make(self) -> None:
        """Obtain a complete copy; return without it after `cancel`.

        Raises:
            ScratchError: scratch cannot be used, or has too little space.
            ShardError: a shard cannot be read, or is not what the index says.
        """
        try:
            lock_path = lock_of(self._place.open() / self.folder.name)
            # Also when cancelled: a copy that was just made must have a user, who removes it.
            while self._is_whole() or not self._cancelled.is_set():
                lock = Lock.take(lock_path, alone=False)
                if lock is not None:
                    if self._is_whole():
                        self._lock = lock
                        return
                    lock.close()
                if self._cancelled.is_set():
                    return
                lock = Lock.take(lock_path, alone=True)
                if lock is not None:
                    self._fill(lock)
                self._cancelled.wait(POLL_S if lock is None else 0)
        except OSError as error:
            raise self._unusable(error) from None

    def find(self) -> bool:
        """Open a whole copy that exists already, and make none; return whether there is one.

        Raises:
            ScratchError: the folder with our name belongs to another user.
        """
        if not os.path.lexists(self._place.ours):
            return False
        make_ours(self._place.ours)
        lock = Lock.take(lock_of(self.folder), alone=False) if self.folder.is_dir() else None
        if lock is not None and not self._is_whole():
            lock.close()
            lock = None
        self._lock = lock
        return lock is not None

    def cancel(self) -> None:
        """Make `make` return soon, without the missing shards."""
        self._cancelled.set()

    def progress(self) -> int:
        """Return bytes of the copy so far, whichever process makes it."""
        with contextlib.suppress(OSError):  # the copy itself says what is wrong
            self._seen = self.bytes_copied or bytes_in(self.folder)
        return self._seen

    def open(self) -> ShardSet:
        """Return the set, read from the copy; `make` has returned.

        Raises:
            ShardError: the copy's index is damaged.
        """
        cure = f"The copy is damaged, not the set. Remove it: {CLEAN}"
        try:
            copy = ShardSet.open(self.folder)
        except ShardError as error:
            raise type(error)(error.message, cure=cure, path=error.path) from None
        if copy.content_hash != self._shards.content_hash:
            raise ShardError(
                f"{self.folder}: is not a copy of {self._shards.path}.", cure=cure, path=self.folder
            )
        # Messages about what the volumes show name the set that people know; those about bytes, the copy.
        copy.path = self._shards.path
        copy.cure = cure
        return copy

    def close(self, *, keep: bool) -> None:
        """Release the copy; the last of its users removes it, unless it is to be kept."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        if keep:
            lock.close()
        elif lock.become_alone():
            remove(self.folder, lock)

    def _is_whole(self) -> bool:
        return (self.folder / INDEX_NAME).is_file() and not self._missing()

    def _missing(self) -> list[ShardRecord]:
        return [shard for shard in self._shards.index.shards if not self._has(shard)]

    def _has(self, shard: ShardRecord) -> bool:
        try:
            return (self.folder / shard.file).stat().st_size == shard.nbytes
        except FileNotFoundError:
            return False

    def _fill(self, lock: Lock) -> None:
        """Copy what is missing, holding the lock alone, and release it; nothing is left where that fails."""
        whole = False
        try:
            if not self._is_whole():
                self._copy()
            whole = self._is_whole()
        finally:
            if whole:
                lock.close()
            else:
                remove(self.folder, lock)

    def _copy(self) -> None:
        make_ours(self.folder)
        # Without its index it is no whole set until the last shard is there.
        (self.folder / INDEX_NAME).unlink(missing_ok=True)
        for partial in self.folder.glob(".*.partial"):
            partial.unlink()
        missing = self._missing()
        index = self._shards.index.to_json()
        nbytes = sum(shard.nbytes for shard in missing)
        free = free_bytes(self.folder)
        if nbytes + len(index) > free:
            raise self._full(nbytes, f"{byte_sizes.as_text(free)} are free here")
        self.bytes_wanted = nbytes
        self._copy_all(missing)
        if not self._cancelled.is_set():
            atomic.write_text(self.folder / INDEX_NAME, index)

    def _copy_all(self, missing: list[ShardRecord]) -> None:
        todo: queue.SimpleQueue[ShardRecord] = queue.SimpleQueue()
        for shard in missing:
            todo.put(shard)
        failures: list[BaseException] = []

        def work() -> None:
            try:
                while not self._cancelled.is_set():
                    self._copy_shard(todo.get_nowait())
            except queue.Empty:
                pass
            except BaseException as error:  # raised again below, in the thread that waits
                failures.append(error)
                self.cancel()

        # Daemons, unlike those of a pool: one that hangs in a read must not keep the process from ending.
        threads = [threading.Thread(target=work, name="copy", daemon=True) for _ in range(self._threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _copy_shard(self, shard: ShardRecord) -> None:
        """Copy one shard and compare its checksum."""
        source = self._shards.path / shard.file
        target = self.folder / shard.file
        partial = atomic.beside(target)
        digest = hashlib.sha256()
        done = 0
        buffer = memoryview(bytearray(BLOCK))
        with _reading(source) as file, partial.open("wb") as copy:
            while count := _read_into(buffer, file, source):
                if self._cancelled.is_set():
                    return
                digest.update(buffer[:count])
                copy.write(buffer[:count])
                done += count
                with self._counting:
                    self.bytes_copied += count
            copy.flush()
            os.fsync(copy.fileno())
        if done != shard.nbytes:
            raise self._damaged(source, f"has {done} bytes, not {shard.nbytes}")
        if digest.hexdigest() != shard.sha256:
            raise self._damaged(source, "is damaged: its checksum does not match")
        partial.rename(target)

    def _damaged(self, source: Path, what: str) -> ShardError:
        return DamagedShardError(
            f"{source}: {what} (found while copying it to {self.folder}).",
            cure=f"To find all damage: cingulum verify {typed(self._shards.path)}",
            path=source,
        )

    def _unusable(self, error: OSError) -> ScratchError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return self._full(self.bytes_wanted, f"while copying: {error.strerror}")
        return ScratchError(
            f"{error.filename or self.folder}: cannot be written ({error.strerror or error}).",
            cure=f"{self._instead()[0].upper()}{self._instead()[1:]}",
        )

    def _full(self, wanted: int, found: str) -> ScratchError:
        return ScratchError(
            f"{self._place.folder}: too small for a copy of {self._shards.path}: "
            f"{byte_sizes.as_text(wanted)} are needed; {found}.",
            cure=f"Free some space ({CLEAN}), or {self._instead()}",
        )

    def _instead(self) -> str:
        return (
            f"name another place than {self._place.chosen_by} does (data.scratch=FOLDER), or read the shards "
            "where they are (data.cache=none)."
        )


def free_bytes(folder: Path) -> int:
    """Return the bytes that we may still write on the file system of a folder."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _reading(source: Path) -> io.FileIO:
    try:
        return io.FileIO(source)
    except OSError as error:
        raise _unreadable(source, error) from None


def _read_into(buffer: memoryview, file: io.FileIO, source: Path) -> int:
    try:
        return file.readinto(buffer) or 0
    except OSError as error:
        raise _unreadable(source, error) from None


def _unreadable(source: Path, error: OSError) -> ShardError:
    return ShardError(
        f"{source}: cannot be read ({error.strerror}).",
        cure=f"To find all damage: cingulum verify {typed(source.parent)}",
    )
