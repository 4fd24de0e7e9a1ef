"""Reading a shard set: positional reads and decoding outside HDF5, safe in threads and after a fork."""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from pathlib import Path

import numpy as np

from trainer.data import codecs
from trainer.data.index import FORMAT_VERSION, INDEX_NAME, Index, Volume
from trainer.data.index_reading import read_index
from trainer.errors import ShardError

__all__ = ["FORMAT_VERSION", "ShardSet", "Volume"]

# Shards kept open at once, well under the usual limit of 1024 files per process.
MOST_OPEN = 128


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
        self._files = _OpenFiles()
        self._checked: set[int] = set()
        self._checked_maps: set[int] = set()

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

    def read(self, row: int) -> np.ndarray:
        """Volume `row`, (D, H, W, C) in the stored dtype. Threads may call it at once.

        The checksum of each chunk is compared when this process first reads it.

        Raises:
            ShardError: the chunk is damaged or cannot be read.
        """
        volume = self.volumes[row]
        chunk = self.read_chunk(row)
        if row not in self._checked:
            if hashlib.sha256(chunk).hexdigest() != volume.checksum:
                raise self._damaged(volume, "its checksum does not match")
            self._checked.add(row)
        try:
            return codecs.decode(self.codec, chunk, self.shape, self.dtype)
        except codecs.CodecError as error:
            raise self._damaged(volume, f"it cannot be decoded ({error})") from None

    def read_chunk(self, row: int) -> bytes:
        """The stored bytes of volume `row`, neither checked nor decoded.

        Raises:
            ShardError: the file cannot be read, or ends too soon.
        """
        volume = self.volumes[row]
        return self._stored(volume, volume.offset, volume.nbytes)

    def read_map(self, row: int) -> np.ndarray:
        """The label map of volume `row`, (D, H, W) uint8: places in `maps`. Threads may call it at once.

        The checksum of each chunk is compared when this process first reads it.

        Raises:
            ShardError: the set has no label maps, or the chunk is damaged or cannot be read.
        """
        volume = self.volumes[row]
        chunk = self.read_map_chunk(row)
        if row not in self._checked_maps:
            if hashlib.sha256(chunk).hexdigest() != volume.map_checksum:
                raise self._damaged(volume, "its checksum does not match", _MAP)
            self._checked_maps.add(row)
        try:
            return codecs.decode(self.codec, chunk, self.shape[:3], np.dtype(np.uint8))
        except codecs.CodecError as error:
            raise self._damaged(volume, f"it cannot be decoded ({error})", _MAP) from None

    def read_map_chunk(self, row: int) -> bytes:
        """The stored bytes of the label map of volume `row`, neither checked nor decoded.

        Raises:
            ShardError: the set has no label maps, the file cannot be read, or ends too soon.
        """
        volume = self.volumes[row]
        if volume.map_offset is None or volume.map_nbytes is None:
            raise ShardError(
                f"{self.path}: has no label maps.",
                cure=f"Import the images with their maps: cingulum import SOURCE {self.path} --maps probseg",
            )
        return self._stored(volume, volume.map_offset, volume.map_nbytes, _MAP)

    def _stored(self, volume: Volume, offset: int, nbytes: int, what: str = "") -> bytes:
        try:
            file = self._files.get(self.path / volume.shard)
            # One pread returns at most 2 GiB; a volume is smaller (shard_writer.LARGEST_VOLUME).
            chunk = os.pread(file.descriptor, nbytes, offset)
        except OSError as error:
            raise self._damaged(volume, f"it cannot be read ({error.strerror})", what) from None
        if len(chunk) != nbytes:
            raise self._damaged(volume, "the file ends too soon", what)
        return chunk

    def _damaged(self, volume: Volume, why: str, what: str = "") -> ShardError:
        return ShardError(
            f"{self.path / volume.shard}: {what}volume {volume.id} (subject {volume.subject}) "
            f"is damaged: {why}.",
            cure=_restore(self.path),
        )


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


class _OpenFile:
    """A file descriptor that closes when nobody uses it any more."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # Not __del__: when Python ends, that comes after `os` is gone.
        weakref.finalize(self, os.close, self.descriptor)


class _OpenFiles:
    """The files this process has open, opened on first use, the least recently used closed first.

    A forked child starts with none: it must not depend on a lock that another thread held at the fork.
    """

    def __init__(self) -> None:
        self._process = -1
        self._start()

    def _start(self) -> None:
        self._files: OrderedDict[Path, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()
        self._process = os.getpid()

    def get(self, path: Path) -> _OpenFile:
        """The open file; it stays open at least as long as the caller holds it."""
        if self._process != os.getpid():
            self._start()
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = _OpenFile(path)
                if len(self._files) > MOST_OPEN:
                    self._files.popitem(last=False)
            self._files.move_to_end(path)
            return file
