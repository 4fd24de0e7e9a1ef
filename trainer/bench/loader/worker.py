"""The process of one reader: told what to do in lines of JSON, it answers in lines of JSON.

`python -m trainer.bench.loader.worker KIND JOB`, started by `cingulum.bench.loader`. It ends when its
standard input is closed. It also runs where little else is installed, so it imports nothing but its reader.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from trainer.bench.loader import readers
from trainer.bench.loader.checking import Epoch, Source
from trainer.bench.loader.job import LoaderJob

# Warm, an epoch is read again and again for so long: some take but a few hundredths of a second.
LEAST_S = 0.5


def main() -> None:
    """Answer until the input ends."""
    kind, job = readers.ReaderKind(**json.loads(sys.argv[1])), LoaderJob(**json.loads(sys.argv[2]))
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, _end)
    worker = _Worker(kind, job)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = getattr(worker, asked.pop("do"))(**asked)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _end(number: int, frame: FrameType | None) -> None:
    # As an exception, so that shared memory and worker processes of the libraries are cleaned up.
    sys.exit(0)


class _Worker:
    """What a reader can be asked."""

    def __init__(self, kind: readers.ReaderKind, job: LoaderJob) -> None:
        self._job = job
        self._rounds = kind.rounds and job.dtype == "float16"
        self._reader: Any = readers.make(kind, job)
        self._baseline = resident()
        self._epochs = 0

    def prepare(self) -> dict[str, Any]:
        """Write the reader's files."""
        began = time.perf_counter()
        self._reader.prepare()
        return {"seconds": time.perf_counter() - began}

    def open(self) -> dict[str, Any]:
        """Open them, read an epoch and compare every voxel; memory is counted from here."""
        self._reader.open()
        files = self._reader.files()
        if not hasattr(self._reader, "part"):
            epoch = self._epoch(whole=True)
            for batch in epoch[1]:
                epoch[0].add(batch)
            epoch[0].close()
        forget_peak()
        return {
            "files": [str(path) for path in files],
            "stored_bytes": sum(path.stat().st_size for path in files),
            "note": getattr(self._reader, "note", ""),
        }

    def epoch(self, least_s: float = 0.0) -> dict[str, Any]:
        """Read an epoch, and further ones until `least_s` seconds have passed."""
        seconds, volumes, in_order = 0.0, 0, True
        storage = from_storage()
        read = getattr(self._reader, "bytes_read", 0)
        while not volumes or seconds < least_s:
            seen, batches = self._epoch()
            began = time.perf_counter()
            for batch in batches:
                seen.add(batch)
            seconds += time.perf_counter() - began
            seen.close()
            volumes += len(seen.numbers)
            in_order = in_order and seen.in_stored_order
        return {
            "seconds": seconds,
            "volumes": volumes,
            "in_stored_order": in_order,
            "storage_bytes": from_storage() - storage,
            "bytes_read": getattr(self._reader, "bytes_read", 0) - read,
            "peak_memory_bytes": peak(self._baseline),
        }

    def part(self, name: str, least_s: float = 0.0) -> dict[str, Any]:
        """Return the seconds per epoch of a part of the limit; the mean over `least_s` seconds."""
        times: list[float] = []
        while not times or sum(times) < least_s:
            times.append(self._reader.part(name))
        return {"seconds": sum(times) / len(times)}

    def _epoch(self, whole: bool = False) -> tuple[Epoch, Any]:
        tolerance = Source(self._job).tolerance(self._rounds)
        seen = Epoch(self._job, tolerance=tolerance, whole=whole)
        batches = self._reader.epoch(self._epochs)
        self._epochs += 1
        return seen, batches


# Memory and storage traffic of this process and of those that it started.


def resident() -> int:
    """Return the bytes of memory that this process holds now."""
    return _status("self", "VmRSS")


def forget_peak() -> None:
    """Begin to count this process's peak anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak(baseline: int) -> int:
    """Return the bytes above `baseline` at the peak, summed over this process and its children.

    Pages that a child shares with its parent are part of the baseline, too.
    """
    return sum(max(0, _status(process, "VmHWM") - baseline) for process in _family())


def from_storage() -> int:
    """Return the bytes that this process and its children read from storage, page cache hits not counted."""
    total = 0
    for process in _family():
        for line in Path(f"/proc/{process}/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                total += int(line.split()[1])
    return total


def _family() -> list[str]:
    return [str(os.getpid()), *(str(child.pid) for child in multiprocessing.active_children())]


def _status(process: str, name: str) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
