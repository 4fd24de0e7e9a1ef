"""Images of one person: tissue shares, a T1-weighted image, optionally a T2-weighted one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from trainer.data.images.linear.average_brain import FIELD_OF_VIEW
from trainer.data.phantom import disease
from trainer.data.phantom.disease import DEFAULT
from trainer.data.phantom.people import SITES, Person, stream
from trainer.data.phantom.template import Template

TISSUES = ("GM", "WM", "CSF")
CONTRASTS = ("T1w", "T2w")
"""Images that can be made of one person; the first always is."""

_T2_INTENSITY = (0.62, 0.48, 1.0)  # of grey matter, white matter and CSF: bright where T1w is dark
_T2_DETAIL = -0.5  # what T1w shows beyond its tissues, seen the other way round

# Scanners differ by site: gain, contrast between grey and white, noise as a share of white matter's signal.
_SITE = dict(zip(SITES, ((900.0, 1.0, 0.016), (640.0, 0.92, 0.022), (1150.0, 1.08, 0.019)), strict=True))
_BIAS_KNOTS = 3
_BIAS_SPREAD = 0.12
_TEXTURE_SPREAD = 0.025
_TEXTURE_MM = 2.5
_VISIBLE = 0.03  # smallest share of a voxel inside the skull that is imaged at all


@dataclass(frozen=True)
class Phantom:
    """One subject.

    Attributes:
        t1: (D, H, W) int16, arbitrary units, 0 outside the brain.
        tissue: (3, D, H, W) uint8, share of GM, WM, CSF in 1/255.
        moved: (D, H, W) float32, mm by which the disease has moved what is seen in a voxel, 0 outside
            the brain; of NC, by which AD of stage 1 would have.
        t2: like t1; None unless asked for.
    """

    t1: np.ndarray
    tissue: np.ndarray
    moved: np.ndarray
    t2: np.ndarray | None = None


def make(
    template: Template,
    person: Person,
    seed: int,
    gap: float,
    contrasts: Sequence[str] = ("T1w",),
    pattern: str = DEFAULT,
) -> Phantom:
    """Make one subject: a pure function of its arguments. A further contrast leaves all else unchanged."""
    where = coordinates(template, person, stream(seed, person.number, "anatomy"))
    moved = disease.displacement(template, disease.truth(person, seed, gap, pattern).recession)
    otherwise = disease.displacement(template, disease.otherwise(person, seed, gap, pattern).recession)
    inside, there, shares = look_up(template, where, moved)
    detail = _cubic(template.detail, there)
    effect = np.stack([_sampled(c, where[:, inside]) for c in moved - otherwise])
    t1 = np.zeros(inside.shape, np.int16)
    rng = stream(seed, person.number, "image")
    t1[inside] = _scan(template, person, template.intensity, shares, detail, inside, rng)
    tissue = np.zeros((3, *inside.shape), np.uint8)
    tissue[:, inside] = np.round(shares * 255).astype(np.uint8)
    distance = np.zeros(inside.shape, np.float32)
    distance[inside] = np.sqrt((effect**2).sum(axis=0)) * np.float32(template.voxel)
    t2 = None
    if "T2w" in contrasts:
        t2 = np.zeros(inside.shape, np.int16)
        rng = stream(seed, person.number, "T2w")
        detail = detail * np.float32(_T2_DETAIL)
        t2[inside] = _scan(template, person, _T2_INTENSITY, shares, detail, inside, rng)
    return Phantom(t1, tissue, distance, t2)


def look_up(
    template: Template, where: np.ndarray, moved: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tissue in each voxel of an image: the average brain's, displaced by age and disease.

    Args:
        where: (3, D, H, W) of `coordinates`.
        moved: (3, D, H, W) of `disease.displacement`.

    Returns:
        Which voxels are imaged, (D, H, W) bool; of these, where in the average brain their tissue is from,
        (3, voxels) float32, in voxels, and shares of GM, WM, CSF, (3, voxels).
    """
    skull = ndimage.map_coordinates(template.mask, where, order=1, mode="constant")
    inside = skull > _VISIBLE
    # Only what lies inside the skull, a fifth of the voxels, is worth the cubic interpolation.
    there = where[:, inside]
    there = there + np.stack([_sampled(c, there) for c in moved])
    return inside, there, _shares(_cubic(template.grey, there), _cubic(template.white, there), skull[inside])


def _cubic(part: np.ndarray, there: np.ndarray) -> np.ndarray:
    return ndimage.map_coordinates(part, there, order=3, mode="mirror", prefilter=False)


def _sampled(component: np.ndarray, there: np.ndarray) -> np.ndarray:
    return ndimage.map_coordinates(component, there, order=1, mode="nearest")


def _shares(grey: np.ndarray, white: np.ndarray, skull: np.ndarray) -> np.ndarray:
    """Return (3, voxels): CSF is what is in the skull and not tissue; atrophy leaves the skull as it is."""
    skull = np.clip(skull, 0, 1)
    grey, white = np.clip(grey, 0, 1), np.clip(white, 0, 1)
    excess = np.maximum((grey + white) / np.maximum(skull, 1e-6), 1)
    grey, white = grey / excess, white / excess
    return np.stack([grey, white, np.clip(skull - grey - white, 0, 1)])


def _scan(
    template: Template,
    person: Person,
    intensity: tuple[float, float, float],
    shares: np.ndarray,
    detail: np.ndarray,
    inside: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return (voxels,) int16: contrast, texture, bias field, Rician noise (Gudbjartsson and Patz, 1995)."""
    gain, contrast, noise = _SITE[person.site]
    gain *= np.exp(rng.normal(0, 0.12))
    contrast *= np.exp(rng.normal(0, 0.05))
    grey, white, csf = intensity
    grey = white - (white - grey) * contrast
    csf = csf * np.exp(rng.normal(0, 0.10))
    # Detail was learnt where tissue was; where there is CSF now, it has nothing to say.
    tissue = shares[0] + shares[1]
    signal = grey * shares[0] + white * shares[1] + csf * shares[2] + detail * tissue
    signal *= (1 + _TEXTURE_SPREAD * _texture(template, rng))[inside]
    bias = rng.normal(0, _BIAS_SPREAD, (_BIAS_KNOTS + 3,) * 3).astype(np.float32)
    signal *= np.exp(smooth_field(bias, template.size)[inside])
    noise *= np.exp(rng.normal(0, 0.15))
    real, imaginary = rng.standard_normal((2, signal.size), dtype=np.float32) * np.float32(noise)
    return np.round(np.hypot(signal + real, imaginary) * gain).astype(np.int16)


def _texture(template: Template, rng: np.random.Generator) -> np.ndarray:
    """Return (D, H, W) float32 smooth noise with unit spread."""
    white_noise = rng.standard_normal((template.size,) * 3, dtype=np.float32)
    smooth = ndimage.gaussian_filter(white_noise, _TEXTURE_MM / template.voxel, mode="wrap")
    return smooth / smooth.std()


# Differences of one head from the average: size, pose in the scanner, and smooth warps.


_MALE_LARGER = 0.035  # men's skulls hold about a tenth more: 3.5 % along each axis
_SIZE_SPREAD = 0.03
_AXIS_SPREAD = 0.02
_SHEAR_SPREAD = 0.015
_ROTATION_SPREAD = np.radians(3.5)
_SHIFT_SPREAD_MM = 2.5

# (knots along an edge, spread of a knot's displacement in mm). A cubic B-spline warp is one-to-one while
# displacement over knot spacing stays below 0.403, and the ratios of summed warps add up (Choi and Lee,
# Graphical Models 62, 2000).
_WARPS = ((7, 2.6), (14, 1.0))
_LARGEST_RATIO = 0.18


def coordinates(template: Template, person: Person, rng: np.random.Generator) -> np.ndarray:
    """Return where each voxel of this image lies in the average brain: (3, D, H, W) float32, in voxels."""
    n = template.size
    middle = (n - 1) / 2
    axes = [np.arange(n, dtype=np.float32) - np.float32(middle) for _ in range(3)]
    matrix, shift = _pose(person, rng)
    where = np.empty((3, n, n, n), np.float32)
    for row in range(3):
        constant = np.float32(shift[row] / template.voxel + middle)
        a, b, c = (np.float32(v) for v in matrix[row])
        where[row] = (a * axes[0] + constant)[:, None, None] + (b * axes[1])[:, None] + c * axes[2]
    for knots, spread in _WARPS:
        largest = _LARGEST_RATIO * FIELD_OF_VIEW / knots
        for row in range(3):
            moves = np.clip(rng.normal(0, spread, (knots + 3,) * 3), -largest, largest) / template.voxel
            where[row] += smooth_field(moves.astype(np.float32), n)
    return where


def smooth_field(control: np.ndarray, size: int) -> np.ndarray:
    """Return a cubic B-spline of a (k + 3)^3 control grid over the field of view: (size,)*3 float32."""
    basis = _basis(control.shape[0] - 3, size)
    # einsum without `optimize` never calls BLAS, whose threads could change the last bits.
    field = np.einsum("xi,ijk->xjk", basis, control)
    field = np.einsum("yj,xjk->xyk", basis, field)
    return np.einsum("zk,xyk->xyz", basis, field)


@functools.lru_cache(maxsize=8)
def _basis(spacings: int, size: int) -> np.ndarray:
    """Return (size, spacings + 3) float32: weight of each control point at each voxel centre."""
    position = (np.arange(size) + 0.5) * spacings / size
    cell = np.minimum(position.astype(int), spacings - 1)
    t = position - cell
    weights = np.stack(
        [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], axis=1
    ) / 6  # fmt: skip
    basis = np.zeros((size, spacings + 3), np.float32)
    np.put_along_axis(basis, cell[:, None] + np.arange(4), weights.astype(np.float32), axis=1)
    return basis


def _pose(person: Person, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the linear part (3, 3) and shift (3,) in mm of the map from this image to the average brain."""
    sex = _MALE_LARGER / 2 if person.sex == "M" else -_MALE_LARGER / 2
    size = np.exp(sex + rng.normal(0, _SIZE_SPREAD) + rng.normal(0, _AXIS_SPREAD, 3))
    shear = np.eye(3)
    shear[np.triu_indices(3, 1)] = rng.normal(0, _SHEAR_SPREAD, 3)
    linear = np.diag(1 / size)
    for axis, angle in enumerate(rng.normal(0, _ROTATION_SPREAD, 3)):
        linear = linear @ _rotation(axis, angle)
    return shear @ linear, rng.normal(0, _SHIFT_SPREAD_MM, 3)


def _rotation(axis: int, angle: float) -> np.ndarray:
    first, second = (axis + 1) % 3, (axis + 2) % 3
    matrix = np.eye(3)
    matrix[first, first] = matrix[second, second] = np.cos(angle)
    matrix[first, second], matrix[second, first] = -np.sin(angle), np.sin(angle)
    return matrix
