"""Encode voxels to the bytes of one HDF5 chunk, and decode them, outside HDF5.

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

Codec = Literal["none", "gzip", "blosc-lz4", "blosc-lz4-bit", "blosc-zstd-bit"]
CODECS: tuple[str, ...] = get_args(Codec)
DEFAULT: Codec = "blosc-lz4"

# zstd at level 5 is smaller and faster to decode than at 3 or 1 (docs/decisions/0008-shards.md).
BLOSC_LEVEL = 5
GZIP_LEVEL = 4

# Compressor, and how bytes or bits of one significance are brought together before it.
_BLOSC: dict[str, tuple[Literal["lz4", "zstd"], int]] = {
    "blosc-lz4": ("lz4", blosc.SHUFFLE),
    "blosc-lz4-bit": ("lz4", blosc.BITSHUFFLE),
    "blosc-zstd-bit": ("zstd", blosc.BITSHUFFLE),
}

# One thread per chunk: blosc's own threads finish blocks in any order, so the compressed bytes would
# differ from run to run, and readers already work on several volumes side by side.
blosc.use_threads = False


# No codec makes a chunk larger by more than this: Blosc adds 16 bytes, deflate at most an eighth.
_MOST_ADDED = 4096


class CodecError(ValueError):
    """Stored bytes that cannot be turned back into voxels."""


def hdf5_filters(codec: str) -> Mapping[str, Any]:
    """Return arguments of `h5py.Group.create_dataset` that declare the codec's filters."""
    if codec in _BLOSC:
        name, shuffle = _BLOSC[codec]
        return hdf5plugin.Blosc(cname=name, clevel=BLOSC_LEVEL, shuffle=shuffle)
    if codec == "gzip":
        return {"compression": "gzip", "compression_opts": GZIP_LEVEL, "shuffle": True}
    return {}


def encode(codec: str, voxels: np.ndarray) -> bytes:
    """Return the chunk bytes of a C-contiguous array; the same bytes every time for the same array."""
    if codec in _BLOSC:
        name, shuffle = _BLOSC[codec]
        bits = voxels.view(f"u{voxels.itemsize}")  # ml_dtypes' types cannot be passed on as a buffer
        return bytes(blosc.compress(bits, name.encode(), BLOSC_LEVEL, shuffle))
    if codec == "gzip":
        by_significance = voxels.reshape(-1).view(np.uint8).reshape(-1, voxels.itemsize).T
        return zlib.compress(by_significance.tobytes(), GZIP_LEVEL)
    return voxels.tobytes()


def most_bytes(decoded: int) -> int:
    """Return the largest size in bytes, with any codec, of a chunk that decodes to `decoded` bytes."""
    return decoded + decoded // 8 + _MOST_ADDED


def decode_into(codec: str, chunk: memoryview | bytes, out: np.ndarray) -> None:
    """Decode a chunk into a C-contiguous array of the stored type, without a copy in between but for gzip.

    Raises:
        CodecError: the bytes are no chunk of this codec and of the array's size; what is in the array then
            is undefined.
        ValueError: the array is not C-contiguous.
    """
    if not out.flags.c_contiguous:
        raise ValueError("the array is not C-contiguous")
    flat = out.reshape(-1).view(np.uint8)
    try:
        if codec in _BLOSC:
            # Blosc fills the beginning of a buffer that is too large, and reads past the end of a chunk
            # that is too short, and says nothing.
            _check_size(int.from_bytes(chunk[4:8], "little"), out)
            if int.from_bytes(chunk[12:16], "little") != len(chunk):
                raise ValueError(f"it has {len(chunk)} bytes, but its header gives another size")
            blosc.decompress(chunk, flat)
        elif codec == "gzip":
            # No more than fits: a chunk of 1 MiB may hold 1 GiB.
            inflating = zlib.decompressobj()
            planes = np.frombuffer(inflating.decompress(chunk, out.nbytes + 1), np.uint8)
            _check_size(planes.size, out)
            if not inflating.eof:
                raise ValueError("it ends too soon")
            flat.reshape(-1, out.itemsize)[:] = planes.reshape(out.itemsize, -1).T
        else:
            _check_size(len(chunk), out)
            flat[:] = np.frombuffer(chunk, np.uint8)
    except (RuntimeError, ValueError, zlib.error) as error:
        raise CodecError(str(error)) from None


def _check_size(stored: int, out: np.ndarray) -> None:
    if stored != out.nbytes:
        raise ValueError(f"it holds {stored} bytes, but a volume has {out.nbytes}")
