"""Affines, voxel indices to millimetres: whether they are usable, sheared, or differ from one another."""

from __future__ import annotations

from itertools import permutations, product

import nibabel
import numpy as np

Shape = tuple[int, int, int]

# Axes further off a right angle are a finding.
NOTABLE_SHEAR_DEGREES = 1.0
# Less is rounding of a header: over a head of 200 mm it moves no voxel by more than a third of a millimetre.
_ROUNDING_DEGREES = 0.1
# Gantries tilt by 30 degrees at most.
_LARGEST_SHEAR_DEGREES = 45.0
# Two transforms of one header agree within these: headers round, and programs write sizes with few digits.
_SAME_SIZE = 0.01
_SAME_DIRECTION_DEGREES = 1.0
_SAME_PLACE_VOXELS = 1.0


def fault(affine: np.ndarray) -> str:
    """Return what makes an affine (4, 4) unusable, such as 'is all zero'; empty where it is usable."""
    matrix = affine[:3, :3]
    if not np.isfinite(affine).all():
        return "has entries that are NaN or infinite"
    if not matrix.any():
        return "is all zero: it is singular"
    sizes = nibabel.affines.voxel_sizes(affine)
    if abs(np.linalg.det(matrix)) / max(float(np.prod(sizes)), 1e-300) < 1e-3:
        return "is singular: axes that point the same way, or voxels of size 0"
    if np.isnan(nibabel.io_orientation(affine)).any():
        return "maps no axis to an axis of the body"
    if (shear := shear_degrees(affine)) > _LARGEST_SHEAR_DEGREES:
        return f"has axes {shear:.0f} degrees off a right angle"
    return ""


def shear_degrees(affine: np.ndarray) -> float:
    """Return how far the two axes that are furthest from a right angle are off it."""
    axes = affine[:3, :3] / nibabel.affines.voxel_sizes(affine)
    cosines = np.abs(axes.T @ axes)[np.triu_indices(3, 1)]
    return float(np.rad2deg(np.arcsin(np.minimum(cosines, 1.0))).max())


def is_sheared(affine: np.ndarray) -> bool:
    """Whether the axes are further off a right angle than rounding explains."""
    return shear_degrees(affine) > _ROUNDING_DEGREES


def upright_grid(shape: Shape, affine: np.ndarray) -> tuple[Shape, np.ndarray]:
    """Return the grid with axes at right angles that holds a sheared one.

    Its axes are those of the sheared grid, made perpendicular in turn (Gram-Schmidt); of the six orders, the
    one is taken whose axes lie closest to those of the space. So slices tilted by a gantry keep the two
    axes that are perpendicular, and the head comes out as in slices without tilt.

    Args:
        shape: (X, Y, Z) of the sheared grid.
        affine: (4, 4) of it, axes in RAS+.
    """
    matrix = affine[:3, :3]
    axes = max((_perpendicular(matrix, order) for order in permutations(range(3))), key=np.trace)
    steps = np.diag(axes.T @ matrix)
    corners = np.array(list(product(*((0, length - 1) for length in shape)))).T
    places = axes.T @ matrix @ corners
    first, last = places.min(axis=1), places.max(axis=1)
    x, y, z = (int(np.ceil(length - 1e-6)) + 1 for length in (last - first) / steps)
    upright = np.eye(4)
    upright[:3, :3] = axes * steps
    upright[:3, 3] = affine[:3, 3] + axes @ first
    return (x, y, z), upright


def _perpendicular(matrix: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Return the columns of a matrix, (3, 3), made perpendicular and of length 1 in this order."""
    axes = np.zeros((3, 3))
    for column in order:
        rest = matrix[:, column] - axes @ (axes.T @ matrix[:, column])
        axes[:, column] = rest / np.linalg.norm(rest)
    return axes


def contradictions(
    affine: np.ndarray, other: np.ndarray, shape: Shape, *, same_space: bool
) -> tuple[str, ...]:
    """Return in what two usable affines of one image contradict each other.

    Args:
        affine: (4, 4).
        other: (4, 4).
        shape: (X, Y, Z) of the image.
        same_space: whether they lead to the same space, so that tilt and place must agree too.
    """
    words = []
    sizes, others = nibabel.affines.voxel_sizes(affine), nibabel.affines.voxel_sizes(other)
    if not same_sizes(sizes, others):
        words.append("other voxel sizes")
    axes, of_other = axis_codes(affine), axis_codes(other)
    if axes != of_other:
        mirrored = [
            set(pair) == {"L", "R"} for pair in zip(axes, of_other, strict=True) if pair[0] != pair[1]
        ]
        words.append("left and right exchanged" if mirrored == [True] else "other axes")
    elif np.linalg.det(affine[:3, :3]) * np.linalg.det(other[:3, :3]) < 0:
        words.append("one is the mirror image of the other")
    if words or not same_space:
        return tuple(words)
    if (angle := angle_degrees(affine, other)) > _SAME_DIRECTION_DEGREES:
        words.append(f"tilted against each other by {angle:.1f} degrees")
    middle = (np.array(shape) - 1) / 2
    here, there = (nibabel.affines.apply_affine(each, middle) for each in (affine, other))
    if (apart := float(np.linalg.norm(here - there))) > _SAME_PLACE_VOXELS * float(sizes.max()):
        words.append(f"{apart:.3g} mm apart")
    return tuple(words)


def same_sizes(sizes: np.ndarray, others: np.ndarray) -> bool:
    """Whether voxel sizes (3,) are the same but for rounding."""
    return bool(np.allclose(sizes, others, rtol=_SAME_SIZE, atol=0))


def angle_degrees(affine: np.ndarray, other: np.ndarray) -> float:
    """Return the angle between the directions of two affines, the parts that are neither size nor shear."""
    turns = []
    for each in (affine, other):
        u, _, v = np.linalg.svd(each[:3, :3] / nibabel.affines.voxel_sizes(each))
        turns.append(u @ v)
    cosine = (np.trace(turns[0].T @ turns[1]) - 1) / 2
    return float(np.rad2deg(np.arccos(np.clip(cosine, -1.0, 1.0))))


def axis_codes(affine: np.ndarray) -> str:
    """Return where the axes of a usable affine point, such as 'RAS'."""
    return "".join(map(str, nibabel.aff2axcodes(affine)))


def sizes_text(affine: np.ndarray) -> str:
    """Format the voxel sizes of an affine, such as '1 x 1 x 1.2 mm'."""
    return " x ".join(f"{size:.4g}" for size in nibabel.affines.voxel_sizes(affine)) + " mm"
