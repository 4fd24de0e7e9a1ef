"""Read one image file, in any format nibabel reads, as a three-dimensional float32 array with its affine."""

from __future__ import annotations

import bz2
import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from nibabel.analyze import AnalyzeImage
from nibabel.arrayproxy import ArrayProxy
from nibabel.filebasedimages import ImageFileError
from nibabel.imageclasses import all_image_classes
from nibabel.imageglobals import LoggingOutputSuppressor
from nibabel.nifti1 import Nifti1Pair
from nibabel.nifti2 import Nifti2Image
from nibabel.spatialimages import HeaderDataError, HeaderTypeError, SpatialImage
from nibabel.wrapstruct import WrapStructError

from trainer.data.images.findings import Finding, ImageFault, bad
from trainer.data.images.nifti_header import Header, ImageGeometry
from trainer.data.images.recipe import Xform

# Longest first, so that `.nii.gz` is seen before `.gz`.
SUFFIXES = (
    ".nii.gz", ".nii.bz2", ".mgh.gz", ".mnc.gz", ".img.gz", ".hdr.gz",
    ".nii", ".img", ".hdr", ".mgh", ".mgz", ".mnc",
)  # fmt: skip

# 1024^3 voxels take 4 GiB as float32; a header that asks for more is damaged rather than large.
MOST_VOXELS = 1024**3

# What nibabel 5.4, its netCDF reader and h5py raise on damaged files; tests/whole/test_reading_damaged.py
# flips and cuts bytes in all formats to keep this list complete.
DAMAGED = (
    ImageFileError, HeaderDataError, HeaderTypeError, WrapStructError, OSError, EOFError, zlib.error,
    struct.error, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError,
    ArithmeticError, MemoryError, NotImplementedError, RuntimeError,
)  # fmt: skip

# More than the header of any of NIfTI and Analyze, and the bytes behind it that tell of extensions.
_HEADER_BYTES = 1024
# Intent codes of CIFTI-2 files, which are NIfTI-2 files whose values lie on no grid.
_CIFTI = range(3000, 3100)

_CONVERT = "Convert it to NIfTI (for DICOM: `cingulum dicom`) and import that."
_COPY_AGAIN = "Copy or download the file again."


@dataclass(frozen=True)
class Image:
    """One volume as stored, axes not yet moved.

    Attributes:
        data: (X, Y, Z) float32, scaling applied.
        affine: (4, 4) float64, voxel indices to millimetres in RAS+ space.
        format: nibabel's name of the format, such as Nifti1Image.
        stored_shape: shape in the file, all axes.
        stored_dtype: NumPy's name of the type on disk, with byte order, such as '>i2'.
        oriented: False where the file cannot say which side is left (Analyze; NIfTI with both codes 0).
        xform: which transform of a NIfTI header `affine` is: 'sform', 'qform', or 'pixdim' for neither; empty
            for other formats.
        remarks: what is odd about its header.
    """

    data: np.ndarray
    affine: np.ndarray
    format: str
    stored_shape: tuple[int, ...]
    stored_dtype: str
    oriented: bool
    xform: str = ""
    remarks: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class _Opened:
    """An image file whose voxels are not read yet; `voxels` reads what it is indexed with."""

    voxels: Any
    shape: tuple[int, ...]
    dtype: np.dtype
    format: str
    place: ImageGeometry
    remarks: tuple[Finding, ...] = ()
    header: Header | None = None


def suffix(path: Path) -> str | None:
    """Return the image suffix of a file name, such as `.nii.gz`; None where it has none."""
    name = path.name.lower()
    return next((known for known in SUFFIXES if name.endswith(known)), None)


def stem(path: Path) -> str:
    """Return the file name without its image suffix."""
    known = suffix(path)
    return path.name[: -len(known)] if known else path.stem


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the files that make up an image: header and data for Analyze and NIfTI pairs, else the one."""
    known = suffix(path)
    if known is None or known.removesuffix(".gz") not in (".img", ".hdr"):
        return (path,)
    ending = path.name[-len(known) :]
    swap = {"i": ("hdr", "img"), "I": ("HDR", "IMG"), "h": ("hdr", "img"), "H": ("HDR", "IMG")}[ending[1]]
    return tuple(path.with_name(stem(path) + "." + part + ending[4:]) for part in swap)


def read(path: Path, *, volume: int | None = None, xform: Xform | None = None) -> Image:
    """Read one image.

    Trailing axes of length 1 are dropped. Of a four-dimensional image, `volume` (counted from 0) picks
    one; without it such an image is refused, since which volume is meant cannot be known. `xform` is the
    transform that counts where a NIfTI header has both.

    Raises:
        ImageFault: the file is missing, empty, damaged, of an unknown format, or no 3D grey-value volume; or
            its header says of where the voxels lie nothing that can be used.
    """
    for part in files_of(path):
        _check_file(part)
        _check_compressed(part)
    with LoggingOutputSuppressor():
        stored = _open(path, xform)
        index = _index_of_volume(path, stored.shape, volume)
        _check_voxel_type(path, stored.dtype)
        data = _voxels(path, stored, index)
    return Image(
        data=data,
        affine=stored.place.affine,
        format=stored.format,
        stored_shape=stored.shape,
        stored_dtype=stored.dtype.str,
        oriented=stored.place.oriented,
        xform=stored.place.xform,
        remarks=stored.remarks,
    )


def grid(path: Path, xform: Xform | None = None) -> tuple[tuple[int, int, int], np.ndarray]:
    """Return the shape (X, Y, Z) of an image and its affine as `read` has it, without reading the voxels.

    Raises:
        ImageFault: as `read` does for what the header says.
    """
    stored = _without_voxels(path, xform)
    x, y, z = (*stored.shape, 1, 1, 1)[:3]
    return (x, y, z), stored.place.affine


def geometry_fields(path: Path) -> dict[str, Any] | None:
    """Return the fields of a NIfTI header that place its image; None for other formats.

    A transform that cannot be used has code 0. Raises as `grid`.
    """
    header = _without_voxels(path, None).header
    return header.geometry_fields() if header is not None else None


def _without_voxels(path: Path, xform: Xform | None) -> _Opened:
    for part in files_of(path):
        _check_file(part)
    with LoggingOutputSuppressor():
        return _open(path, xform)


def _check_file(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        cure = "Fetch it (datalad get, git annex get) or correct the link."
        raise _fault(path, "broken-link", "is a link to a file that is not there.", cure)
    if not path.exists():
        raise _fault(path, "missing-file", "there is no such file.", "Correct the path, or add the file.")
    if not path.is_file():
        raise _fault(path, "not-a-file", "is a folder, not an image file.", "Give the path of an image file.")
    try:
        with path.open("rb") as file:
            start = file.read(132)
    except OSError as error:
        cure = "Make it readable (chmod u+r) or copy it again."
        raise _fault(path, "unreadable", f"cannot be read ({error.strerror}).", cure) from None
    if not start:
        raise _fault(path, "empty-file", "is empty (0 bytes).", _COPY_AGAIN)
    gzipped, named_gz = start[:2] == b"\x1f\x8b", path.name.lower().endswith((".gz", ".mgz"))
    if named_gz and not gzipped:
        plain = path.name[:-3] if path.name.lower().endswith(".gz") else path.name[:-4] + ".mgh"
        cure = f"If it is not compressed, rename it to {plain}."
        raise _fault(path, "wrong-magic", "is named as compressed but is not a gzip file.", cure)
    if gzipped and not named_gz:
        message, cure = "is a gzip file but has no suffix .gz.", f"Rename it to {path.name}.gz."
        raise _fault(path, "wrong-magic", message, cure)
    if start[128:132] == b"DICM":
        raise _fault(path, "wrong-magic", "is a DICOM file.", _CONVERT)


def _open(path: Path, xform: Xform | None) -> _Opened:
    try:
        # A pair is opened by its data file: nibabel finds the header beside it.
        return _opened(path, files_of(path)[-1], xform)
    except ImageFileError:
        raise _fault(
            path, "wrong-magic", "is not an image of a known format (NIfTI, Analyze, MGH, MINC).", _CONVERT
        ) from None
    except DAMAGED as error:
        raise _damaged(path, error) from None


def _opened(path: Path, data_file: Path, xform: Xform | None) -> _Opened:
    sniffed = None
    for kind in (each for each in all_image_classes if issubclass(each, AnalyzeImage)):
        fits, sniffed = kind.path_maybe_image(data_file, sniffed)
        if fits:
            return _of_analyze(path, data_file, kind, xform)
    stored = nibabel.load(data_file)
    if not isinstance(stored, SpatialImage):
        raise _no_volume(path, type(stored).__name__)
    place = ImageGeometry(_affine(path, stored), "", oriented=not _is_placeless_mgh(stored, data_file))
    shape = tuple(int(n) for n in stored.shape)
    return _Opened(stored.dataobj, shape, stored.get_data_dtype(), type(stored).__name__, place)


def _of_analyze(path: Path, data_file: Path, kind: type[AnalyzeImage], xform: Xform | None) -> _Opened:
    """Open a NIfTI or Analyze file by what its header says after all fields were compared."""
    files = kind.filespec_to_file_map(data_file)
    holder = files.get("header", files["image"])
    with holder.get_prepare_fileobj("rb") as file:
        header = Header(path, kind, file.read(_HEADER_BYTES), lambda: _length(data_file))
    if issubclass(kind, Nifti2Image) and int(header.fields["intent_code"]) in _CIFTI:
        raise _no_volume(path, "CIFTI file")
    voxels = header.voxels()
    proxy = ArrayProxy(
        str(data_file), (voxels.shape, voxels.dtype, voxels.start, voxels.slope, voxels.intercept)
    )
    if issubclass(kind, Nifti1Pair):
        place = header.place(voxels.shape, xform)
        remarks = tuple(header.remarks)
        return _Opened(proxy, voxels.shape, voxels.dtype, kind.__name__, place, remarks, header)
    # Plain Analyze stores no orientation; SPM's variants only through a .mat file beside.
    if not data_file.with_suffix(".mat").exists():
        header.check_sizes()
    place = ImageGeometry(_affine(path, kind.from_filename(data_file)), "", oriented=False)
    return _Opened(proxy, voxels.shape, voxels.dtype, kind.__name__, place, tuple(header.remarks))


def _no_volume(path: Path, what: str) -> ImageFault:
    cure = "Import volumes; surfaces and CIFTI files have none."
    return _fault(path, "not-a-volume", f"is a {what}, not a volume on a grid.", cure)


def _length(path: Path) -> int:
    """Return the number of bytes in a file, uncompressed."""
    opener = _opener(path)
    if opener is None:
        return path.stat().st_size
    with opener(path) as file:
        return sum(len(part) for part in iter(lambda: file.read(1 << 20), b""))


def _is_placeless_mgh(stored: SpatialImage, path: Path) -> bool:
    """Whether an MGH header says that its place is not valid; nibabel takes FreeSurfer's default then."""
    if not isinstance(stored, nibabel.MGHImage):
        return False
    opener = _opener(path) or open
    with opener(path, "rb") as file:
        return file.read(30)[28:30] == b"\0\0"


def _check_compressed(path: Path) -> None:
    """Read a compressed file to its end, where its checksum is; nibabel stops at the last voxel."""
    try:
        if _opener(path) is not None:
            _length(path)
    except (OSError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        message = f"the compressed file ends early or is damaged ({reason})."
        raise _fault(path, "truncated", message, _COPY_AGAIN) from None


def _opener(path: Path) -> Any:
    """Return what opens a compressed file; None where it is not compressed."""
    name = path.name.lower()
    return bz2.open if name.endswith(".bz2") else gzip.open if name.endswith((".gz", ".mgz")) else None


def _index_of_volume(path: Path, shape: tuple[int, ...], volume: int | None) -> tuple[int | slice, ...]:
    """Return where the volume lies in the stored array, as an index over all its axes."""
    kept = len(shape)
    while kept > 3 and shape[kept - 1] == 1:
        kept -= 1
    dropped: tuple[int | slice, ...] = (0,) * (len(shape) - kept)
    text = " x ".join(str(n) for n in shape)
    if kept < 3 or min(shape[:3]) == 1:
        raise _fault(path, "two-dimensional", f"is a single slice ({text}).", "Import whole volumes.")
    if min(shape[:3]) < 1:
        cure = "Correct its header, or convert the original again."
        raise _fault(path, "bad-shape", f"has an axis of length {min(shape[:3])} ({text}).", cure)
    if kept > 4:
        cure = "Save one volume as a 3D image: vector and tensor images are not supported."
        raise _fault(path, "five-dimensional", f"has {kept} dimensions ({text}).", cure)
    if int(np.prod([int(n) for n in shape[:3]], dtype=object)) > MOST_VOXELS:
        message = f"its header asks for {text} voxels, more than the limit (1024 x 1024 x 1024)."
        raise _fault(path, "too-large", message, _COPY_AGAIN)
    if kept == 3:
        return (slice(None),) * 3 + dropped
    if volume is None:
        cure = "Choose one with --volume N (from 0), or average them into a 3D image first."
        raise _fault(path, "four-dimensional", f"holds {shape[3]} volumes ({text}).", cure)
    if not 0 <= volume < shape[3]:
        message, cure = (
            f"has no volume {volume}: it holds {shape[3]}.",
            f"--volume takes 0 to {shape[3] - 1}.",
        )
        raise _fault(path, "four-dimensional", message, cure)
    return (slice(None),) * 3 + (volume,) + dropped


def _check_voxel_type(path: Path, dtype: np.dtype) -> None:
    if dtype.fields is not None:
        raise _fault(
            path, "colour", "holds colours, not grey values.", "Import the image it was coloured from."
        )
    if dtype.kind not in "iufb":
        raise _fault(
            path, "voxel-type", f"holds values of type {dtype}.", "Save the magnitude as a real-valued image."
        )


def _voxels(path: Path, stored: _Opened, index: tuple[int | slice, ...]) -> np.ndarray:
    try:
        # Values beyond float32 become infinite here, and quality control says so.
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(stored.voxels[index], dtype=np.float32)
    except DAMAGED as error:
        raise _damaged(path, error) from None


def _affine(path: Path, stored: SpatialImage) -> np.ndarray:
    affine = stored.affine
    if affine is None:
        message = "has no affine: its place in space is unknown."
        raise _fault(path, "affine", message, "Save it with an orientation.")
    return np.asarray(affine, dtype=np.float64)


def _damaged(path: Path, error: BaseException) -> ImageFault:
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    if (
        isinstance(error, EOFError | zlib.error)
        or "Expected" in reason
        or "end-of-stream" in reason
        or "CRC" in reason
    ):
        return _fault(path, "truncated", f"ends early or is damaged ({reason}).", _COPY_AGAIN)
    if isinstance(error, HeaderDataError | HeaderTypeError | WrapStructError):
        cure = "Correct that field (nifti_tool -mod_hdr -mod_field), or convert the original again."
        return _fault(path, "header", f"its header cannot be used: {reason}.", cure)
    return _fault(path, "damaged", f"cannot be read as an image ({reason}).", _COPY_AGAIN)


def _fault(path: Path, code: str, message: str, cure: str) -> ImageFault:
    return ImageFault(path, bad(code, message, cure))
