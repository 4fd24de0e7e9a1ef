"""Prepare one label map from the map files of an image, on the grid of its stored volume.

Each class's share of a voxel is resampled with the operator of the images, and cut out as its image was;
then a voxel takes the class with the largest share. For maps of label numbers the shares are 0 and 1 before
that, so that borders come out where a linear interpolation has them, smoother than nearest neighbours do.
The background has what the classes leave of 1; of equal shares the first class wins, the background first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import ndimage

from trainer.data.images import quality, reading
from trainer.data.images.findings import Finding, ImageFault, about, bad, warning
from trainer.data.images.recipe import MapRecipe, Xform
from trainer.data.images.resampling import Cut

# How far corners of the map's grid may lie from those of its image, in voxels: headers round.
_SAME_GRID = 0.1
# Shares are stored as bytes or halves of floats: so much may be missing or too much.
_ROUNDING = 0.01
# Whole numbers up to here are exact in float32, which images are read as.
_MOST_LABELS = 2**24
# How many unknown labels a finding names.
_MOST_NAMED = 8


def prepare(
    paths: Sequence[Path], cut: Cut, recipe: MapRecipe, xform: Xform | None = None
) -> tuple[np.ndarray, list[Finding]]:
    """Return the label map of one image.

    Args:
        paths: of 'probseg' one file for each class but the background, in their order; of 'dseg' the one.
        cut: how the volume was cut from its image.
        recipe: which classes there are.
        xform: which transform of a NIfTI header counts, as for the image.

    Returns:
        (D, H, W) uint8, places in `recipe.classes`, and warnings.

    Raises:
        ImageFault: a file cannot be read, lies on another grid than its image, holds what are no shares or
            label numbers, or a label that has no name.
    """
    shares: Iterator[tuple[int, np.ndarray]]
    if recipe.kind == "probseg":
        shares = ((number, cut.of(_share(path, cut, xform))) for number, path in enumerate(paths, start=1))
    else:
        shares = _shares_of_labels(_places(paths[0], cut, recipe, xform), cut)
    label_map = _largest(shares, cut.size)
    if not label_map.any():
        message = "its label map is all background inside the cube."
        return label_map, [warning("empty-map", message, "Check that it is the map of this image.")]
    return label_map, []


def labels_in(path: Path) -> list[int] | None:
    """Return the label numbers of a map file except 0; None where it is unreadable or has other values."""
    try:
        numbers = np.unique(reading.read(path).data)
    except ImageFault:
        return None
    whole = np.isfinite(numbers).all() and np.array_equal(numbers, np.rint(numbers))
    return [int(number) for number in numbers if number != 0] if whole else None


def _largest(shares: Iterable[tuple[int, np.ndarray]], size: int) -> np.ndarray:
    """Return the class with the largest share in every voxel, (size, size, size) uint8; 0 for the rest to 1.

    Args:
        shares: (class, its shares in the cube), by class; classes without any may be left out.
        size: edge of the cube.
    """
    best, total = np.zeros((2, size, size, size), np.float32)
    label_map = np.zeros((size,) * 3, np.uint8)
    for number, share in shares:
        better = share > best
        label_map[better] = number
        best[better] = share[better]
        total += share
    label_map[1 - total >= best] = 0
    return label_map


def _share(path: Path, cut: Cut, xform: Xform | None) -> np.ndarray:
    data = _on_grid(path, cut, xform)
    low, high = float(data.min()), float(data.max())
    if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):  # NaN too
        message = f"holds values from {low:.4g} to {high:.4g}; a share of a voxel is 0 to 1."
        cure = "Scale it (by 1/255, for instance), and set NaN to 0."
        raise _fault(path, bad("map-values", message, cure))
    return data


def _numbers(path: Path, cut: Cut, xform: Xform | None) -> np.ndarray:
    data = _on_grid(path, cut, xform)
    rounded = np.rint(data)
    off = ~((np.abs(data - rounded) <= 1e-3) & (np.abs(data) < _MOST_LABELS))  # NaN too
    if off.any():
        message = f"holds values that are not label numbers, such as {float(data[off].flat[0]):.4g}."
        cure = (
            "Make it again without interpolation (nearest neighbour); for shares of a voxel use "
            "--maps probseg."
        )
        raise _fault(path, bad("map-values", message, cure))
    return rounded.astype(np.int64)


def _places(path: Path, cut: Cut, recipe: MapRecipe, xform: Xform | None) -> np.ndarray:
    """Return the class of each voxel of a map of label numbers, (X, Y, Z) uint8."""
    numbers = _numbers(path, cut, xform)
    lowest = int(numbers.min())
    there = np.flatnonzero(np.bincount((numbers - lowest).ravel())) + lowest
    place = {0: 0} | dict(recipe.labels)
    unknown = [int(number) for number in there if int(number) not in place]
    if unknown:
        some = ", ".join(map(str, unknown[:_MOST_NAMED])) + (", ..." if len(unknown) > _MOST_NAMED else "")
        message = f"holds labels without a name: {some}."
        cure = (
            "Correct the map, or name them in the table or with --map-labels; "
            f"{unknown[0]}=background leaves one out."
        )
        raise _fault(path, bad("unknown-map-label", message, cure))
    by_number = np.zeros(int(there[-1]) - lowest + 1, np.uint8)
    by_number[there - lowest] = [place[int(number)] for number in there]
    return by_number[numbers - lowest]


def _shares_of_labels(places: np.ndarray, cut: Cut) -> Iterator[tuple[int, np.ndarray]]:
    for number, box in enumerate(ndimage.find_objects(places), start=1):
        if box is not None:
            yield number, cut.of((places[box] == number).astype(np.float32), tuple(s.start for s in box))


def _on_grid(path: Path, cut: Cut, xform: Xform | None) -> np.ndarray:
    """Return the voxels of a map, axes moved to RAS+, (X, Y, Z) float32; on the grid of its image."""
    try:
        stored = reading.read(path, xform=xform)
    except ImageFault as fault:
        raise _fault(path, fault.finding) from None
    for finding in quality.check_affine(stored):
        raise _fault(path, finding)
    for finding in stored.remarks:
        if finding.code == "scaling":  # of an image it makes no difference; of a map it is the values
            raise _fault(path, replace(finding, severity="bad"))
    data, affine = quality.to_canonical(stored)
    if data.shape != cut.shape:
        ours, its = (" x ".join(map(str, shape)) for shape in (data.shape, cut.shape))
        raise _fault(path, bad("map-grid", f"has {ours} voxels, but the image has {its}.", _RESLICE))
    apart = _corners_apart(affine, cut)
    if not apart <= _SAME_GRID * min(cut.voxel):
        message = f"lies up to {apart:.3g} mm away from the image (affine)."
        raise _fault(path, bad("map-grid", message, _RESLICE))
    return data


_RESLICE = "Resample the map to the grid of its image (label numbers with nearest neighbour)."


def _corners_apart(affine: np.ndarray, cut: Cut) -> float:
    """Return the largest distance in mm between the same corner of two grids of one shape."""
    corners = np.array(np.meshgrid(*((0, n - 1) for n in cut.shape), indexing="ij")).reshape(3, -1)
    difference = affine - cut.affine
    return float(np.linalg.norm(difference[:3, :3] @ corners + difference[:3, 3:], axis=0).max())


def _fault(path: Path, finding: Finding) -> ImageFault:
    return ImageFault(path, about(finding, f"its map {path.name}"))
