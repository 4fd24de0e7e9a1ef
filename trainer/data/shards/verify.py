"""Find damage in a shard set: every byte of every shard, every chunk, and HDF5's own reading of it.

A volume's label map, where it has one, is looked at as the volume is.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import xxhash

from trainer.data.shards import regular_files
from trainer.data.shards.casting import cast_into
from trainer.data.shards.index import INDEX_NAME, ShardRecord, Volume
from trainer.data.shards.index_reading import read_index
from trainer.data.shards.shards import ShardSet
from trainer.errors import ShardError


@dataclass(frozen=True)
class ShardFault:
    """Fault of a shard or of a volume.

    Attributes:
        shard: file name of the shard.
        what: the fault, as half a sentence.
        volume: row number in the set, or None when it concerns the whole shard.
        subject: of the volume, or None.
    """

    shard: str
    what: str
    volume: int | None = None
    subject: str | None = None

    def __str__(self) -> str:
        which = "" if self.volume is None else f" volume {self.volume} (subject {self.subject}):"
        return f"{self.shard}:{which} {self.what}"


def verify(path: Path, progress: Callable[[int, int], None] | None = None) -> list[ShardFault]:
    """Return the problems of a whole shard set; empty where it is undamaged.

    Args:
        path: folder of the set.
        progress: called with (volumes checked, volumes in all) after each volume.

    Raises:
        ShardError: the folder has no index, or one that cannot be used, so there is nothing to compare with.
    """
    path = Path(path)
    if not os.path.lexists(path / INDEX_NAME):
        ShardSet.open(path)  # says why this is no shard set
    shards = ShardSet(path, read_index(path))
    problems: list[ShardFault] = []
    done = 0
    for shard in shards.index.shards:
        faults = list(_whole_file(path, shard))
        problems += faults
        for volume in shard.volumes:
            problems += _chunk(shards, volume)
            done += 1
            if progress is not None:
                progress(done, len(shards))
        if not faults:
            # On damaged files HDF5 may crash, and their damage is known already.
            known = {problem.volume for problem in problems}
            sound = [volume for volume in shard.volumes if volume.id not in known]
            problems += _as_hdf5_reads_it(shards, shard.file, sound, len(shard.volumes))
    damaged = {problem.shard for problem in problems if problem.volume is not None}
    # A damaged volume explains why its file is damaged.
    return [p for p in problems if p.what != _OUTSIDE or p.shard not in damaged]


_OTHER = "HDF5 and cingulum read different values"
_OF_MAP = "label map: "
_OUTSIDE = "is damaged outside its volumes (its checksum does not match)"


def _whole_file(path: Path, shard: ShardRecord) -> Iterator[ShardFault]:
    try:
        size = regular_files.size(path / shard.file)
        if size != shard.nbytes:
            yield ShardFault(
                shard.file, f"has {size} bytes, not {shard.nbytes}: it was truncated or replaced"
            )
            return
        checksum = regular_files.sha256(path / shard.file)
    except FileNotFoundError:
        yield ShardFault(shard.file, "is missing")
        return
    except OSError as error:
        yield ShardFault(shard.file, f"cannot be read ({error.strerror})")
        return
    if checksum != shard.sha256:
        yield ShardFault(shard.file, _OUTSIDE)


def _chunk(shards: ShardSet, volume: Volume) -> Iterator[ShardFault]:
    if not (shards.path / volume.shard).is_file():
        return
    reads = [("", shards.read, shards.read_chunk, volume.checksum, volume.xxh3)]
    if shards.maps:
        map_checksum = volume.map_checksum or ""
        reads += [(_OF_MAP, shards.read_map, shards.read_map_chunk, map_checksum, volume.map_xxh3)]
    for which, read, read_chunk, checksum, xxh3 in reads:
        try:
            chunk = read_chunk(volume.id)
            is_right = hashlib.sha256(chunk).hexdigest() == checksum
            if is_right and xxh3 is not None and xxhash.xxh3_64_hexdigest(chunk) != xxh3:
                yield ShardFault(volume.shard, which + "its XXH3 does not match", volume.id, volume.subject)
                continue
            read(volume.id)
            if not is_right:
                yield ShardFault(
                    volume.shard, which + "its checksum does not match", volume.id, volume.subject
                )
        except ShardError as error:
            what = error.message.rpartition(" is damaged: ")[2].rstrip(".")
            yield ShardFault(volume.shard, which + what, volume.id, volume.subject)


def _as_hdf5_reads_it(
    shards: ShardSet, name: str, volumes: Sequence[Volume], count: int
) -> Iterator[ShardFault]:
    """Compare with the reference reader, h5py; `count` volumes are in the shard."""
    try:
        with h5py.File(shards.path / name, "r") as file:
            if wrong := _unlike(shards, file, count):
                yield ShardFault(name, wrong)
                return
            subjects, labels = file["subjects"].asstr()[:], file["labels"].asstr()[:]
            for volume in volumes:
                stored = file["volumes"][volume.row].view(shards.stored_dtype)
                scale = None if volume.scale is None else file["scales"][volume.row]
                values: np.ndarray = np.empty(shards.shape, shards.dtype)
                cast_into(stored, values, scale)
                if not np.array_equal(values, shards.read(volume.id), equal_nan=True):
                    yield ShardFault(name, _OTHER, volume.id, volume.subject)
                if shards.maps and not np.array_equal(file["maps"][volume.row], shards.read_map(volume.id)):
                    yield ShardFault(name, _OF_MAP + _OTHER, volume.id, volume.subject)
                if (subjects[volume.row], labels[volume.row]) != (volume.subject, volume.label or ""):
                    what = "its subject or label in the shard differs from the index"
                    yield ShardFault(name, what, volume.id, volume.subject)
    except (OSError, KeyError, RuntimeError, ShardError) as error:
        yield ShardFault(name, f"HDF5 cannot read it ({' '.join(str(error).split())})")


def _unlike(shards: ShardSet, file: h5py.File, count: int) -> str | None:
    """Return how HDF5's data sets differ from the index; None where they do not."""
    expected = {"volumes": (count, *shards.shape), "subjects": (count,), "labels": (count,)}
    if shards.maps:
        expected["maps"] = (count, *shards.shape[:3])
    if any(volume.scale is not None for volume in shards.volumes):
        expected["scales"] = (count,)
    for name, shape in expected.items():
        dataset = file[name]
        if not isinstance(dataset, h5py.Dataset) or dataset.shape != shape:
            return f"HDF5 reads `{name}` in another shape than the index says"
        elsewhere = not isinstance(file.get(name, getlink=True), h5py.HardLink)
        if elsewhere or dataset.is_virtual or dataset.external is not None:
            return f"HDF5 would read `{name}` from another file"
    return None
