"""How one volume becomes the bytes of one HDF5 chunk, and back, outside HDF5.

Each codec is a standard HDF5 filter pipeline, so any HDF5 tool reads the shards; doing the work here
instead of inside HDF5 keeps threads apart, since the HDF5 library lets only one in at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Literal, get_args

import hdf5plugin
import numpy as np
from numcodecs import blosc

Codec = Literal["blosc-lz4", "gzip", "none"]
CODECS: tuple[str, ...] = get_args(Codec)

BLOSC_LEVEL = 5
GZIP_LEVEL = 4

# One thread per volume: blosc's own threads finish blocks in any order, so the compressed bytes would
# differ from run to run, and readers already work on several volumes side by side.
blosc.use_threads = False


class CodecError(ValueError):
    """Stored bytes that cannot be turned back into a volume."""


def hdf5_filters(codec: str) -> Mapping[str, Any]:
    """Arguments of `h5py.Group.create_dataset` that declare the codec's filters."""
    if codec == "blosc-lz4":
        return hdf5plugin.Blosc(cname="lz4", clevel=BLOSC_LEVEL, shuffle=hdf5plugin.Blosc.SHUFFLE)
    if codec == "gzip":
        return {"compression": "gzip", "compression_opts": GZIP_LEVEL, "shuffle": True}
    return {}


def encode(codec: str, volume: np.ndarray) -> bytes:
    """The chunk bytes of a C-contiguous volume; the same bytes every time for the same volume."""
    if codec == "blosc-lz4":
        return bytes(blosc.compress(volume, b"lz4", BLOSC_LEVEL, blosc.SHUFFLE))
    if codec == "gzip":
        by_significance = volume.reshape(-1).view(np.uint8).reshape(-1, volume.itemsize).T
        return zlib.compress(by_significance.tobytes(), GZIP_LEVEL)
    return volume.tobytes()


def decode(codec: str, chunk: bytes, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The volume, of `shape` and `dtype`, that a chunk holds.

    Raises:
        CodecError: the bytes are no chunk of this codec, shape and dtype.
    """
    volume: np.ndarray = np.empty(shape, dtype)
    try:
        if codec == "blosc-lz4":
            # Blosc believes its header: it would read past the end of a chunk that is shorter.
            if int.from_bytes(chunk[12:16], "little") != len(chunk):
                raise ValueError("its header tells another size")
            # Blosc fills the beginning of a buffer that is too large, and says nothing.
            _check_size(int.from_bytes(chunk[4:8], "little"), volume)
            blosc.decompress(chunk, volume)
        elif codec == "gzip":
            planes = np.frombuffer(zlib.decompress(chunk), np.uint8)
            _check_size(planes.size, volume)
            volume.reshape(-1).view(np.uint8).reshape(-1, dtype.itemsize)[:] = planes.reshape(
                dtype.itemsize, -1
            ).T
        else:
            _check_size(len(chunk), volume)
            volume.reshape(-1)[:] = np.frombuffer(chunk, dtype)
    except (RuntimeError, ValueError, zlib.error) as error:
        raise CodecError(str(error)) from None
    return volume


def _check_size(stored: int, volume: np.ndarray) -> None:
    if stored != volume.nbytes:
        raise ValueError(f"it holds {stored} bytes, and a volume has {volume.nbytes}")
