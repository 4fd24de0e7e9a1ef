#!/usr/bin/env python3
"""What reads of whole volumes in random order cost: through the page cache when it is cold, and past it.

.venv/bin/cingulum bench loader --reader limit --size 96 --data volumes
.venv/bin/python benchmarks/reads_past_the_cache.py volumes/*/shards

docs/results/loader.md tells what it printed. Past the cache, the memory that is read into
lies on huge pages or on those of 4 KiB, which a disk is told of one by one. All ways are measured in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainer.data.shards.shards import ShardSet
from trainer.data.shards.stored_bytes import BLOCK


class Way(NamedTuple):
    """How to read."""

    title: str
    past_cache: bool
    huge_pages: bool


WAYS = (
    Way("page cache, cold", past_cache=False, huge_pages=False),
    Way("past it, pages of 4 KiB", past_cache=True, huge_pages=False),
    Way("past it, huge pages", past_cache=True, huge_pages=True),
)


def main() -> None:
    """Print the table, a row for each way and number of threads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    shards = ShardSet.open(arguments.shards)
    print(f"{len(shards)} volumes of {shards.volumes[0].nbytes >> 10} KiB as stored, {os.cpu_count()} cores")
    print("| way | threads | volumes/s, median (range) | processor ms per volume |")
    print("| --- | --- | --- | --- |")
    cases = [(way, threads) for way in WAYS for threads in arguments.threads]
    found: dict[tuple[Way, int], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(arguments.repeats):
        for case in random.sample(cases, len(cases)):
            found[case].append(_read_all(shards, *case))
    for (way, threads), timed in found.items():
        speeds = [len(shards) / wall for wall, _ in timed]
        used = 1e3 * statistics.median(used for _, used in timed) / len(shards)
        told = f"{statistics.median(speeds):.0f} ({min(speeds):.0f}-{max(speeds):.0f})"
        print(f"| {way.title} | {threads} | {told} | {used:.3f} |")


def _read_all(shards: ShardSet, way: Way, threads: int) -> tuple[float, float]:
    """Seconds of the clock and of the processor for all volumes once."""
    order = random.sample(range(len(shards)), len(shards))
    longest = max(volume.nbytes for volume in shards.volumes) + 2 * BLOCK
    with _opened(shards, way) as files:

        def work(number: int, memory: memoryview) -> None:
            for row in order[number::threads]:
                volume = shards.volumes[row]
                first, last = volume.offset, volume.offset + volume.nbytes
                if way.past_cache:
                    first, last = first - first % BLOCK, last + -last % BLOCK
                os.preadv(files[volume.shard], [memory[: last - first]], first)

        workers = [
            threading.Thread(target=work, args=(number, _memory(longest, huge_pages=way.huge_pages)))
            for number in range(threads)
        ]
        began, used = time.perf_counter(), time.process_time()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return time.perf_counter() - began, time.process_time() - used


@contextlib.contextmanager
def _opened(shards: ShardSet, way: Way) -> Iterator[dict[str, int]]:
    """The shards, none of them in the page cache."""
    flags = os.O_RDONLY | (os.O_DIRECT if way.past_cache else 0)
    files = {name: os.open(shards.path / name, flags) for name in {v.shard for v in shards.volumes}}
    try:
        for file in files.values():
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        yield files
    finally:
        for file in files.values():
            os.close(file)


def _memory(nbytes: int, *, huge_pages: bool) -> memoryview:
    """Memory whose pages are there already."""
    pages = mmap.mmap(-1, nbytes + (4 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE if huge_pages else mmap.MADV_NOHUGEPAGE)
    pages[:] = bytes(len(pages))
    return memoryview(pages)[2 << 20 :]


if __name__ == "__main__":
    main()
