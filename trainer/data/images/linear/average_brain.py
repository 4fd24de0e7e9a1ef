"""The average brain that scans are registered to and phantoms are made from.

Source: ICBM 2009a nonlinear symmetric, 1 mm, skull-stripped, as shipped inside nilearn (Fonov et al.,
NeuroImage 47, 2009, S102). It lies in MNI space: RAS+, in mm.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
from scipy import ndimage

from trainer.errors import CingulumError

FIELD_OF_VIEW = 212.0
"""Edge in mm of the cube that holds it, whatever the number of voxels."""

CENTRE = (0.5, -16.5, 5.5)
"""MNI coordinates in mm of the cube's centre: the middle of the brain, on a boundary between 1 mm voxels."""


@dataclass(frozen=True)
class AverageBrain:
    """The average brain on a grid of size^3 voxels; arrays are (D, H, W) float32.

    Attributes:
        affine: (4, 4) float64, voxel indices to mm.
        t1: T1-weighted intensity, 0 outside the brain.
        mask: share of each voxel inside the brain, CSF of its surface included, 0 to 1.
        grey, white: tissue shares, 0 to 1.
    """

    affine: np.ndarray
    t1: np.ndarray
    mask: np.ndarray
    grey: np.ndarray
    white: np.ndarray


@functools.lru_cache(maxsize=8)
def of_size(size: int) -> AverageBrain:
    """Return the average brain on `size`^3 voxels over the field of view, kept for the next call.

    Raises:
        CingulumError: nilearn, or its average brain, is not installed.
    """
    t1, grey, white = (full_resolution(kind) for kind in ("t1", "gm", "wm"))
    whole = (t1, inside(t1, grey, white), grey, white)
    return AverageBrain(affine_of(size), *(on_grid(volume, size) for volume in whole))


def affine_of(size: int) -> np.ndarray:
    """Return the voxel-to-mm matrix (4, 4), RAS, of `size`^3 voxels over the field of view."""
    voxel = FIELD_OF_VIEW / size
    affine = np.diag([voxel, voxel, voxel, 1.0])
    affine[:3, 3] = np.array(CENTRE) - FIELD_OF_VIEW / 2 + voxel / 2
    return affine


def cube_affine(size: int, spacing: float) -> np.ndarray:
    """Return the voxel-to-mm matrix (4, 4), RAS, of `size`^3 voxels of `spacing` mm about the centre."""
    affine = np.diag([spacing, spacing, spacing, 1.0])
    affine[:3, 3] = np.array(CENTRE) - size * spacing / 2 + spacing / 2
    return affine


def inside(t1: np.ndarray, grey: np.ndarray, white: np.ndarray) -> np.ndarray:
    """Return where the brain is, float32 of 0 and 1, from its volumes at full resolution."""
    return ((t1 > 0) | (grey + white > 0.08)).astype(np.float32)


def full_resolution(kind: str) -> np.ndarray:
    """Return a volume of it, 't1', 'gm' or 'wm': (212, 212, 212) float32 in 0..1, 1 mm, centred on CENTRE.

    Raises:
        CingulumError: nilearn, or its average brain, is not installed.
    """
    spec = importlib.util.find_spec("nilearn")
    if spec is None or not spec.submodule_search_locations:
        raise CingulumError(
            "nilearn, which contains the average brain, is not installed", cure="pip install 'nilearn>=0.12'"
        )
    name = f"mni_icbm152_{kind}_tal_nlin_sym_09a_converted.nii.gz"
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / name
    if not path.is_file():
        raise CingulumError(
            f"the installed nilearn lacks {name}", cure="pip install --force-reinstall 'nilearn>=0.12'"
        )
    image = nibabel.nifti1.load(path)
    values = np.asarray(image.dataobj, dtype=np.float32) / 255
    edge = int(FIELD_OF_VIEW)
    first = np.round(np.array(CENTRE) - edge / 2 + 0.5 - image.affine[:3, 3]).astype(int)
    canvas = np.zeros((edge, edge, edge), np.float32)
    into = tuple(slice(max(0, -f), min(edge, n - f)) for f, n in zip(first, values.shape, strict=True))
    out_of = tuple(slice(max(0, f), min(n, f + edge)) for f, n in zip(first, values.shape, strict=True))
    canvas[into] = values[out_of]
    return canvas


def on_grid(volume: np.ndarray, size: int) -> np.ndarray:
    """Resample a cube to `size`^3 voxels of the same space, smoothed first where voxels grow."""
    step = volume.shape[0] / size
    if step > 1:
        volume = ndimage.gaussian_filter(volume, 0.42 * np.sqrt(step**2 - 1), mode="constant")
    return ndimage.affine_transform(
        volume, np.full(3, step), offset=(step - 1) / 2, output_shape=(size,) * 3, order=1, mode="constant"
    )
