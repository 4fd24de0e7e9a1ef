"""Read whole chunks from the file into an array of the requested type: read, check, decode, cast.

Each step writes where the next one reads, in memory that each thread keeps, and none writes twice. Where
chunks are `blosc-lz4` of float16, as they are by default, the last two are one:
docs/results/loader.md has the figures.
"""

from __future__ import annotations

import hashlib
from math import prod
from typing import NamedTuple

import numpy as np
import xxhash

from trainer.data.shards import codecs, halves
from trainer.data.shards.casting import cast_into, is_finite
from trainer.data.shards.stored_bytes import ReadFault, StoredBytes
from trainer.data.shards.thread_memory import scratch


class ChunkPlace(NamedTuple):
    """Place of a chunk, and what is known of it.

    Attributes:
        shard: file name of its shard.
        offset: where it begins, in bytes.
        nbytes: its size, in bytes.
        checksum: sha256 of it, in hex.
        xxh3: XXH3 of 64 bits of it, in hex; None in sets of versions 1 and 2.
    """

    shard: str
    offset: int
    nbytes: int
    checksum: str
    xxh3: str | None = None


class WholeChunks:
    """Reads the chunks of one set. Threads may use it at once.

    Args:
        stored: the shards of the set.
        codec: how the chunks are compressed.
    """

    def __init__(self, stored: StoredBytes, codec: str) -> None:
        self._stored = stored
        self._codec = codec
        # XXH3 of chunks whose SHA-256 was found right, by shard and offset.
        self._found_right: dict[tuple[str, int], str] = {}
        # Chunks of float16 whose values were found finite; with the same XXH3 they still are.
        self._found_finite: set[tuple[str, int]] = set()

    def read_into(
        self,
        place: ChunkPlace,
        shape: tuple[int, ...],
        dtype: np.dtype,
        out: np.ndarray,
        *,
        part: tuple[slice, ...] | None = None,
        scale: float | None = None,
    ) -> None:
        """Fill an array with a chunk, or with a part of it.

        The XXH3 of the chunk is compared every time. Where the set does not say it, the SHA-256 is compared
        when this process first reads the chunk, and what XXH3 was then, every other time.

        Args:
            place: of the chunk.
            shape: of what it holds.
            dtype: stored type.
            out: of the shape of all or of the part; any real type and any strides. Undefined after an error.
            part: which part of the chunk's array; None for all of it.
            scale: what stored values are multiplied by; None for nothing.

        Raises:
            ReadFault: the file cannot be read, ends too soon, or the checksum does not match.
            codecs.CodecError: the chunk cannot be decoded.
        """
        nbytes = prod(shape) * dtype.itemsize
        as_it_is = self._codec == "none" and place.nbytes == nbytes
        if not as_it_is:
            chunk = self._stored.read(place.shard, place.offset, place.nbytes)
            self._check(place, chunk.data)
            at_once = self._codec == "blosc-lz4" and dtype == np.float16 and out.dtype == np.float32
            if at_once and part is None and scale is None and halves.decode_into(chunk, out):
                return
        direct = part is None and scale is None and out.dtype == dtype and out.flags.c_contiguous
        voxels = out if direct else scratch("voxels", nbytes).view(dtype).reshape(shape)
        if as_it_is:
            stored = voxels.reshape(-1).view(np.uint8).data
            self._stored.read_into(place.shard, place.offset, stored)
            self._check(place, stored)
        else:
            codecs.decode_into(self._codec, chunk.data, voxels)
        if not direct:
            values = voxels if part is None else voxels[part]
            cast_into(values, out, scale, finite=lambda: self._is_finite(place, voxels))

    def _is_finite(self, place: ChunkPlace, voxels: np.ndarray) -> bool:
        key = place.shard, place.offset
        if key in self._found_finite:
            return True
        if voxels.dtype != np.float16 or not is_finite(voxels):
            return False
        self._found_finite.add(key)
        return True

    def _check(self, place: ChunkPlace, stored: memoryview) -> None:
        xxh3 = xxhash.xxh3_64_hexdigest(stored)
        key = place.shard, place.offset
        right = place.xxh3 or self._found_right.get(key)
        if right is None and hashlib.sha256(stored).hexdigest() == place.checksum:
            right = self._found_right[key] = xxh3
        if xxh3 != right:
            raise ReadFault("its checksum does not match")
