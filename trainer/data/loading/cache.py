"""Keep decoded volumes in memory, up to a number of bytes.

Volumes are kept as they come until there is no more room, and are never given up for others. An epoch is a
random permutation, so that each volume is as likely to be read next as any other: nothing is gained by an
exchange, and the one that has been read last, which LRU would keep, is the one that comes again last.
Figures: docs/decisions/0009-staging.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from trainer.data.shards.casting import cast_into
from trainer.data.shards.shards import Origin, ShardSet, part_of

# A volume or its label map.
_Key = tuple[int, bool]


@dataclass(frozen=True)
class Use:
    """Hits and misses of a cache.

    Attributes:
        hits: reads answered from memory.
        misses: reads that went to the shards.
        kept: volumes and label maps in memory.
        kept_bytes: what they take.
    """

    hits: int
    misses: int
    kept: int
    kept_bytes: int


class KeptVolumes(ShardSet):
    """Shard set that keeps volumes in memory. Threads may use it at once.

    Arrays are kept as `ShardSet.read` gives them, and whatever is read from them is bit for bit what the
    set gives. A volume that is to be kept is never decoded by two threads at once: the second one waits.

    Args:
        shards: the set.
        budget: bytes that may be kept.
        rows: volumes worth keeping; default: all.
        preferred: volumes among them of which this process reads the same in every epoch, as of validation.
        preferred_count: how many of those it reads; room for them is kept free of other volumes.
        with_maps: whether label maps are read, too.
    """

    def __init__(
        self,
        shards: ShardSet,
        budget: int,
        *,
        rows: Collection[int] | None = None,
        preferred: Collection[int] = (),
        preferred_count: int = 0,
        with_maps: bool = False,
    ) -> None:
        vars(self).update(vars(shards))  # the same set, with the same open files
        self.budget = budget
        self._plain = shards
        self._rows = frozenset(range(len(shards)) if rows is None else rows)
        self._preferred = frozenset(preferred)
        self._preferred_count = preferred_count
        self._with_maps = with_maps
        self._lock = threading.Lock()
        self._kept: dict[_Key, Future[np.ndarray]] = {}
        self._preferred_bytes = 0
        self._kept_bytes = 0
        self._hits = 0
        self._misses = 0
        voxels = int(np.prod(shards.shape[:3]))
        # Of a volume and of a map, as `read` gives them: known for certain once one was read.
        self._nbytes = {False: voxels * shards.shape[3] * shards.dtype.itemsize, True: voxels}

    @property
    def volume_bytes(self) -> int:
        """Return the bytes of a volume, with its label map where maps are read."""
        return self._nbytes[False] + (self._nbytes[True] if self._with_maps else 0)

    def use(self) -> Use:
        """Return the counts so far."""
        with self._lock:
            return Use(self._hits, self._misses, len(self._kept), self._kept_bytes)

    def read(self, row: int) -> np.ndarray:
        """Read as `ShardSet` does; the array is read-only where it is kept."""
        kept = self._from_memory((row, False), self._plain.read)
        return self._plain.read(row) if kept is None else kept

    def read_map(self, row: int) -> np.ndarray:
        """Read as `ShardSet` does; the array is read-only where it is kept."""
        kept = self._from_memory((row, True), self._plain.read_map)
        return self._plain.read_map(row) if kept is None else kept

    def read_into(self, row: int, out: np.ndarray, origin: Origin | None = None) -> None:
        """Read as `ShardSet` does; of a volume that is to be kept, read the whole the first time."""
        kept = self._from_memory((row, False), self._plain.read)
        if kept is None:
            self._plain.read_into(row, out, origin)
        else:
            _give(kept, out, origin)

    def will_read(self, row: int, *, with_map: bool = False) -> None:
        """Announce as `ShardSet` does, where it is not kept."""
        if (row, False) not in self._kept:
            self._plain.will_read(row, with_map=with_map)

    def read_map_into(self, row: int, out: np.ndarray, origin: Origin | None = None) -> None:
        """Read as `ShardSet` does; see `read_into`."""
        kept = self._from_memory((row, True), self._plain.read_map)
        if kept is None:
            self._plain.read_map_into(row, out, origin)
        else:
            _give(kept, out, origin)

    def _from_memory(self, key: _Key, read: Callable[[int], np.ndarray]) -> np.ndarray | None:
        """Return the kept array, read now where there is room for it; None where there is none."""
        with self._lock:
            expected = self._nbytes[key[1]]
            future = self._kept.get(key)
            self._hits += future is not None
            self._misses += future is None
            if future is None:
                if not self._has_room(key, expected):
                    return None
                pending: Future[np.ndarray] = Future()
                self._kept[key] = pending
                self._account(key, expected)
        if future is not None:
            return future.result()
        try:
            array = read(key[0])
        except BaseException as error:
            with self._lock:
                self._forget(key, expected)
            pending.set_exception(error)  # for the threads that wait for it
            raise
        array.flags.writeable = False
        with self._lock:
            self._nbytes[key[1]] = array.nbytes
            if array.nbytes != expected:
                self._forget(key, expected)
                if self._has_room(key, array.nbytes):
                    self._kept[key] = pending
                    self._account(key, array.nbytes)
        pending.set_result(array)
        return array

    def _has_room(self, key: _Key, nbytes: int) -> bool:
        if key[0] not in self._rows:
            return False
        free = self.budget - self._kept_bytes
        if key[0] not in self._preferred:
            free -= max(0, self._preferred_count * self.volume_bytes - self._preferred_bytes)
        return nbytes <= free

    def _account(self, key: _Key, nbytes: int) -> None:
        self._kept_bytes += nbytes
        if key[0] in self._preferred:
            self._preferred_bytes += nbytes

    def _forget(self, key: _Key, nbytes: int) -> None:
        del self._kept[key]
        self._account(key, -nbytes)


def _give(kept: np.ndarray, out: np.ndarray, origin: Origin | None) -> None:
    """Fill `out` from a whole volume, or from the part of it that begins at `origin`."""
    part = part_of(kept.shape, out, origin)
    cast_into(kept if part is None else kept[part], out)
