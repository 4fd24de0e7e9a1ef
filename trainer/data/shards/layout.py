"""Chunks of an array in an HDF5 dataset: its type, its codec, and whole or in bricks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from trainer.data.shards import codecs


@dataclass(frozen=True)
class StorageLayout:
    """Layout of the stored volumes, or label maps, of a set.

    Attributes:
        shape: (D, H, W, C) of a volume, (D, H, W) of a label map.
        dtype: the stored type.
        codec: one of `codecs.CODECS`.
        bricks: edge of a brick in voxels; None where a volume is one chunk.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    codec: str
    bricks: int | None = None

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Return the shape of one chunk: the volume or a brick, never larger than the volume."""
        if self.bricks is None:
            return self.shape
        return (*(min(self.bricks, size) for size in self.shape[:3]), *self.shape[3:])

    @property
    def grid(self) -> tuple[int, int, int]:
        """Return the number of chunks along D, H and W."""
        depth, height, width = (
            -(-size // chunk) for size, chunk in zip(self.shape[:3], self.chunk_shape, strict=False)
        )
        return depth, height, width

    @property
    def chunks(self) -> int:
        """Return the number of chunks of a volume."""
        return prod(self.grid)

    @property
    def decoded_bytes(self) -> int:
        """Return the decoded size of a volume's chunks; bricks at its border are padded."""
        return self.chunks * prod(self.chunk_shape) * self.dtype.itemsize

    def origins(self) -> Iterator[tuple[int, ...]]:
        """Return where each chunk begins in the volume, in C order: the order they are stored in."""
        edges = self.chunk_shape[:3]
        rest = (0,) * (len(self.shape) - 3)
        for place in itertools.product(*map(range, self.grid)):
            yield (*(number * edge for number, edge in zip(place, edges, strict=True)), *rest)

    def encode(self, array: np.ndarray) -> tuple[bytes, ...]:
        """Return the chunks of an array of this shape and type, in the order of `origins`.

        A brick that reaches beyond the volume is filled up with zeros, as HDF5 does.
        """
        if self.bricks is None:
            return (codecs.encode(self.codec, np.ascontiguousarray(array, self.dtype)),)
        return tuple(codecs.encode(self.codec, self._brick(array, origin)) for origin in self.origins())

    def _brick(self, array: np.ndarray, origin: tuple[int, ...]) -> np.ndarray:
        brick = np.zeros(self.chunk_shape, self.dtype)
        ends = (first + size for first, size in zip(origin, brick.shape, strict=True))
        part = array[tuple(slice(first, end) for first, end in zip(origin, ends, strict=True))]
        brick[tuple(slice(size) for size in part.shape)] = part
        return brick
