"""Volumes stored in bricks: which of them a box touches, and reading only these.

The table of a volume's bricks comes with the index, so that reading needs no HDF5 call.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
import xxhash

from trainer.data.shards import codecs
from trainer.data.shards.casting import cast_into
from trainer.data.shards.layout import StorageLayout
from trainer.data.shards.stored_bytes import ReadFault, StoredBytes
from trainer.data.shards.thread_memory import scratch

# One brick of a volume's table: where its chunk begins in the shard, its size in bytes, and its XXH3.
BRICK = np.dtype([("offset", "<u8"), ("nbytes", "<u4"), ("xxh3", "<u8")])


def pack_table(offsets: Sequence[int], chunks: Sequence[bytes]) -> str:
    """Return the table of the bricks of one volume, as text for the index: base64 of `BRICK` records."""
    table = np.empty(len(chunks), BRICK)
    table["offset"] = offsets
    table["nbytes"] = [len(chunk) for chunk in chunks]
    table["xxh3"] = [xxhash.xxh3_64_intdigest(chunk) for chunk in chunks]
    return base64.b64encode(table.tobytes()).decode()


def unpack_table(text: str) -> np.ndarray:
    """Invert `pack_table`: (bricks,) of type `BRICK`, in the order of `StorageLayout.origins`.

    Raises:
        ValueError: the text is no such table.
    """
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), BRICK)
    except (binascii.Error, ValueError):
        raise ValueError("invalid brick table") from None


def touched(layout: StorageLayout, origin: Sequence[int], size: Sequence[int]) -> np.ndarray:
    """Return the numbers of the bricks that a box touches, ascending.

    Args:
        layout: of the volume.
        origin: where the box begins, in voxels along D, H, W.
        size: of the box, in voxels along D, H, W.
    """
    edges = layout.chunk_shape[:3]
    ranges = [
        np.arange(first // edge, -(-(first + count) // edge))
        for first, count, edge in zip(origin, size, edges, strict=True)
    ]
    return np.ravel_multi_index(np.ix_(*ranges), layout.grid).ravel()


def read_box(
    stored: StoredBytes,
    layout: StorageLayout,
    shard: str,
    table: np.ndarray,
    out: np.ndarray,
    origin: Sequence[int],
    scale: float | None = None,
) -> None:
    """Read a box of a volume: only the bricks it touches, adjacent ones in the file at once.

    Each brick's XXH3 is compared every time.

    Args:
        stored: the shards of the set.
        layout: of the volume.
        shard: file name of its shard.
        table: of its bricks, see `unpack_table`.
        out: (d, h, w, C), or (d, h, w) of a label map, of any real type; filled.
        origin: where the box begins, in voxels along D, H, W; it lies in the volume.
        scale: of int16 values.

    Raises:
        ReadFault: the file cannot be read, ends too soon, or a brick's checksum does not match.
        codecs.CodecError: a brick cannot be decoded.
    """
    # Put together as stored, and cast all at once: casting many short rows costs more than copying them.
    direct = scale is None and out.dtype == layout.dtype
    box = out if direct else _voxels("box", out.shape, layout.dtype)
    for run in _side_by_side(table, touched(layout, origin, out.shape[:3])):
        begin = int(table["offset"][run[0]])
        content = stored.read(shard, begin, int(table["nbytes"][run].sum(dtype=np.int64)))
        for number in run.tolist():
            offset, nbytes, xxh3 = table[number].item()
            chunk = content[offset - begin :][:nbytes]
            if xxhash.xxh3_64_intdigest(chunk.data) != xxh3:
                raise ReadFault(f"the checksum of its brick {number} does not match")
            _put(_decoded(layout, chunk), np.unravel_index(number, layout.grid), box, origin)
    if not direct:
        cast_into(box, out, scale)


def _voxels(purpose: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return scratch(purpose, prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


def _decoded(layout: StorageLayout, chunk: np.ndarray) -> np.ndarray:
    """Return the voxels of a brick, valid until the thread decodes the next one."""
    shape = layout.chunk_shape
    if layout.codec == "none" and chunk.size == prod(shape) * layout.dtype.itemsize:
        return chunk.view(layout.dtype).reshape(shape)
    brick = _voxels("voxels", shape, layout.dtype)
    codecs.decode_into(layout.codec, chunk.data, brick)
    return brick


def _side_by_side(table: np.ndarray, numbers: np.ndarray) -> Iterator[np.ndarray]:
    """Yield bricks in the order of the file, in groups without a gap."""
    numbers = numbers[np.argsort(table["offset"][numbers])]
    ends = table["offset"][numbers] + table["nbytes"][numbers]
    gaps = np.flatnonzero(table["offset"][numbers[1:]] != ends[:-1])
    yield from np.split(numbers, gaps + 1)


def _put(brick: np.ndarray, place: Sequence[int], box: np.ndarray, origin: Sequence[int]) -> None:
    """Copy the voxels that a brick, by its place in the grid, and a box share."""
    there, here = [], []
    for index, edge, first, count in zip(place, brick.shape[:3], origin, box.shape[:3], strict=True):
        start = int(index) * edge
        low, high = max(start, first), min(start + edge, first + count)
        there.append(slice(low - start, high - start))
        here.append(slice(low - first, high - first))
    box[tuple(here)] = brick[tuple(there)]
