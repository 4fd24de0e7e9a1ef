"""From the grid that a network sees back to the grid of the image that came from the scanner."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from scipy import ndimage

from trainer import atomic
from trainer.data.images import reading
from trainer.data.images.preprocess import PreparedImage
from trainer.data.images.recipe import Xform
from trainer.inference import results, sliding
from trainer.inference.ensemble import Ensemble
from trainer.inference.sliding import Slabs, Windows


@dataclass(frozen=True)
class VoxelGrid:
    """Where the voxels of a volume lie.

    Attributes:
        shape: (X, Y, Z).
        affine: (4, 4) float64, voxel indices to millimetres in RAS+ space.
    """

    shape: tuple[int, int, int]
    affine: np.ndarray

    @property
    def voxel_ml(self) -> float:
        """Volume of a voxel in millilitres."""
        return float(abs(np.linalg.det(self.affine[:3, :3]))) / 1000

    @classmethod
    def of_file(cls, path: Path, xform: Xform | None = None) -> VoxelGrid:
        """Return the grid of an image file, without reading its voxels; `xform` as for `reading.read`."""
        return cls(*reading.grid(path, xform))


def labels_on(target: VoxelGrid, slabs: Slabs, source: VoxelGrid) -> np.ndarray:
    """Return the most probable class at each voxel of `target`, from probabilities on another grid.

    The probabilities are interpolated linearly and the class is chosen afterwards, which gives smoother
    borders than choosing first; voxels outside of the source are background, class 0.

    Args:
        target: of the image. Where its axes run along those of `source`, in any order and direction, as they
            do where the source was made by `trainer.data.images.preprocess` of an image that is not sheared,
            slabs are used and forgotten one by one; else all of them are kept.
        slabs: first plane and probabilities float32 (n, H, W, K), in order, without gaps, from the first
            plane of the source to the last, as `sliding.blend` yields them.
        source: the grid that the probabilities are on.

    Returns:
        uint8 (X, Y, Z). Besides it, memory holds a slab and, for its part of the target, two numbers
        per voxel.
    """
    to_source = np.linalg.inv(source.affine) @ target.affine
    axes = _axes_of(to_source[:3, :3])
    if axes is None:
        return _labels_by_planes(target, slabs, source, to_source)
    labels = np.zeros(target.shape, np.uint8)
    along = axes[0]  # the axis of the target that runs through the slabs
    places = to_source[0, along] * np.arange(target.shape[along]) + to_source[0, 3]
    within = (places >= -0.5) & (places <= source.shape[0] - 0.5)
    before: np.ndarray | None = None
    for first, slab in slabs:
        block = slab if before is None else np.concatenate([before, slab])
        begin, end = first - (before is not None), first + len(slab)  # planes begin ... end - 1
        is_last = end == source.shape[0]
        covered = within & (places <= (np.inf if is_last else end - 1))
        if before is not None:
            covered &= places > begin
        before = slab[-1:].copy()
        if covered.any():
            part = slice(int(np.flatnonzero(covered)[0]), int(np.flatnonzero(covered)[-1]) + 1)
            index = tuple(part if axis == along else slice(None) for axis in range(3))
            labels[index] = _labels_of(block, begin, to_source, labels[index].shape, along, part.start)
    for axis, wanted in enumerate(axes[1:], start=1):  # what lies beyond the source's other faces
        others = to_source[axis, wanted] * np.arange(target.shape[wanted]) + to_source[axis, 3]
        outside = (others < -0.5) | (others > source.shape[axis] - 0.5)
        labels[tuple(outside if a == wanted else slice(None) for a in range(3))] = 0
    return labels


def volumes_ml(labels: np.ndarray, grid: VoxelGrid, classes: int) -> list[float]:
    """Return volume of each class of a label map in millilitres."""
    counts = np.bincount(labels.ravel(), minlength=classes)
    return [float(n) * grid.voxel_ml for n in counts]


def write_label_map(path: Path, labels: np.ndarray, like: Path) -> None:
    """Write uint8 labels (X, Y, Z) as NIfTI with the geometry of the image file they belong to, atomically.

    Transforms, their codes (which space they lead to) and units are the image's own, so that every program
    lays the two files over each other, whichever transform it takes; voxel values and intensity scaling are
    not.
    """
    fields = reading.geometry_fields(like)
    header = nibabel.nifti1.Nifti1Header()
    header.set_data_shape(labels.shape)
    header.set_data_dtype(labels.dtype)
    if fields is None:
        header.set_sform(reading.grid(like)[1], 1)
    for name, value in (fields or {}).items():
        header[name] = value
    made = nibabel.Nifti1Image(labels, None, header)
    made.header["descrip"] = b"cingulum predict"
    made.header["cal_max"] = float(labels.max(initial=0))

    def write(beside: Path) -> None:
        # nibabel goes by the suffix, which the temporary name has not.
        beside.write_bytes(_compressed(made) if path.name.endswith(".gz") else made.to_bytes())

    atomic.write_by(path, write)


def _compressed(image: Any) -> bytes:
    return gzip.compress(image.to_bytes(), compresslevel=6, mtime=0)


def _axes_of(matrix: np.ndarray) -> tuple[int, int, int] | None:
    """For each row of a scaled permutation (3, 3), the column of its one entry; None for other matrices."""
    columns = np.abs(matrix).argmax(axis=1)
    alone = np.zeros_like(matrix)
    alone[np.arange(3), columns] = matrix[np.arange(3), columns]
    if len(set(columns.tolist())) < 3 or not np.allclose(matrix, alone, atol=1e-4 * np.abs(matrix).max()):
        return None
    return int(columns[0]), int(columns[1]), int(columns[2])


def _labels_by_planes(
    target: VoxelGrid, slabs: Slabs, source: VoxelGrid, to_source: np.ndarray
) -> np.ndarray:
    """Return what `labels_on` does for a target whose axes are tilted against those of the source."""
    shares = np.concatenate([slab.copy() for _, slab in slabs])
    labels = np.zeros(target.shape, np.uint8)
    for plane in range(target.shape[0]):
        index = np.stack(np.broadcast_arrays(plane, *np.indices(target.shape[1:]))).reshape(3, -1)
        places = to_source[:3, :3] @ index + to_source[:3, 3:]
        last = np.array(source.shape)[:, None] - 0.5
        inside = ((places >= -0.5) & (places <= last)).all(axis=0)
        if not inside.any():
            continue
        classes = [
            ndimage.map_coordinates(shares[..., number], places[:, inside], order=1, mode="nearest")
            for number in range(shares.shape[-1])
        ]
        of_plane = np.zeros(inside.shape, np.uint8)
        of_plane[inside] = np.argmax(classes, axis=0)
        labels[plane] = of_plane.reshape(target.shape[1:])
    return labels


def _labels_of(
    block: np.ndarray, begin: int, to_source: np.ndarray, shape: Sequence[int], along: int, start: int
) -> np.ndarray:
    """Classes (shape) of a part of the target from the planes `begin` onwards of the source."""
    offset = to_source[:3, 3].copy()
    offset += to_source[:3, along] * start
    offset[0] -= begin
    best = np.full(shape, -np.inf, np.float32)
    labels = np.zeros(shape, np.uint8)
    for number in range(block.shape[-1]):
        share = ndimage.affine_transform(
            block[..., number],
            to_source[:3, :3],
            offset,
            output_shape=tuple(shape),
            order=1,
            mode="nearest",  # half a voxel beyond the middle of the outermost is still inside of it
        )
        better = share > best
        labels[better] = number
        best[better] = share[better]
    return labels


def segment(
    ensemble: Ensemble,
    prepared: PreparedImage,
    facts: Mapping[str, Any],
    windows: Windows,
    *,
    image: Path,
    written: Path,
) -> dict[str, Any]:
    """Write the label map of an image as NIfTI in its own space; the table's columns about it.

    The members' probabilities are averaged before a class is chosen.

    Args:
        ensemble: of segmentation networks with K classes.
        prepared: the image as they see it.
        facts: what is known of the person, by the names of covariates.
        windows: of the networks' size.
        image: the file whose geometry the map takes.
        written: where the map goes; its folder is made.

    Returns:
        `segmentation` (the path), the volume of each class but the background in ml as `ml_<class>`, measured
        on the image's own voxels, and for several members the standard deviation of each one's own volumes.
    """
    classes, members = ensemble.first.classes, len(ensemble.members)
    target = VoxelGrid(*prepared.image_grid)
    array, affine = _within(target, prepared, windows.size)
    d, h, w = array.shape[:3]
    source = VoxelGrid((d, h, w), affine)
    own = np.zeros((members, len(classes)))  # voxels of each member's own map

    def predict(some: np.ndarray) -> np.ndarray:
        """Return (M, B, d, h, w, K) as outputs (B, d, h, w, M * K)."""
        found = np.moveaxis(ensemble.ask(some, [facts]), 0, -2)
        return found.reshape(*found.shape[:-2], members * len(classes))

    def averaged(slabs: Slabs) -> Slabs:
        for first, slab in slabs:
            each = slab.reshape(*slab.shape[:3], members, len(classes))
            if members > 1:
                for member in range(members):
                    labels = each[..., member, :].argmax(axis=-1)
                    own[member] += np.bincount(labels.ravel(), minlength=len(classes))
            yield first, each.mean(axis=-2)

    labels = labels_on(target, averaged(sliding.blend(array, predict, windows)), source)
    written.parent.mkdir(parents=True, exist_ok=True)
    write_label_map(written, labels, like=image)
    volumes = [round(ml, 3) for ml in volumes_ml(labels, target, len(classes))[1:]]
    said = [str(written), *volumes, *results.spread(own[:, 1:] * source.voxel_ml)]
    return dict(zip(results.columns("segmentation", classes, members > 1), said, strict=True))


def _within(
    target: VoxelGrid, prepared: PreparedImage, least: tuple[int, int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """The part of the prepared cube that lies in the image, and its affine in the image's space.

    Padding needs no network.

    It is never smaller than a window, so that networks see the padding that they were trained with.
    """
    corners = np.array(np.meshgrid(*([-0.5, n - 0.5] for n in target.shape))).reshape(3, -1).T
    whole = prepared.cut.scan_affine
    places = nibabel.affines.apply_affine(np.linalg.inv(whole) @ target.affine, corners)
    size = np.array(prepared.array.shape[:3])
    low = np.clip(np.floor(places.min(axis=0) + 0.5).astype(int), 0, np.maximum(0, size - least))
    high = np.clip(np.ceil(places.max(axis=0) + 0.5).astype(int), low + least, size)
    affine = whole.copy()
    affine[:3, 3] += affine[:3, :3] @ low
    return prepared.array[tuple(slice(a, b) for a, b in zip(low, high, strict=True))], affine
