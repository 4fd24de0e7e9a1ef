"""Choose the codec of an import (`--codec auto`): the one with the most volumes per second for a loader here.

A volume is read from the disk, then its checksum is compared, it is decoded and cast, by several threads
while others read. So a codec allows 1 / max(time to read, time to decode) volumes per second, and the best
one depends on the disk and on the processor.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from trainer.data.importing import import_state
from trainer.data.importing.examination import examine
from trainer.data.importing.import_request import ImportRequest
from trainer.data.shards import codecs, stored_types
from trainer.data.shards.casting import cast_into
from trainer.data.shards.layout import StorageLayout
from trainer.data.shards.shard_writer import unwritten
from trainer.data.shards.thread_memory import scratch
from trainer.data.sources.listing import SourceListing
from trainer.data.workers import default_workers
from trainer.errors import CohortError, ShardError

AUTO = "auto"

# What is written to the disk and read back, in blocks of the size of a stored volume or so.
DISK_BYTES = 32 << 20
_BLOCK = 1 << 20
# A smaller set is worth this much speed: measurements differ by as much.
WITHIN = 0.05
# How often decoding is measured; the fastest time counts, since others can only slow it down.
_ROUNDS = 3
# A codec is chosen by so many volumes, with so many bytes of float32 together, found among the first images.
_MOST_MEASURED, _MEASURED_BYTES, _MOST_TRIED = 4, 256 << 20, 32


@dataclass(frozen=True)
class MeasuredCodec:
    """Measurements of a codec.

    Attributes:
        codec: its name.
        stored_bytes: of a volume.
        read_s: to read a volume at the disk's speed, in seconds.
        decode_s: to check, decode and cast a volume, in seconds, with all threads at work.
    """

    codec: str
    stored_bytes: float
    read_s: float
    decode_s: float

    @property
    def volumes_per_s(self) -> float:
        """Return the volumes per second that the slower of reading and decoding allows."""
        return 1 / max(self.read_s, self.decode_s)

    @property
    def bound_by(self) -> str:
        """Return which of the two is slower."""
        return "the disk" if self.read_s > self.decode_s else "decoding"


@dataclass(frozen=True)
class CodecChoice:
    """The chosen codec, and its measurements.

    Attributes:
        codec: its name.
        why: one line for people.
        disk_bytes_per_s: how fast the target's disk gives files that are not in memory.
        threads: that decoded.
        volumes: how many were tried.
        measured: every codec, in the order of `codecs.CODECS`.
    """

    codec: str
    why: str
    disk_bytes_per_s: float
    threads: int
    volumes: int
    measured: tuple[MeasuredCodec, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        rows = [asdict(row) | {"volumes_per_s": row.volumes_per_s} for row in self.measured]
        return {**asdict(self), "measured": rows}


def choose(arrays: Sequence[np.ndarray], layout: StorageLayout, folder: Path, threads: int) -> CodecChoice:
    """Return the best codec for some volumes, by measuring every codec.

    Args:
        arrays: at least one volume of the layout's shape; of its type, or float32.
        layout: how the set will be stored; its codec does not count.
        folder: on the disk that the set is written to.
        threads: that will decode.

    Raises:
        ShardError: the disk cannot be written or read.
    """
    rate = disk_speed(folder)
    measured = tuple(_measure(arrays, replace(layout, codec=codec), rate, threads) for codec in codecs.CODECS)
    best = pick(measured)
    others = [row for row in measured if row is not best]
    second = max(others, key=lambda row: row.volumes_per_s)
    why = (
        f"{best.codec}: {best.volumes_per_s:.0f} volumes/s, bound by {best.bound_by}, at "
        f"{best.stored_bytes / 2**20:.2f} MiB each; {second.codec}: {second.volumes_per_s:.0f} at "
        f"{second.stored_bytes / 2**20:.2f} MiB (disk {rate / 1e6:.0f} MB/s, {threads} threads)"
    )
    return CodecChoice(best.codec, why, rate, threads, len(arrays), measured)


def pick(measured: Sequence[MeasuredCodec]) -> MeasuredCodec:
    """Return the smallest of those that are within `WITHIN` of the fastest."""
    fastest = max(row.volumes_per_s for row in measured)
    good = [row for row in measured if row.volumes_per_s >= (1 - WITHIN) * fastest]
    return min(good, key=lambda row: row.stored_bytes)


def disk_speed(folder: Path, nbytes: int = DISK_BYTES) -> float:
    """Return how fast an uncached file is read from this folder's disk, in bytes per second.

    Writes a file of random bytes, syncs it, asks the kernel to forget it, and reads it. A disk that is memory
    (tmpfs), or the server's memory behind a network disk, cannot be made to forget.

    Raises:
        CingulumError: the disk is full.
        ShardError: it cannot be written or read for another reason.
    """
    path = folder / f".disk-speed.{os.getpid()}.partial"
    block = np.random.default_rng(0).bytes(_BLOCK)  # a disk that compresses finds nothing to win
    try:
        with path.open("wb") as file:
            for number in range(nbytes // _BLOCK):
                file.write(number.to_bytes(8, "little") + block[8:])
            file.flush()
            os.fsync(file.fileno())
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            memory = bytearray(_BLOCK)
            begun = time.perf_counter()
            while file.readinto(memory):
                pass
            return nbytes // _BLOCK * _BLOCK / (time.perf_counter() - begun)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise unwritten(path, error, f" Measuring its speed takes {nbytes >> 20} MiB.") from None
        raise ShardError(
            f"{folder}: the speed of its disk cannot be measured ({error.strerror}).",
            cure=f"Free some space there, or name a codec: --codec {codecs.DEFAULT}.",
        ) from None
    finally:
        path.unlink(missing_ok=True)


def _measure(arrays: Sequence[np.ndarray], layout: StorageLayout, rate: float, threads: int) -> MeasuredCodec:
    packed = [stored_types.pack(array, layout.dtype) for array in arrays]
    volumes = [(layout.encode(stored), scale) for stored, scale in packed]
    stored_bytes = sum(sum(map(len, chunks)) for chunks, _ in volumes) / len(volumes)

    def decode(number: int) -> None:
        chunks, scale = volumes[number % len(volumes)]
        decode_all(layout, chunks, scale)

    return MeasuredCodec(layout.codec, stored_bytes, stored_bytes / rate, seconds_each(decode, threads))


def decode_all(layout: StorageLayout, chunks: Sequence[bytes], scale: float | None) -> None:
    """Check, decode and cast the chunks of a volume to float32, as a loader does."""
    shape, dtype = layout.chunk_shape, layout.dtype
    voxels = scratch("voxels", prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
    out = scratch("measured", prod(shape) * 4).view(np.float32).reshape(shape)
    for chunk in chunks:
        xxhash.xxh3_64_intdigest(chunk)
        if layout.codec == "none" and layout.bricks is None:  # is read to where it is cast from
            voxels = np.frombuffer(chunk, np.uint8).view(dtype).reshape(shape)
        else:
            codecs.decode_into(layout.codec, chunk, voxels)
        if dtype != out.dtype or layout.bricks is not None:
            cast_into(voxels, out, scale)


def seconds_each(work: Callable[[int], None], threads: int) -> float:
    """Return the seconds per call when several threads make many calls: the best of some rounds."""
    pieces = 4 * threads
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_ROUNDS):
            begun = time.perf_counter()
            list(pool.map(work, range(pieces)))
            best = min(best, (time.perf_counter() - begun) / pieces)
    return best


def as_before(request: ImportRequest) -> tuple[ImportRequest, dict[str, Any] | None]:
    """Return the request with the codec that an earlier import chose, and the measurements behind it.

    Nothing changes where the codec is named or none was chosen.

    Raises:
        ShardError: the files of the earlier import cannot be read.
    """
    choice = import_state.codec_choice(request.target) if request.codec == AUTO else None
    return (request.with_codec(choice["codec"]), choice) if choice else (request, None)


def choose_for(request: ImportRequest, listing: SourceListing) -> tuple[ImportRequest, dict[str, Any]]:
    """Return the request with the codec that is best for its first usable images, and the measurements.

    The choice is kept in the target's work folder, for an import that goes on.

    Raises:
        CohortError: none of the first images can be used.
        ShardError: the target's disk cannot be written or read.
    """
    recipe = request.recipe
    layout = StorageLayout(
        recipe.shape, stored_types.stored_dtype(recipe.dtype), codecs.DEFAULT, request.bricks
    )
    most = max(1, min(_MOST_MEASURED, _MEASURED_BYTES // (4 * prod(recipe.shape))))
    found = (examine((image, recipe)).array for image in listing.images[:_MOST_TRIED])
    arrays = list(islice((array for array in found if array is not None), most))
    check_any_usable(listing, [True] * len(arrays))
    work = request.target / import_state.WORK_NAME
    import_state.make(work)
    choice = choose(arrays, layout, work, request.workers or default_workers()).to_json()
    import_state.keep_codec_choice(work, choice)
    return request.with_codec(choice["codec"]), choice


def check_any_usable(listing: SourceListing, usable: Sequence[bool]) -> None:
    """Check that a codec can be chosen by the first images.

    Raises:
        CohortError: none of the first images can be used.
    """
    if not any(usable[:_MOST_TRIED]):
        raise CohortError(
            f"{listing.name}: none of its first {_MOST_TRIED} images can be used to choose a codec.",
            cure=f"`--dry-run` says what is wrong with them; or name a codec: --codec {codecs.DEFAULT}.",
        )
