"""Read a shard set: positional reads and decoding outside HDF5, safe in threads and after a fork."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from trainer.data.shards import codecs, regular_files, stored_types
from trainer.data.shards.bricks import read_box, unpack_table
from trainer.data.shards.index import FORMAT_VERSION, INDEX_NAME, Index, Volume
from trainer.data.shards.index_reading import read_index
from trainer.data.shards.layout import StorageLayout
from trainer.data.shards.stored_bytes import Identity, ReadFault, StoredBytes
from trainer.data.shards.whole_chunks import ChunkPlace, WholeChunks
from trainer.errors import DamagedShardError, ShardError, typed

__all__ = ["FORMAT_VERSION", "Origin", "ShardSet", "Volume"]

# Where a part of a volume begins, in voxels along D, H, W.
Origin = tuple[int, int, int]


class ShardSet:
    """A whole shard set, opened for reading.

    Attributes:
        path: folder of the set.
        index: everything `index.json` says.
        volumes: one entry per volume; `read(row)` takes a place in this tuple, which is also `Volume.id`.
        shape: (D, H, W, C) of every volume.
        dtype: what `read` returns: the stored type, or float32 where that is bfloat16 or has a scale.
        stored_dtype: stored type.
        codec: how chunks are compressed.
        bricks: edge of a brick in voxels; None where each volume is one chunk.
        voxel_size: in mm along D, H, W.
        normalisation: method and parameters of the intensity normalisation.
        preprocessing: recipe that leads from an image to a stored volume.
        label_name: what the labels are, such as `diagnosis`.
        labels: distinct labels, sorted.
        source: where the images came from.
        contrasts: what the channels are, such as ("T1w", "T2w"); empty for a single one.
        maps: names of the classes of the label maps, background first; empty where the set has none.
        content_hash: sha256 over the index, in hex; it changes with any voxel or label.
        cure: what to do about damage.
    """

    def __init__(self, path: Path, index: Index, seen: Mapping[str, Identity] | None = None) -> None:
        self.path = path
        self.index = index
        self.volumes = index.volumes
        self.shape = index.shape
        self.stored_dtype = stored_types.stored_dtype(index.dtype)
        scaled = any(volume.scale is not None for volume in self.volumes)
        self.dtype = stored_types.read_dtype(self.stored_dtype, scaled=scaled)
        self.codec = index.codec
        self.bricks = index.bricks
        self.voxel_size = index.meta.voxel_size
        self.normalisation = index.meta.normalisation
        self.preprocessing = index.meta.preprocessing
        self.label_name = index.meta.label_name
        self.labels = tuple(sorted({v.label for v in self.volumes if v.label is not None}))
        self.source = index.meta.source
        self.contrasts = index.meta.contrasts
        self.maps = index.meta.map_classes
        self.content_hash = index.content_hash
        self._layout = StorageLayout(self.shape, self.stored_dtype, self.codec, self.bricks)
        self._map_layout = StorageLayout(self.shape[:3], np.dtype(np.uint8), self.codec, self.bricks)
        self.cure = restore(path)
        self._stored = StoredBytes(path, seen)
        self._whole = WholeChunks(self._stored, self.codec)

    @classmethod
    def open(cls, path: Path) -> ShardSet:
        """Open a shard set; the chunks are read later.

        Raises:
            ShardError: the folder is no shard set, is half written, is of a newer format, or a shard is
                missing or of another size than the index says.
        """
        path = Path(path)
        return cls(path, *whole_index(path))

    def __len__(self) -> int:
        """Return the number of volumes."""
        return len(self.volumes)

    @property
    def past_cache(self) -> bool:
        """Return whether chunks are read past the page cache: see `go_past_cache`."""
        return self._stored.past_cache

    def go_past_cache(self) -> None:
        """Read past the page cache from now on; call before the first read.

        Then the kernel reads nothing ahead, and a disk works only while threads wait for it. Where the file
        system cannot do it, the first read finds that out, and all reads are as before.
        """
        self._stored.go_past_cache()

    @property
    def bytes_read(self) -> int:
        """Return the stored bytes that this process has read, checksums and repetitions included."""
        return self._stored.bytes_read

    def read(self, row: int) -> np.ndarray:
        """Return volume `row`, (D, H, W, C) of `dtype`. Threads may call it at once.

        The checksum of every chunk is compared every time: see `WholeChunks.read_into`.

        Raises:
            ShardError: the chunk is damaged or cannot be read.
        """
        values: np.ndarray = np.empty(self.shape, self.dtype)
        self.read_into(row, values)
        return values

    def read_chunk(self, row: int) -> bytes:
        """Return the stored bytes of volume `row`, neither checked nor decoded; bricks one after another.

        Raises:
            ShardError: the file cannot be read, or ends too soon.
        """
        volume = self.volumes[row]
        return self._chunks(volume, volume.brick_table, volume.offset, volume.nbytes)

    def read_map(self, row: int) -> np.ndarray:
        """Return the label map of volume `row`, (D, H, W) uint8: places in `maps`. Threads may call it.

        Raises:
            ShardError: the set has no label maps, or the chunk is damaged or cannot be read.
        """
        values: np.ndarray = np.empty(self.shape[:3], np.uint8)
        self.read_map_into(row, values)
        return values

    def read_into(self, row: int, out: np.ndarray, origin: Origin | None = None) -> None:
        """Read volume `row`, or a part of it, into an array of any real type. Threads may call it at once.

        Of a set in bricks only the bricks that the part touches are read. Without bricks the whole chunk is,
        compressed or not: its checksum is that of all of it.

        Args:
            row: which volume.
            out: (D, H, W, C), or the shape of the part; filled.
            origin: where the part begins, in voxels along D, H, W; None for the whole volume.

        Raises:
            ShardError: the chunk is damaged or cannot be read.
            ValueError: the part does not lie in the volume.
        """
        volume = self.volumes[row]
        place = ChunkPlace(volume.shard, volume.offset, volume.nbytes, volume.checksum, volume.xxh3)
        self._fill(volume, self._layout, place, volume.brick_table, out, origin, scale=volume.scale)

    def will_read(self, row: int, *, with_map: bool = False) -> None:
        """Announce the read of a volume, and of its label map, to the kernel; does nothing for bricks."""
        volume = self.volumes[row]
        if volume.brick_table is None:
            self._stored.will_read(volume.shard, volume.offset, volume.nbytes)
            if with_map and volume.map_offset is not None and volume.map_nbytes is not None:
                self._stored.will_read(volume.shard, volume.map_offset, volume.map_nbytes)

    def read_map_into(self, row: int, out: np.ndarray, origin: Origin | None = None) -> None:
        """Read the label map of volume `row`, or a part of it, into uint8 (D, H, W); see `read_into`.

        Raises:
            ShardError: the set has no label maps, or the chunk is damaged or cannot be read.
            ValueError: the part does not lie in the volume.
        """
        volume = self.volumes[row]
        place = self._map_place(volume)
        self._fill(volume, self._map_layout, place, volume.map_brick_table, out, origin, what=_MAP)

    def read_map_chunk(self, row: int) -> bytes:
        """Return the stored bytes of the label map of volume `row`, neither checked nor decoded.

        Raises:
            ShardError: the set has no label maps, the file cannot be read, or ends too soon.
        """
        volume = self.volumes[row]
        place = self._map_place(volume)
        return self._chunks(volume, volume.map_brick_table, place.offset, place.nbytes, _MAP)

    def _map_place(self, volume: Volume) -> ChunkPlace:
        if volume.map_offset is None or volume.map_nbytes is None or volume.map_checksum is None:
            raise ShardError(
                f"{self.path}: has no label maps.",
                cure=f"Import them with their maps: cingulum import SOURCE {typed(self.path)} --maps probseg",
                path=self.path,
            )
        return ChunkPlace(
            volume.shard, volume.map_offset, volume.map_nbytes, volume.map_checksum, volume.map_xxh3
        )

    def _fill(
        self,
        volume: Volume,
        layout: StorageLayout,
        place: ChunkPlace,
        brick_table: str | None,
        out: np.ndarray,
        origin: Origin | None,
        *,
        scale: float | None = None,
        what: str = "",
    ) -> None:
        part = part_of(layout.shape, out, origin)
        try:
            if brick_table is None:
                self._whole.read_into(place, layout.shape, layout.dtype, out, part=part, scale=scale)
            else:
                table = unpack_table(brick_table)
                read_box(self._stored, layout, place.shard, table, out, origin or (0, 0, 0), scale)
        except ReadFault as fault:
            raise self._damaged(volume, str(fault), what) from None
        except codecs.CodecError as error:
            raise self._damaged(volume, f"it cannot be decoded ({error})", what) from None

    def overdue(self, limit_s: float) -> ShardError | None:
        """Return an error about a read in progress for longer than `limit_s` seconds; None without one."""
        read = self._stored.overdue(limit_s)
        if read is None:
            return None
        whose = next(
            (
                f"{what}volume {volume.id} (subject {volume.subject})"
                for volume in self.volumes
                if volume.shard == read.shard
                for (offset, nbytes), what in zip(places(volume), ("", _MAP), strict=False)
                if offset <= read.offset < offset + nbytes
            ),
            "a volume",
        )
        return ShardError(
            f"{self._stored.folder / read.shard}, byte {read.offset}: reading {whose} ({read.nbytes} bytes) "
            f"has taken more than {limit_s:g} s.",
            cure="Check that the disk or the file server still answers. If it is slow, set a larger "
            "data.read_timeout.",
        )

    def _chunks(
        self, volume: Volume, brick_table: str | None, offset: int, nbytes: int, what: str = ""
    ) -> bytes:
        if brick_table is None:
            return self._chunk(volume, offset, nbytes, what)
        bricks = unpack_table(brick_table)[["offset", "nbytes"]].tolist()
        return b"".join(self._chunk(volume, begin, size, what) for begin, size in bricks)

    def _chunk(self, volume: Volume, offset: int, nbytes: int, what: str = "") -> bytes:
        chunk = bytearray(nbytes)
        try:
            self._stored.read_into(volume.shard, offset, memoryview(chunk))
        except ReadFault as fault:
            raise self._damaged(volume, str(fault), what) from None
        return bytes(chunk)

    def _damaged(self, volume: Volume, why: str, what: str = "") -> ShardError:
        begin = volume.map_offset if what else volume.offset
        path = self._stored.folder / volume.shard
        return DamagedShardError(
            f"{path}, byte {begin}: {what}volume {volume.id} (subject {volume.subject}) is damaged: {why}.",
            cure=self.cure,
            path=path,
        )


def part_of(shape: tuple[int, ...], out: np.ndarray, origin: Origin | None) -> tuple[slice, ...] | None:
    """Return which part of a volume goes into an array; None for the whole volume.

    Raises:
        ValueError: the array has another shape, or the part does not lie in the volume.
    """
    if origin is None:
        if out.shape != shape:
            raise ValueError(f"an array of {out.shape} for a volume of {shape}")
        return None
    if out.shape[3:] != shape[3:]:
        raise ValueError(f"an array of {out.shape} for a part of a volume of {shape}")
    end = tuple(first + size for first, size in zip(origin, out.shape[:3], strict=True))
    if min(origin) < 0 or any(last > size for last, size in zip(end, shape, strict=False)):
        raise ValueError(f"no part from {origin} to {end} in a volume of {shape[:3]}")
    return tuple(slice(first, last) for first, last in zip(origin, end, strict=True))


# Goes before "volume N" in what is said of damage.
_MAP = "the label map of "


# Check that a folder is a whole shard set.


def whole_index(path: Path) -> tuple[Index, dict[str, Identity]]:
    """Return the index of a set whose shards are all there, and which file each shard is.

    Raises:
        ShardError: the folder is no shard set, is half written, is of a newer format, or a shard is missing
            or of another size than the index says.
    """
    if not os.path.lexists(path / INDEX_NAME):
        raise _no_index(path)
    index = read_index(path)
    seen = {}

    def damaged(where: Path, what: str) -> DamagedShardError:
        return DamagedShardError(f"{where}: {what}", cure=restore(path), path=where)

    for shard in index.shards:
        file = path / shard.file
        try:
            status = file.stat()
        except OSError:
            raise damaged(path, f"the shard {shard.file} is missing.") from None
        try:
            seen[shard.file] = Identity.of(regular_files.checked(file, status))
        except OSError as error:
            raise damaged(file, f"{error.strerror}.") from None
        size = seen[shard.file].nbytes
        if size != shard.nbytes:
            raise damaged(file, f"has {size} bytes, not {shard.nbytes}: truncated or replaced.")
        for volume in shard.volumes:
            if any(_outside(*place, size) for place in places(volume)):
                raise damaged(path, f"the index places volume {volume.id} outside {shard.file}.")
    return index, seen


def places(volume: Volume) -> Iterator[tuple[int, int]]:
    """Return where the chunks of a volume and of its label map lie: offset and size in bytes."""
    for offset, nbytes, text in (
        (volume.offset, volume.nbytes, volume.brick_table),
        (volume.map_offset, volume.map_nbytes, volume.map_brick_table),
    ):
        if text is not None:
            table = unpack_table(text)
            # The bricks that begin first and end last speak for all.
            first, last = table["offset"].min(), (table["offset"] + table["nbytes"]).max()
            yield int(first), int(last - first)
        elif offset is not None and nbytes is not None:
            yield offset, nbytes


def _outside(offset: int, nbytes: int, size: int) -> bool:
    return offset < 0 or nbytes < 1 or offset + nbytes > size


def _no_index(path: Path) -> ShardError:
    if path.exists() and not path.is_dir():
        return ShardError(
            f"{path}: is a file, but a shard set is a folder.", cure="Give the folder.", path=path
        )
    if not path.is_dir():
        return ShardError(
            f"{path}: there is no such folder.",
            cure="`cingulum import SOURCE SHARDS` makes a shard set.",
            path=path,
        )
    if any(path.glob("*shard-*.h5*")):
        return ShardError(
            f"{path}: is incomplete: it has shards but no index.",
            cure="Run the same `cingulum import` command again: it goes on where it stopped.",
            path=path,
        )
    return ShardError(
        f"{path}: is not a shard set, it has no {INDEX_NAME}.",
        cure=f"To make one from images: cingulum import {typed(path)} SHARDS --label diagnosis",
        path=path,
    )


def restore(path: Path) -> str:
    """Return how to find all damage and repair it."""
    again = f"cingulum import SOURCE {typed(path)} --overwrite"
    return f"To find all damage: cingulum verify {typed(path)}. To make it again: {again}"
