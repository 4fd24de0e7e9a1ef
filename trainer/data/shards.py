"""Reading a shard set: positional reads and decoding outside HDF5, safe in threads and after a fork."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainer.data import codecs
from trainer.data.index import FORMAT_VERSION, INDEX_NAME, Index, Volume
from trainer.data.index_reading import read_index
from trainer.data.stored_bytes import ReadFault, StoredBytes
from trainer.data.whole_chunks import Place, WholeChunks
from trainer.errors import ShardError

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
        dtype: stored type.
        codec: how chunks are compressed.
        voxel_size: in mm along D, H, W.
        normalisation: method and parameters of the intensity normalisation.
        preprocessing: recipe that leads from an image to a stored volume.
        label_name: what the labels are, such as `diagnosis`.
        labels: distinct labels, sorted.
        source: where the images came from.
        contrasts: what the channels are, such as ("T1w", "T2w"); empty for a single one.
        maps: names of the classes of the label maps, background first; empty where the set has none.
        content_hash: sha256 over the index, in hex; it changes with any voxel or label.
    """

    def __init__(self, path: Path, index: Index) -> None:
        self.path = path
        self.index = index
        self.volumes = index.volumes
        self.shape = index.shape
        self.dtype = np.dtype(index.dtype).newbyteorder("<")
        self.codec = index.codec
        self.voxel_size = index.meta.voxel_size
        self.normalisation = index.meta.normalisation
        self.preprocessing = index.meta.preprocessing
        self.label_name = index.meta.label_name
        self.labels = tuple(sorted({v.label for v in self.volumes if v.label is not None}))
        self.source = index.meta.source
        self.contrasts = index.meta.contrasts
        self.maps = index.meta.map_classes
        self.content_hash = index.content_hash
        self._stored = StoredBytes(path)
        self._whole = WholeChunks(self._stored, self.codec)

    @classmethod
    def open(cls, path: Path) -> ShardSet:
        """Open a shard set; the chunks are read later.

        Raises:
            ShardError: the folder is no shard set, is half written, is of a newer format, or a shard is
                missing or of another size than the index says.
        """
        path = Path(path)
        if not (path / INDEX_NAME).is_file():
            raise _no_index(path)
        index = read_index(path)
        for shard in index.shards:
            try:
                size = (path / shard.file).stat().st_size
            except OSError:
                raise ShardError(f"{path}: the shard {shard.file} is missing.", cure=_restore(path)) from None
            if size != shard.nbytes:
                raise ShardError(
                    f"{path / shard.file}: has {size} bytes, not {shard.nbytes}: cut short or replaced.",
                    cure=_restore(path),
                )
            for volume in shard.volumes:
                if _outside(volume.offset, volume.nbytes, size) or (
                    volume.map_offset is not None
                    and _outside(volume.map_offset, volume.map_nbytes or 0, size)
                ):
                    raise ShardError(
                        f"{path}: the index places volume {volume.id} outside {shard.file}.",
                        cure=_restore(path),
                    )
        return cls(path, index)

    def __len__(self) -> int:
        """Number of volumes."""
        return len(self.volumes)

    @property
    def bytes_read(self) -> int:
        """Stored bytes that this process has read of the set, checksums and repetitions included."""
        return self._stored.bytes_read

    def read(self, row: int) -> np.ndarray:
        """Volume `row`, (D, H, W, C) in the stored dtype. Threads may call it at once.

        The checksum of the chunk is compared every time: `WholeChunks.read_into`.

        Raises:
            ShardError: the chunk is damaged or cannot be read.
        """
        values: np.ndarray = np.empty(self.shape, self.dtype)
        self.read_into(row, values)
        return values

    def read_chunk(self, row: int) -> bytes:
        """The stored bytes of volume `row`, neither checked nor decoded.

        Raises:
            ShardError: the file cannot be read, or ends too soon.
        """
        volume = self.volumes[row]
        return self._chunk(volume, volume.offset, volume.nbytes)

    def read_map(self, row: int) -> np.ndarray:
        """The label map of volume `row`, (D, H, W) uint8: places in `maps`. Threads may call it at once.

        Raises:
            ShardError: the set has no label maps, or the chunk is damaged or cannot be read.
        """
        values: np.ndarray = np.empty(self.shape[:3], np.uint8)
        self.read_map_into(row, values)
        return values

    def read_into(self, row: int, out: np.ndarray, origin: Origin | None = None) -> None:
        """Read volume `row`, or a part of it, into an array of any real type. Threads may call it at once.

        Args:
            row: which volume.
            out: (D, H, W, C), or the shape of the part; filled.
            origin: where the part begins, in voxels along D, H, W; None for the whole volume.

        Raises:
            ShardError: the chunk is damaged or cannot be read.
            ValueError: the part does not lie in the volume.
        """
        volume = self.volumes[row]
        place = Place(volume.shard, volume.offset, volume.nbytes, volume.checksum, volume.xxh3)
        self._fill(volume, place, self.shape, self.dtype, out, origin)

    def read_map_into(self, row: int, out: np.ndarray, origin: Origin | None = None) -> None:
        """Read the label map of volume `row`, or a part of it, into uint8 (D, H, W); see `read_into`.

        Raises:
            ShardError: the set has no label maps, or the chunk is damaged or cannot be read.
            ValueError: the part does not lie in the volume.
        """
        volume = self.volumes[row]
        place = self._map_place(volume)
        self._fill(volume, place, self.shape[:3], np.dtype(np.uint8), out, origin, _MAP)

    def read_map_chunk(self, row: int) -> bytes:
        """The stored bytes of the label map of volume `row`, neither checked nor decoded.

        Raises:
            ShardError: the set has no label maps, the file cannot be read, or ends too soon.
        """
        volume = self.volumes[row]
        place = self._map_place(volume)
        return self._chunk(volume, place.offset, place.nbytes, _MAP)

    def _map_place(self, volume: Volume) -> Place:
        if volume.map_offset is None or volume.map_nbytes is None or volume.map_checksum is None:
            raise ShardError(
                f"{self.path}: has no label maps.",
                cure=f"Import the images with their maps: cingulum import SOURCE {self.path} --maps probseg",
            )
        return Place(volume.shard, volume.map_offset, volume.map_nbytes, volume.map_checksum, volume.map_xxh3)

    def _fill(
        self,
        volume: Volume,
        place: Place,
        shape: tuple[int, ...],
        dtype: np.dtype,
        out: np.ndarray,
        origin: Origin | None,
        what: str = "",
    ) -> None:
        part = _part(shape, out, origin)
        try:
            self._whole.read_into(place, shape, dtype, out, part=part)
        except ReadFault as fault:
            raise self._damaged(volume, str(fault), what) from None
        except codecs.CodecError as error:
            raise self._damaged(volume, f"it cannot be decoded ({error})", what) from None

    def _chunk(self, volume: Volume, offset: int, nbytes: int, what: str = "") -> bytes:
        chunk = bytearray(nbytes)
        try:
            self._stored.read_into(volume.shard, offset, memoryview(chunk))
        except ReadFault as fault:
            raise self._damaged(volume, str(fault), what) from None
        return bytes(chunk)

    def _damaged(self, volume: Volume, why: str, what: str = "") -> ShardError:
        return ShardError(
            f"{self.path / volume.shard}: {what}volume {volume.id} (subject {volume.subject}) "
            f"is damaged: {why}.",
            cure=_restore(self.path),
        )


def _part(shape: tuple[int, ...], out: np.ndarray, origin: Origin | None) -> tuple[slice, ...] | None:
    """Which part of a volume goes into an array; None for the whole volume."""
    if origin is None:
        if out.shape != shape:
            raise ValueError(f"an array of {out.shape} for a volume of {shape}")
        return None
    end = tuple(first + size for first, size in zip(origin, out.shape, strict=False))
    if min(origin) < 0 or any(last > size for last, size in zip(end, shape, strict=False)):
        raise ValueError(f"no part from {origin} to {end} in a volume of {shape[:3]}")
    return tuple(slice(first, last) for first, last in zip(origin, end, strict=True))


# Goes before "volume N" in what is said of damage.
_MAP = "the label map of "


def _outside(offset: int, nbytes: int, size: int) -> bool:
    return offset < 0 or nbytes < 1 or offset + nbytes > size


def _no_index(path: Path) -> ShardError:
    if path.is_file():
        return ShardError(f"{path}: is a file, and a shard set is a folder.", cure="Give the folder.")
    if not path.is_dir():
        return ShardError(
            f"{path}: there is no such folder.", cure="`cingulum import SOURCE SHARDS` makes a shard set."
        )
    if any(path.glob("*shard-*.h5*")):
        return ShardError(
            f"{path}: is half written: it has shards but no index.",
            cure="Run the same `cingulum import` command again: it goes on where it stopped.",
        )
    return ShardError(
        f"{path}: is not a shard set, it has no {INDEX_NAME}.",
        cure=f"To make one from images: cingulum import {path} SHARDS --label diagnosis",
    )


def _restore(path: Path) -> str:
    return f"All damage: cingulum verify {path}. To make it anew: cingulum import SOURCE {path} --overwrite"
