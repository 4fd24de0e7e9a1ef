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


def decode(codec: str, chunk: bytes | memoryview, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The volume, of `shape` and `dtype`, that a chunk holds.

    Raises:
        CodecError: the bytes are no chunk of this codec, shape and dtype.
    """
    volume: np.ndarray = np.empty(shape, dtype)
    decode_into(codec, chunk, volume)
    return volume


def decode_into(codec: str, chunk: memoryview | bytes, out: np.ndarray) -> None:
    """Decode a chunk into a C-contiguous array of the stored type, without a copy in between but for gzip.

    Raises:
        CodecError: the bytes are no chunk of this codec and of the array's size; what is in the array then
            is undefined.
        ValueError: the array is not C-contiguous.
    """
    if not out.flags.c_contiguous:
        raise ValueError("an array that is not C-contiguous has no place for a chunk")
    flat = out.reshape(-1).view(np.uint8)
    try:
        if codec == "blosc-lz4":
            # Blosc fills the beginning of a buffer that is too large, and reads past the end of a chunk
            # that is too short, and says nothing.
            _check_size(int.from_bytes(chunk[4:8], "little"), out)
            if int.from_bytes(chunk[12:16], "little") != len(chunk):
                raise ValueError(f"it has {len(chunk)} bytes, and says otherwise")
            blosc.decompress(chunk, flat)
        elif codec == "gzip":
            planes = np.frombuffer(zlib.decompress(chunk), np.uint8)
            _check_size(planes.size, out)
            flat.reshape(-1, out.itemsize)[:] = planes.reshape(out.itemsize, -1).T
        else:
            _check_size(len(chunk), out)
            flat[:] = np.frombuffer(chunk, np.uint8)
    except (RuntimeError, ValueError, zlib.error) as error:
        raise CodecError(str(error)) from None


def _check_size(stored: int, out: np.ndarray) -> None:
    if stored != out.nbytes:
        raise ValueError(f"it holds {stored} bytes, and a volume has {out.nbytes}")
