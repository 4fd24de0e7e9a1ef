"""Examine one image, start to end: read, check, prepare, picture. The task of a worker process."""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from PIL import Image as Picture

from trainer.data.images import geometry, label_maps, preprocess, quality, reading
from trainer.data.images.findings import Finding, ImageFault, Status, about, status, warning
from trainer.data.images.linear import brain
from trainer.data.images.preprocess import PreparedImage
from trainer.data.images.recipe import Recipe
from trainer.data.sources.listing import SourceImage

Stamp = list[list[int]]


@dataclass(frozen=True)
class Examined:
    """Results for one image.

    Attributes:
        identity: `SourceImage.identity` of the image.
        stamp: [size in bytes, time of change in ns] of each file read: tells a rerun whether it is the same.
        sha256: of the image file; of header and data one after the other for a pair; empty if unreadable.
        findings: all, those of the listing first.
        facts: see `quality.ImageFacts`; None where it cannot be read.
        report: numbers of the preprocessing; None for a bad image.
        tissue: mL of each tissue, where the source has maps, or raw scans were prepared.
        picture: PNG of its mid-slices, a row per contrast, base64; empty where it cannot be read.
        affine: of `array`.
        further: path (as in the listing) and SHA-256 of each file of further contrasts and of the label map.
        array: (D, H, W, C), only where the image is usable; not in JSON.
        label_map: (D, H, W) uint8, only where the image is usable and maps are asked for; not in JSON.
    """

    identity: list[Any]
    stamp: Stamp
    sha256: str
    findings: tuple[Finding, ...]
    facts: dict[str, Any] | None = None
    report: dict[str, Any] | None = None
    tissue: dict[str, float] | None = None
    picture: str = ""
    affine: list[list[float]] | None = None
    further: dict[str, str] = field(default_factory=dict)
    array: np.ndarray | None = None
    label_map: np.ndarray | None = None

    @property
    def status(self) -> Status:
        """Return the worst severity of the findings."""
        return status(self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the arrays, as a JSON object."""
        tree = dict(vars(self))
        del tree["array"], tree["label_map"]
        tree["findings"] = [finding.to_json() for finding in self.findings]
        return tree

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Examined:
        """Rebuild it from JSON, without the arrays."""
        return cls(**{**tree, "findings": tuple(Finding.from_json(finding) for finding in tree["findings"])})


def examine(task: tuple[SourceImage, Recipe]) -> Examined:
    """Return one image, read and prepared by the recipe. A bad image is a result, not an exception."""
    image, recipe = task
    findings = list(image.findings)
    fields: dict[str, Any] = {"identity": image.identity, "stamp": stamp(image), "sha256": ""}
    try:
        stored, remarks = preprocess.checked(image.path, recipe)
    except ImageFault as fault:
        return Examined(**fields, findings=(*findings, fault.finding))
    fields["sha256"] = source_sha256(image.path)
    fields["facts"] = quality.facts(stored).to_json()
    findings += remarks
    others, remarks = _further_contrasts(image, recipe)
    findings += remarks
    if status(findings) == "bad":
        return Examined(**fields, findings=tuple(findings), picture=_picture_of_stored(stored))
    try:
        prepared = preprocess.prepare_image(image.path, stored, recipe, others)
        label_map, remarks = _label_map(image, prepared, recipe)
    except ImageFault as fault:
        return Examined(**fields, findings=(*findings, fault.finding), picture=_picture_of_stored(stored))
    fields["further"] = {file.source: source_sha256(file.path) for file in image.further}
    findings += remarks
    if recipe.prepare is None:
        tissue, complaints = _tissue(image, stored, recipe)
    else:  # by one way for all: what else a source has of a raw scan was made by another
        tissue, complaints = prepared.report["tissue"], []
        if tissue is None:
            message = "grey and white matter and CSF cannot be told apart in it. It has no tissue volumes."
            complaints = [warning("tissue-fit", message, "Look at its contrast in qc.html.")]
    return Examined(
        **fields,
        picture=_picture_of_prepared(prepared, label_map),
        findings=(*findings, *prepared.findings, *complaints),
        report=prepared.report,
        tissue=tissue,
        affine=prepared.affine.tolist(),
        array=prepared.array,
        label_map=label_map,
    )


def _further_contrasts(image: SourceImage, recipe: Recipe) -> tuple[list[reading.Image], list[Finding]]:
    """Read the images of the further contrasts, and what is wrong with them."""
    stored, findings = [], []
    for file in image.contrasts:
        try:
            other, remarks = preprocess.checked(file.path, recipe)
        except ImageFault as fault:
            remarks = [fault.finding]
        else:
            stored.append(other)
        findings += [about(finding, f"its {file.name} image {file.path.name}") for finding in remarks]
    return stored, findings


def _label_map(
    image: SourceImage, prepared: PreparedImage, recipe: Recipe
) -> tuple[np.ndarray | None, list[Finding]]:
    if recipe.maps is None:
        return None, []
    return label_maps.prepare([file.path for file in image.maps], prepared.cut, recipe.maps, recipe.xform)


def stamp(image: SourceImage) -> Stamp:
    """Return size and time of change of every file that an image is made of; [-1, -1] for a missing one."""
    further = [part for file in image.further for part in reading.files_of(file.path)]
    paths = [*reading.files_of(image.path), *(path for _, path in image.tissue_maps), *further]
    stamps = []
    for path in paths:
        try:
            entry = path.stat()
            stamps.append([entry.st_size, entry.st_mtime_ns])
        except OSError:
            stamps.append([-1, -1])
    return stamps


def source_sha256(path: Path) -> str:
    """Return the SHA-256 of an image's file, or of header and data one after the other."""
    digest = hashlib.sha256()
    for part in reading.files_of(path):
        digest.update(part.read_bytes())
    return digest.hexdigest()


def _picture_of_stored(stored: reading.Image) -> str:
    if geometry.fault(stored.affine):
        return ""
    data, affine = quality.to_canonical(stored)
    x, y, z = (float(size) for size in nibabel.affines.voxel_sizes(affine))
    return _as_text(_sheet(data, (x, y, z)))


def _picture_of_prepared(prepared: PreparedImage, label_map: np.ndarray | None) -> str:
    """Draw a row for each contrast, the first with the borders of the label map, or of the average brain."""
    channels = np.moveaxis(prepared.array, -1, 0)
    rows = [_sheet(channel.astype(np.float32), (1.0, 1.0, 1.0)) for channel in channels]
    if label_map is None and prepared.cut.registered is not None:
        label_map = brain.outline_on(prepared.cut.size, prepared.affine).astype(np.uint8)
    if label_map is None:
        return _as_text(np.concatenate(rows))
    coloured = [with_borders(rows[0], label_map)]
    coloured += [np.repeat(row[..., None], 3, axis=2) for row in rows[1:]]
    return _as_text(np.concatenate(coloured))


def _sheet(data: np.ndarray, voxel: tuple[float, float, float]) -> np.ndarray:
    finite = data[np.isfinite(data)]
    low, high = (float(v) for v in np.percentile(finite, [1.0, 99.8])) if finite.size else (0.0, 1.0)
    return mid_slices(data, voxel, low, high)


def _as_text(sheet: np.ndarray) -> str:
    return base64.b64encode(png(sheet)).decode()


def _tissue(
    image: SourceImage, of: reading.Image, recipe: Recipe
) -> tuple[dict[str, float] | None, list[Finding]]:
    """Return mL of each tissue: the sum of its probabilities times the volume of a voxel.

    Args:
        image: whose tissue maps are read.
        of: the image as it was read: voxels of a map with as many voxels are as large as its own.
        recipe: of the import.
    """
    amounts: dict[str, float] = {}
    for tissue, path in image.tissue_maps:
        try:
            stored = reading.read(path, xform=recipe.xform)
        except ImageFault as fault:
            return None, [_tissue_warning(path, fault.finding.message)]
        voxel_ml, of_image = _voxel_ml(stored), _voxel_ml(of)
        if stored.data.shape == of.data.shape and not math.isclose(voxel_ml, of_image, rel_tol=0.03):
            reason = (
                f"has voxels of {geometry.sizes_text(stored.affine)}, but the image, of the same shape, has "
                f"{geometry.sizes_text(of.affine)}."
            )
            return None, [_tissue_warning(path, reason)]
        if any(finding.code == "scaling" for finding in stored.remarks):
            return None, [_tissue_warning(path, stored.remarks[0].message)]
        amount = float(stored.data.sum(dtype=np.float64)) * voxel_ml
        if not np.isfinite(amount):
            return None, [_tissue_warning(path, "holds values that are NaN or infinite.")]
        amounts[tissue] = round(amount, 3)
    return amounts or None, []


def _voxel_ml(image: reading.Image) -> float:
    return abs(float(np.linalg.det(image.affine[:3, :3]))) / 1000


def _tissue_warning(path: Path, reason: str) -> Finding:
    message = f"its tissue map {path.name} {reason} Its tissue volumes were left out."
    return warning("tissue-map", message, "Make the derivatives again.")


# Edge of one slice in the sheet, in pixels: small enough that a thousand images stay within 30 MB.
EDGE = 112


# Okabe and Ito's colours, which most colour-blind people tell apart; classes take them in turn.
_COLOURS = np.array(
    [(230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (213, 94, 0), (204, 121, 167)], np.uint8
)


def mid_slices(data: np.ndarray, voxel: tuple[float, float, float], low: float, high: float) -> np.ndarray:
    """Return the sagittal, coronal and axial mid-slice side by side, (EDGE, 3 EDGE) uint8 in grey.

    Args:
        data: (X, Y, Z) float, axes to the right, front and top.
        voxel: size in mm, so that slices keep their proportions.
        low: value shown black.
        high: value shown white.
    """
    return _side_by_side(data, voxel, lambda plane: _grey(plane, low, high), Picture.Resampling.BILINEAR)


def with_borders(sheet: np.ndarray, label_map: np.ndarray) -> np.ndarray:
    """Return a sheet of `mid_slices` with the borders of its label map, (EDGE, 3 EDGE, 3) uint8."""
    labels = _side_by_side(label_map, (1.0, 1.0, 1.0), np.ascontiguousarray, Picture.Resampling.NEAREST)
    border = np.zeros(labels.shape, bool)
    border[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    border[1:] |= labels[1:] != labels[:-1]
    # A border belongs to the class on either side of it that is not the background.
    inside = np.maximum(labels, np.maximum(np.roll(labels, 1, 0), np.roll(labels, 1, 1)))
    coloured = np.repeat(sheet[..., None], 3, axis=2)
    coloured[border] = _COLOURS[(inside[border].astype(int) - 1) % len(_COLOURS)]
    return coloured


def png(sheet: np.ndarray) -> bytes:
    """Encode a sheet, grey or in colour, as a PNG file."""
    file = io.BytesIO()
    Picture.fromarray(sheet).save(file, "PNG", optimize=True)
    return file.getvalue()


def _side_by_side(
    data: np.ndarray,
    voxel: tuple[float, float, float],
    shade: Callable[[np.ndarray], np.ndarray],
    resampling: Picture.Resampling,
) -> np.ndarray:
    sheet = np.zeros((EDGE, 3 * EDGE), np.uint8)
    x, y, z = (length // 2 for length in data.shape)
    # Rows run downwards: the second axis is flipped so that top and front are up. Left is left.
    planes = (
        (data[x], voxel[1], voxel[2]),
        (data[:, y], voxel[0], voxel[2]),
        (data[:, :, z], voxel[0], voxel[1]),
    )
    scale = EDGE / max(float(length * size) for length, size in zip(data.shape, voxel, strict=True))
    for number, (plane, across, up) in enumerate(planes):
        width = max(1, min(EDGE, round(plane.shape[0] * across * scale)))
        height = max(1, min(EDGE, round(plane.shape[1] * up * scale)))
        picture = Picture.fromarray(shade(plane.T[::-1])).resize((width, height), resampling)
        left, top = number * EDGE + (EDGE - width) // 2, (EDGE - height) // 2
        sheet[top : top + height, left : left + width] = np.asarray(picture)
    return sheet


def _grey(plane: np.ndarray, low: float, high: float) -> np.ndarray:
    finite = np.nan_to_num(plane.astype(np.float32), nan=low, posinf=high, neginf=low)
    span = max(high - low, float(np.finfo(np.float32).tiny))
    # 64 levels: the eye sees no more here, and the files are a third smaller.
    return (np.clip((finite - low) / span, 0, 1) * 63).astype(np.uint8) * 4
