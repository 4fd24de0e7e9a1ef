"""Quality control of one image as read, before it is prepared."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import nibabel
import numpy as np

from trainer.data.images import geometry
from trainer.data.images.findings import Finding, bad, note, warning
from trainer.data.images.reading import Image

# Usual head scans have 0.4 to 2 mm voxels; outside these bounds the unit or the header is more likely wrong.
SMALLEST_VOXEL_MM = 0.3
LARGEST_VOXEL_MM = 5.0
LARGEST_ANISOTROPY = 4.0
# A whole head needs about 250 mm; no scanner bore lets in a metre.
SMALLEST_EXTENT_MM = 60.0
LARGEST_EXTENT_MM = 1000.0
# An 8-bit scan uses most of its 256 values; maps of labels have a few dozen.
FEWEST_VALUES = 32

_MAKE_AGAIN = "Make it again from the original scan."


@dataclass(frozen=True)
class ImageFacts:
    """Facts about one image, for the table.

    Attributes:
        voxel_mm: size of a stored voxel along the stored axes.
        orientation: where the stored axes point, such as 'LPI'.
        xform: which transform of a NIfTI header places it; see `reading.Image`.
        content_sha256: of the voxel values with the axes moved to RAS+, the same for copies in other formats.
    """

    format: str
    shape: tuple[int, ...]
    dtype: str
    voxel_mm: tuple[float, ...]
    orientation: str
    xform: str
    minimum: float
    maximum: float
    mean: float
    not_finite: int
    content_sha256: str

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object; numbers that JSON cannot hold become None."""
        tree = dict(vars(self))
        tree["shape"], tree["voxel_mm"] = list(self.shape), list(self.voxel_mm)
        for name in ("minimum", "maximum", "mean"):
            tree[name] = tree[name] if np.isfinite(tree[name]) else None
        tree["voxel_mm"] = [size if np.isfinite(size) else None for size in tree["voxel_mm"]]
        return tree


def check(image: Image, *, replace_not_finite: bool = False) -> list[Finding]:
    """Return every finding on an image."""
    place = check_affine(image) or [*_check_voxels_size(image), *_check_shear(image)]
    return [
        *image.remarks,
        *place,
        *_check_orientation(image),
        *_check_values(image.data, replace_not_finite),
    ]


def check_affine(image: Image) -> list[Finding]:
    """Return what is wrong with the affine of an image; empty where it is usable."""
    cure = "Write the right orientation into its header (fslorient), or convert the original DICOM again."
    reason = geometry.fault(image.affine)
    return [bad("affine", f"the affine in its header {reason}.", cure)] if reason else []


def facts(image: Image) -> ImageFacts:
    """Return the facts about an image, for the table."""
    finite = image.data[np.isfinite(image.data)]
    usable = np.isfinite(image.affine).all() and abs(np.linalg.det(image.affine[:3, :3])) > 0
    sizes = nibabel.affines.voxel_sizes(image.affine) if usable else [float("nan")] * 3
    return ImageFacts(
        format=image.format,
        shape=image.stored_shape,
        dtype=image.stored_dtype,
        voxel_mm=tuple(round(float(size), 4) for size in sizes),
        orientation="".join(nibabel.aff2axcodes(image.affine)) if usable else "?",
        xform=image.xform,
        minimum=float(finite.min()) if finite.size else float("nan"),
        maximum=float(finite.max()) if finite.size else float("nan"),
        mean=float(finite.mean(dtype=np.float64)) if finite.size else float("nan"),
        not_finite=int(image.data.size - finite.size),
        content_sha256=content_sha256(image) if usable else "",
    )


def content_sha256(image: Image) -> str:
    """Return the SHA-256 of shape and values after the axes were moved to RAS+."""
    data, _ = to_canonical(image)
    digest = hashlib.sha256(repr(data.shape).encode())
    digest.update(np.ascontiguousarray(data).data)
    return digest.hexdigest()


def to_canonical(image: Image) -> tuple[np.ndarray, np.ndarray]:
    """Return data (X, Y, Z) and affine with the axes permuted and flipped to RAS+.

    No value is interpolated: an oblique image keeps its tilt in the affine.
    """
    orientation = nibabel.io_orientation(image.affine)
    data = nibabel.apply_orientation(image.data, orientation)
    return data, image.affine @ nibabel.orientations.inv_ornt_aff(orientation, image.data.shape)


def _check_voxels_size(image: Image) -> list[Finding]:
    sizes = nibabel.affines.voxel_sizes(image.affine)
    text = " x ".join(f"{size:.4g}" for size in sizes) + " mm"
    extent = [size * length for size, length in zip(sizes, image.data.shape, strict=True)]
    cure = "Check the voxel size in the header (micrometres or metres instead of millimetres?)."
    if max(extent) > LARGEST_EXTENT_MM:
        message = f"covers {max(extent):.5g} mm with voxels of {text}: more than a scanner holds."
        return [bad("extent", message, cure)]
    if max(extent) < 1:
        return [bad("extent", f"covers less than 1 mm, with voxels of {text}.", cure)]
    findings = []
    if min(sizes) < SMALLEST_VOXEL_MM or max(sizes) > LARGEST_VOXEL_MM:
        message = f"has voxels of {text}; usual sizes are {SMALLEST_VOXEL_MM} to {LARGEST_VOXEL_MM:g} mm."
        findings.append(warning("voxel-size", message, cure))
    if max(sizes) / min(sizes) > LARGEST_ANISOTROPY:
        message = f"has voxels {max(sizes) / min(sizes):.1f} times longer than wide ({text})."
        advice = "If it is a localiser or a thick-slice scan, use the 3D scan where there is one."
        findings.append(warning("anisotropy", message, advice))
    if min(extent) < SMALLEST_EXTENT_MM:
        message = f"covers only {min(extent):.4g} mm along one axis: not a whole head."
        advice = "Check that it is a scan of the whole brain, in millimetres."
        findings.append(warning("small-extent", message, advice))
    return findings


def _check_shear(image: Image) -> list[Finding]:
    shear = geometry.shear_degrees(image.affine)
    if shear <= geometry.NOTABLE_SHEAR_DEGREES:
        return []
    message = (
        f"its axes are up to {shear:.1f} degrees off a right angle (tilted gantry?); it was resampled by its "
        "affine to axes at right angles."
    )
    advice = "Look at it in qc.html; if it looks sheared there, the affine in its header is wrong."
    return [warning("sheared", message, advice)]


def _check_orientation(image: Image) -> list[Finding]:
    findings = []
    if not image.oriented:
        message = "its header does not say which side is left; nibabel's default was taken."
        advice = "Look at it in qc.html; convert the original to NIfTI with dcm2niix if possible."
        findings.append(warning("unoriented", message, advice))
    if np.isfinite(image.affine).all() and np.linalg.det(image.affine[:3, :3]) < 0:
        findings.append(
            note("left-handed", "its axes are left-handed (radiological storage); they were flipped to RAS+.")
        )
    return findings


def _check_values(data: np.ndarray, replace_not_finite: bool) -> list[Finding]:
    broken = int(data.size - np.count_nonzero(np.isfinite(data)))
    if broken == data.size:
        return [bad("not-finite", "has no finite value: all voxels are NaN or infinite.", _MAKE_AGAIN)]
    if broken:
        share = f"{broken} of {data.size} voxels are NaN or infinite"
        if not replace_not_finite:
            cure = "Make it again, or import with --nan zero if they are background."
            return [bad("not-finite", f"{share}.", cure)]
        zeroed = [warning("not-finite", f"{share}; they were set to 0.", "Look at it in qc.html.")]
        return zeroed + _check_contrast(np.nan_to_num(data, nan=0.0, posinf=0.0, neginf=0.0))
    return _check_contrast(data)


def _check_contrast(data: np.ndarray) -> list[Finding]:
    low, high = float(data.min()), float(data.max())
    if low == high == 0:
        return [bad("all-zero", "is zero everywhere.", _MAKE_AGAIN)]
    if low == high:
        return [bad("constant", f"has the same value everywhere ({low:g}).", _MAKE_AGAIN)]
    cure = "Import the scan it was made from, not a mask or a map of labels."
    if np.all((data == low) | (data == high)):
        return [bad("mask", f"has only the two values {low:g} and {high:g}.", cure)]
    # Every so many voxels are enough to see that a scan has many values.
    distinct = np.unique(data.ravel()[:: max(1, data.size // 100_000)]).size
    if distinct < FEWEST_VALUES:
        return [warning("few-values", f"has only about {distinct} different values.", cure)]
    return []
