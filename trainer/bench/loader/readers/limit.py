"""What the machine allows: reading the stored bytes, decoding them and casting them, each alone.

No loader can be faster than the slowest of the three with the same threads. Buffers are used again and
again, and nothing comes between the calls. Decoding is the library's own; casting is ours, which is faster
than NumPy's.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import blosc

from trainer.bench.loader.checking import Source
from trainer.bench.loader.job import LoaderJob
from trainer.data.shards.casting import cast_into
from trainer.data.shards.shards import ShardSet

# So many volumes, in memory and decoded, are decoded and cast in turn: more than the caches of a core hold.
KEPT = 32

blosc.use_threads = False


class LimitReader:
    """Not a reader that delivers anything: `part` takes the place of `epoch`."""

    def __init__(self, job: LoaderJob, kind: str) -> None:
        self._job = job

    def prepare(self) -> None:
        """Do nothing: the shard set is made with the volumes."""

    def files(self) -> list[Path]:
        """Return the shards."""
        return sorted(self._job.path("shards").glob("shard-*.h5"))

    def open(self) -> None:
        """Open the shards; keep some chunks and some volumes in memory."""
        shards = ShardSet.open(self._job.path("shards"))
        self._codec = shards.codec
        self._places = [
            (os.open(shards.path / volume.shard, os.O_RDONLY | os.O_CLOEXEC), volume.offset, volume.nbytes)
            for volume in shards.volumes[: self._job.volumes]
        ]
        kept = min(KEPT, len(self._places))
        self._chunks = [os.pread(file, nbytes, offset) for file, offset, nbytes in self._places[:kept]]
        source = Source(self._job)
        self._stored = [source.volume(row) for row in range(kept)]

    def epoch(self, number: int) -> Iterable[Any]:
        """Return no batches."""
        return ()

    def part(self, name: str) -> float:
        """Return the seconds that one of PARTS takes for all volumes, in the threads of the job."""
        return _in_threads(self._job, {"read": self._read, "decode": self._decode, "cast": self._cast}[name])

    def _read(self) -> Callable[[int], None]:
        buffer = memoryview(bytearray(max(nbytes for _, _, nbytes in self._places)))

        def read(row: int) -> None:
            file, offset, nbytes = self._places[row]
            if os.preadv(file, [buffer[:nbytes]], offset) != nbytes:
                raise OSError(f"a shard ends before volume {row} does")

        return read

    def _decode(self) -> Callable[[int], None]:
        out = np.empty(self._job.shape, self._job.dtype)
        chunks, codec = self._chunks, self._codec
        planes = out.reshape(-1).view(np.uint8).reshape(-1, out.itemsize)

        def decode(row: int) -> None:
            chunk = chunks[row % len(chunks)]
            if codec == "gzip":
                planes[:] = np.frombuffer(zlib.decompress(chunk), np.uint8).reshape(out.itemsize, -1).T
            elif codec != "none":
                blosc.decompress(chunk, out)

        return decode

    def _cast(self) -> Callable[[int], None]:
        out = np.empty(self._job.shape, np.float32)
        stored = self._stored
        return lambda row: cast_into(stored[row % len(stored)], out, finite=lambda: True)


def _in_threads(job: LoaderJob, worker_of: Callable[[], Callable[[int], None]]) -> float:
    """Seconds from the first thread's start to the last one's end; each has buffers of its own."""
    order = np.random.default_rng(job.seed).permutation(job.volumes).tolist()
    workers = [worker_of() for _ in range(job.threads)]
    failures: list[OSError] = []

    def work(number: int) -> None:
        try:
            for row in order[number :: job.threads]:
                workers[number](row)
        except OSError as error:
            failures.append(error)

    for worker in workers:
        worker(order[0])  # touches its buffer's pages
    threads = [threading.Thread(target=work, args=(number,)) for number in range(job.threads)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if failures:
        raise failures[0]
    return seconds
