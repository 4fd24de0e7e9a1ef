"""Write files with the same bytes every time, under their final name only when whole."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import nibabel
import numpy as np

from trainer import atomic
from trainer.errors import InputError


def nifti(values: np.ndarray, affine: np.ndarray, *, slope: float = 1.0, description: str = "") -> bytes:
    """Return a compressed NIfTI-1 file of `values` (D, H, W), in mm, in scanner coordinates.

    Args:
        values: stored as they are; a reader multiplies them by `slope`.
        affine: (4, 4), voxel to mm.
        slope: scale factor of the stored values.
        description: free text of the header, at most 79 characters.
    """
    header = nibabel.nifti1.Nifti1Header()
    header.set_data_dtype(values.dtype)
    header.set_data_shape(values.shape)
    header.set_qform(affine, code="scanner")
    header.set_sform(affine, code="scanner")
    header.set_xyzt_units("mm", "sec")
    header["magic"] = b"n+1"
    header["vox_offset"] = 352
    header["scl_slope"], header["scl_inter"] = slope, 0
    header["descrip"] = description.encode()
    plain = header.binaryblock + bytes(4) + values.tobytes(order="F")
    packed = io.BytesIO()
    # No file name and no time in the gzip header, so that equal volumes are equal files.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=4, fileobj=packed, mtime=0) as file:
        file.write(plain)
    return packed.getvalue()


def write(path: Path, content: bytes) -> None:
    """Write a file so that it is either whole under its name or not there.

    Raises:
        InputError: the folder cannot be written, or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(path, content)
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror}",
            cure="choose a folder you may write to, with room on its disk",
        ) from error
