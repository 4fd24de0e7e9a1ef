"""Headers of NIfTI and Analyze files: where the voxels begin, what they are, and where they lie.

Several fields of such a header say the same thing, and in some files they contradict each other. Each field
is compared with the others and with the length of the file. What the standard (nifti1.h) or all other fields
leave beyond doubt is read so, with a warning; everything else is refused with the name of the field. A header
without contradictions is read as nibabel reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nibabel
import numpy as np
from nibabel.analyze import AnalyzeImage
from nibabel.nifti1 import Nifti1Header

from trainer.data.images import geometry
from trainer.data.images.findings import Finding, ImageFault, bad, note, warning
from trainer.data.images.recipe import XFORMS, Xform

# A quaternion may be longer than 1 by rounding. By how much its square is longer leaves the angle in doubt by
# twice the root of that: here by a degree.
_QUATERNION_ROUNDING = 1e-4
# Of `xyzt_units`, in mm; 0 is unknown, which programs take for mm.
_UNITS = {1: ("metres", 1000.0), 2: ("millimetres", 1.0), 3: ("micrometres", 0.001)}
_SMALLEST_MM, _LARGEST_MM = 1.0, 1000.0  # an image of anything is this large


@dataclass(frozen=True)
class Voxels:
    """Where the voxels of a file are, and what they are.

    Attributes:
        shape: of the file, all axes.
        dtype: on the disk.
        start: byte of the uncompressed data file at which they begin.
        slope: value of a voxel is slope * stored + intercept.
        intercept: see `slope`.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    start: int
    slope: float
    intercept: float


@dataclass(frozen=True)
class ImageGeometry:
    """Where an image lies.

    Attributes:
        affine: (4, 4) float64, voxel indices to millimetres in RAS+ space.
        xform: which transform of the header that is: 'sform', 'qform', or 'pixdim' where it has neither.
        oriented: False where the header cannot say which side is left.
    """

    affine: np.ndarray
    xform: str
    oriented: bool


class Header:
    """The header of one file, compared field by field; `remarks` collects what was odd and could be read.

    Args:
        path: named in errors.
        kind: nibabel's class of the image.
        start: the first bytes of the header's file, uncompressed.
        length: returns the length of the data's file, uncompressed, in bytes.
    """

    def __init__(self, path: Path, kind: type[AnalyzeImage], start: bytes, length: Callable[[], int]) -> None:
        self._path, self._length = path, length
        size = kind.header_class.template_dtype.itemsize
        self._header: Any = kind.header_class(start[:size], check=False)
        if not 1 <= int(self.fields["dim"][0]) <= 7:  # nibabel tells the byte order by it
            little = int.from_bytes(start[:4], "little") == self._header.sizeof_hdr
            self._header = kind.header_class(start[:size], "<" if little else ">", check=False)
        self._single = bool(getattr(kind.header_class, "is_single", False))
        # The four bytes after the header say whether extensions follow; each begins with its length.
        self._extended = self._single and start[size : size + 1] not in (b"", b"\0")
        order: Literal["little", "big"] = "little" if self._header.endianness == "<" else "big"
        self._extension_bytes = int.from_bytes(start[size + 4 : size + 8], order)
        self.remarks: list[Finding] = []

    @property
    def fields(self) -> Any:
        """Return the fields, by the names of the standard; what was odd is mended."""
        return self._header.structarr

    def voxels(self) -> Voxels:
        """Return where and what the voxels are.

        Raises:
            ImageFault: a field contradicts the standard, other fields or the length of the file.
        """
        dtype = self._dtype()
        shape = self._shape(dtype)
        start = self._start(math.prod(shape) * dtype.itemsize)
        slope, intercept = self._scaling()
        self._check_rest()
        return Voxels(shape, dtype, start, slope, intercept)

    def _dtype(self) -> np.dtype:
        code = int(self.fields["datatype"])
        try:
            dtype: np.dtype = self._header.get_data_dtype()
        except (KeyError, nibabel.spatialimages.HeaderDataError):
            dtype = np.dtype("V")
        if dtype.itemsize == 0:
            raise self._bad("datatype", f"is {code}, which is no type of voxels", "Set it to the right type")
        return dtype

    def _shape(self, dtype: np.dtype) -> tuple[int, ...]:
        dim = self.fields["dim"]
        count = int(dim[0])
        if not 1 <= count <= 7:
            raise self._bad("dim[0]", f"is {count}, but images have 1 to 7 dimensions", "Set it to 3")
        zeros = [axis for axis in range(4, count + 1) if dim[axis] <= 0]
        for axis in zeros:
            value, dim[axis] = int(dim[axis]), 1
            message, cure = f"is {value}, and was taken as 1", "Set it to 1"
            self._warn(f"dim[{axis}]", message, cure)
        shape = tuple(int(n) for n in self._header.get_data_shape())
        for axis, length in enumerate(shape[:3], start=1):
            if length < 1:
                raise ImageFault(
                    self._path,
                    bad(
                        "bad-shape",
                        f"the header's dim[{axis}] is {length} ({' x '.join(map(str, shape))}).",
                        self._cure("Set it to the number of voxels along that axis"),
                    ),
                )
        more = int(dim[4]) if count == 3 else 1
        if more > 1 and self._length() - self._first_byte == math.prod(shape) * more * dtype.itemsize:
            message = f"is 3, but dim[4] is {more}, and the file holds as many volumes"
            raise self._bad("dim[0]", message, "Set it to 4")
        if zeros or int(self.fields["bitpix"]) != 8 * dtype.itemsize:
            self._check_length(shape, dtype, zeros)
        return shape

    def _check_length(self, shape: tuple[int, ...], dtype: np.dtype, zeros: list[int]) -> None:
        """Compare the length of the file with a shape or type that the header leaves in doubt."""
        voxels, rest = math.prod(shape), self._length() - self._first_byte
        if rest == voxels * dtype.itemsize:
            return
        if zeros and rest >= 2 * voxels * dtype.itemsize:
            message = (
                f"is 0, but the file holds {rest / (voxels * dtype.itemsize):.3g} times the voxels of "
                f"{' x '.join(map(str, shape[:3]))}"
            )
            raise self._bad(f"dim[{zeros[0]}]", message, "Set it to the number of volumes")
        bits = int(self.fields["bitpix"])
        if bits != 8 * dtype.itemsize and rest == voxels * bits // 8:
            message = f"says {dtype.name}, but bitpix says {bits} bits, and so does the length of the file"
            raise self._bad("datatype", message, "Set it to the type of the voxels")

    @property
    def _first_byte(self) -> int:
        """Return where voxels begin if nothing stands before them; see nifti1.h on vox_offset."""
        return int(self._header.single_vox_offset) if self._single else 0

    def _start(self, nbytes: int) -> int:
        """Return where `nbytes` of voxels begin.

        The standard counts every vox_offset below the end of the header as that end, in a single file.
        """
        stored = float(self.fields["vox_offset"])
        first = self._first_byte
        if stored == first and not self._extended:
            return first
        length = self._length()
        odd = not (math.isfinite(stored) and stored == int(stored) and stored >= first)
        if stored == first and first + max(16, self._extension_bytes) + nbytes <= length:
            message = f"is {stored:g}, but extensions of the header begin there"
            raise self._bad("vox_offset", message, "Set it to the end of the extensions")
        if not odd and stored + nbytes <= length:
            return int(stored)
        if self._header.sizeof_hdr <= stored < first and length == stored + nbytes:
            self._warn(
                "vox_offset", f"is {stored:g}, less than {first}; the file ends there", "Write it again"
            )
            self.fields["vox_offset"] = first
            return int(stored)
        # Nothing stands between header and voxels, by the flag and by the length of the file.
        if not self._extended and (length == first + nbytes or (0 <= stored < first <= length - nbytes)):
            message = f"is {stored:g}, and was taken as {first}, where the header ends"
            self._warn("vox_offset", message, f"Set it to {first}")
            self.fields["vox_offset"] = first
            return first
        if not odd and stored < length:
            return int(stored)  # the file ends early; reading it will say so
        message = f"is {stored:g}, where {nbytes} bytes of voxels cannot begin in a file of {length} bytes"
        raise self._bad("vox_offset", message, f"Set it to where they begin, {first} without extensions")

    def _scaling(self) -> tuple[float, float]:
        """Return slope and intercept; a slope of 0 or NaN means that values are not scaled."""
        fields = self.fields
        if not isinstance(self._header, Nifti1Header):
            slope, intercept = self._header.get_slope_inter()
            return (1.0 if slope is None else slope), (0.0 if intercept is None else intercept)
        slope, intercept = float(fields["scl_slope"]), float(fields["scl_inter"])
        if math.isinf(slope):
            self._warn("scl_slope", f"is {slope}; values were not scaled", "Set it to 1", "scaling")
            slope = 0.0
        if slope == 0 or math.isnan(slope):
            return 1.0, 0.0
        if not math.isfinite(intercept):
            self._warn("scl_inter", f"is {intercept}, and was taken as 0", "Set it to 0", "scaling")
            fields["scl_inter"] = intercept = 0.0
        return slope, intercept

    def _check_rest(self) -> None:
        """Let nibabel check, and mend, what is left: size of the header, magic, end-of-line bytes."""
        try:
            self._header.copy().check_fix()
        except nibabel.spatialimages.HeaderDataError as error:
            raise ImageFault(
                self._path,
                bad("header", f"its header cannot be used: {error}.", self._cure("Correct that field")),
            ) from None

    def place(self, shape: tuple[int, ...], xform: Xform | None) -> ImageGeometry:
        """Return where a NIfTI image lies.

        Args:
            shape: of its first three axes.
            xform: the transform to take where the header has both; None takes the sform, and warns where the
                qform contradicts it.

        Raises:
            ImageFault: it has no usable transform, or not the one that was chosen.
        """
        self._mend_pixdim()
        place = self._chosen(shape, xform)
        factor = self._millimetres(place.affine, shape)
        if factor != 1:
            affine = place.affine.copy()
            affine[:3] *= factor
            place = ImageGeometry(affine, place.xform, place.oriented)
        return place

    def check_sizes(self) -> None:
        """Check the voxel sizes of a format that has nothing else to place an image by (Analyze).

        Raises:
            ImageFault: they are 0, NaN or infinite; nibabel takes 0 for 1 mm.
        """
        pixdim = self.fields["pixdim"]
        for axis in (1, 2, 3):
            if pixdim[axis] < 0 and math.isfinite(pixdim[axis]):
                message = f"is {pixdim[axis]:g}; sizes are positive, and its sign was dropped"
                self._warn(f"pixdim[{axis}]", message, "Drop the sign, and check left and right")
                pixdim[axis] = -pixdim[axis]
        if reason := self._pixdim_fault():
            cure = self._cure("Set pixdim[1] to pixdim[3] to the voxel sizes in mm")
            raise ImageFault(self._path, bad("affine", f"its header {reason}.", cure))

    def geometry_fields(self) -> dict[str, Any]:
        """Return the fields that place the image, for a file that is to lie where it lies; see `place`."""
        return {name: self.fields[name] for name in _PLACING}

    def _chosen(self, shape: tuple[int, ...], xform: Xform | None) -> ImageGeometry:
        coded = [name for name in XFORMS if int(self.fields[f"{name}_code"]) > 0]
        usable: dict[Xform, np.ndarray] = {}
        broken: dict[Xform, str] = {}
        for name in coded:
            affine, reason = self._sform() if name == "sform" else self._qform()
            if reason:
                broken[name] = f"its {name} (code {int(self.fields[f'{name}_code'])}) {reason}"
                self.fields[f"{name}_code"] = 0
            else:
                usable[name] = affine
        if xform in broken or (coded and not usable):
            raise self._unusable(usable, broken)
        if not coded:
            return ImageGeometry(self._by_pixdim(), "pixdim", oriented=False)
        name = xform if xform is not None and xform in usable else next(iter(usable))
        x, y, z = (*shape, 1, 1, 1)[:3]
        self._compare(name, usable, broken, (x, y, z), xform)
        return ImageGeometry(usable[name], name, oriented=True)

    def _sform(self) -> tuple[np.ndarray, str]:
        affine = np.asarray(self._header.get_sform(), np.float64)
        return affine, geometry.fault(affine)

    def _qform(self) -> tuple[np.ndarray, str]:
        fields = self.fields
        names = ["quatern_b", "quatern_c", "quatern_d"]
        quaternion = np.array([fields[name] for name in names], np.float64)
        square = float(quaternion @ quaternion)
        reason = ""
        if not square <= 1 + _QUATERNION_ROUNDING:  # NaN too
            length = f"{math.sqrt(square):.5g}" if square >= 0 else "NaN"
            reason = f"has a quaternion (quatern_b, quatern_c, quatern_d) of length {length}, more than 1"
        elif square - 1 >= abs(self._header.quaternion_threshold):  # less nibabel takes for 1
            for field, value in zip(names, quaternion / math.sqrt(square), strict=True):
                fields[field] = value
        reason = reason or self._pixdim_fault()
        if reason:
            return np.eye(4), reason
        affine = np.asarray(self._header.get_qform(), np.float64)
        return affine, geometry.fault(affine)

    def _pixdim_fault(self) -> str:
        sizes = [float(size) for size in self.fields["pixdim"][1:4]]
        if all(math.isfinite(size) and size > 0 for size in sizes):
            return ""
        return f"has no voxel sizes: pixdim is {', '.join(f'{size:g}' for size in sizes)}"

    def _by_pixdim(self) -> np.ndarray:
        if reason := self._pixdim_fault():
            message = f"its header has neither sform nor qform (both codes are 0) and {reason}."
            cure = self._cure("Set pixdim[1] to pixdim[3] to the voxel sizes in mm")
            raise ImageFault(self._path, bad("affine", message, cure))
        return np.asarray(self._header.get_base_affine(), np.float64)

    def _mend_pixdim(self) -> None:
        """Make signs of pixdim those of the standard, where a qform or nothing else depends on them."""
        pixdim, by_quaternion = self.fields["pixdim"], int(self.fields["qform_code"]) > 0
        decides = by_quaternion or int(self.fields["sform_code"]) <= 0
        handedness = float(pixdim[0])
        if by_quaternion and handedness not in (-1, 0, 1):
            taken = -1 if handedness < 0 else 1
            message = f"(qfac: -1 where the axes are left-handed) is {handedness:g}, and was taken as {taken}"
            self._warn("pixdim[0]", message, "Set it to 1 or -1")
            pixdim[0] = taken
        elif pixdim[0] not in (-1, 1):
            pixdim[0] = 1  # as the standard says of 0
        negative = [axis for axis in (1, 2, 3) if pixdim[axis] < 0]
        for axis in negative:
            if decides and math.isfinite(pixdim[axis]):
                message = f"is {pixdim[axis]:g}; sizes are positive, and its sign was dropped"
                self._warn(f"pixdim[{axis}]", message, "Drop the sign, and check left and right")
            pixdim[axis] = -pixdim[axis]

    def _unusable(self, usable: dict[Xform, np.ndarray], broken: dict[Xform, str]) -> ImageFault:
        reasons = "; ".join(broken.values())
        if usable:
            other = next(iter(usable))
            code = int(self.fields[f"{other}_code"])
            message = f"{reasons}; its {other} (code {code}: {_described(usable[other])}) can be used."
            cure = f"Import with --xform {other}, or copy it over: {_COPY_OVER[other]}."
        else:
            absent = [f"it has no {name} ({name}_code is 0)" for name in XFORMS if name not in broken]
            message = "; ".join([reasons, *absent]) + "."
            cure = "Write the right orientation into its header (fslorient), or convert the original again."
            if "pixdim" in reasons:
                cure = self._cure("Set pixdim[1] to pixdim[3] to the voxel sizes in mm")
        return ImageFault(self._path, bad("affine", message, cure))

    def _compare(
        self,
        name: Xform,
        usable: dict[Xform, np.ndarray],
        broken: dict[Xform, str],
        shape: geometry.Shape,
        xform: Xform | None,
    ) -> None:
        """Remark on what contradicts the transform that was taken."""
        affine, taken = usable[name], f"the {name} was taken"
        codes = {each: int(self.fields[f"{each}_code"]) for each in XFORMS}
        messages = [
            (
                f"{reason}; {taken} (code {codes[name]}: {_described(affine)}).",
                f"Write it over the other ({_COPY_OVER[name]}), or confirm it with --xform {name}.",
            )
            for reason in broken.values()
        ]
        for other in (each for each in usable if each != name):
            same_space = codes["sform"] == codes["qform"] and not geometry.is_sheared(affine)
            words = geometry.contradictions(affine, usable[other], shape, same_space=same_space)
            if words:
                both = " and ".join(
                    f"{form} (code {codes[form]}: {_described(usable[form])})" for form in usable
                )
                message = f"its {both} contradict each other: {', '.join(words)}; {taken}."
                cure = (
                    f"{_CHECK} --xform {name} confirms this for all images, --xform {other} takes the other; "
                    f"or make them agree: {_COPY_OVER[name]} or {_COPY_OVER[other]}."
                )
                messages.append((message, cure))
        if len(usable) == 1 and (sizes := self._other_sizes(affine)):
            message = f"its {name} has voxels of {geometry.sizes_text(affine)}, its pixdim {sizes}; {taken}."
            cure = f"{_CHECK} --xform {name} confirms this; or correct the one that is wrong."
            messages.append((message, cure))
        for message, cure in messages:
            is_chosen = xform == name
            self.remarks.append(note("xform", message) if is_chosen else warning("xform", message, cure))
        if xform is not None and name != xform:
            message = f"its header has no {xform} ({xform}_code is 0), which --xform chose; {taken}."
            self.remarks.append(note("xform", message))

    def _other_sizes(self, affine: np.ndarray) -> str:
        """Return the voxel sizes of pixdim where they are others than those of the affine; else nothing."""
        sizes = np.abs(np.array([float(size) for size in self.fields["pixdim"][1:4]]))
        if self._pixdim_fault() or geometry.same_sizes(sizes, nibabel.affines.voxel_sizes(affine)):
            return ""
        return geometry.sizes_text(np.diag([*sizes, 1.0]))

    def _millimetres(self, affine: np.ndarray, shape: tuple[int, ...]) -> float:
        """Return what the header's unit is in mm; 1 where only millimetres give a possible size."""
        name, factor = _UNITS.get(int(self.fields["xyzt_units"]) & 7, ("", 1.0))
        if factor == 1:
            return 1.0
        largest = float((nibabel.affines.voxel_sizes(affine) * np.array((*shape, 1, 1, 1)[:3])).max())
        sizes = geometry.sizes_text(affine).removesuffix(" mm")
        if not _SMALLEST_MM <= largest * factor <= _LARGEST_MM:
            message = (
                f"says {name}, but voxels of {sizes} are possible as millimetres only, and were taken so"
            )
            if _SMALLEST_MM <= largest <= _LARGEST_MM:
                self._warn("xyzt_units", message, "Set it to 2 (mm)", "units")
            return 1.0
        message = f"its header is in {name}: voxels of {sizes} were converted to millimetres."
        self.remarks.append(note("units", message))
        return factor

    def _warn(self, field: str, message: str, cure: str, code: str = "header") -> None:
        self.remarks.append(warning(code, f"the header's {field} {message}.", self._cure(cure)))

    def _bad(self, field: str, message: str, cure: str) -> ImageFault:
        return ImageFault(self._path, bad("header", f"the header's {field} {message}.", self._cure(cure)))

    def _cure(self, cure: str) -> str:
        return f"{cure} (nifti_tool -mod_hdr -mod_field), or convert the original again."


_PLACING = (
    "pixdim", "xyzt_units", "qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d",
    "qoffset_x", "qoffset_y", "qoffset_z", "srow_x", "srow_y", "srow_z",
)  # fmt: skip
# Which command makes the other transform equal to one.
_COPY_OVER: dict[Xform, str] = {
    "sform": "fslorient -copysform2qform FILE",
    "qform": "fslorient -copyqform2sform FILE",
}
_CHECK = "Find out which is right (qc.html shows it as it was taken):"


def _described(affine: np.ndarray) -> str:
    return f"{geometry.sizes_text(affine)}, axes {geometry.axis_codes(affine)}"
