"""The mean map of a class, and whether its space is that of the MNI brain."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import ndimage

from trainer.data.images import foreground
from trainer.explain.regions import onto

_CENTRE = (0.5, -16.5, 5.5)  # of the MNI152 brain, in mm
MNI_OVERLAP = 0.8
"""Least Dice overlap of the mean foreground with the MNI152 brain to call a space MNI-like. Images in a
scanner's space, or with a skull, stay below."""


MOSTLY_OUTSIDE = 0.5
"""Share of a map outside the head above which pages say so."""


def head(volume: np.ndarray) -> np.ndarray:
    """Return bool (D, H, W): the foreground of a volume (D, H, W) with its holes, such as ventricles."""
    return ndimage.binary_fill_holes(foreground.mask(volume))


def share_outside(values: np.ndarray, inside: np.ndarray) -> float | None:
    """Return the share, 0 to 1, of a map's absolute values (D, H, W) outside a mask; None: it is empty."""
    sizes = np.abs(values.astype(np.float64))
    whole = float(sizes.sum())
    return float(sizes[~inside].sum()) / whole if whole else None


@dataclass
class _Sums:
    count: int
    maps: np.ndarray
    volumes: np.ndarray


@dataclass
class ClassMaps:
    """Running sums of maps and volumes per class, in two spaces: millimetres, and the stored cube.

    Attributes:
        shape: (D, H, W) of the stored volumes.
        voxel_size: mm along D, H, W.
    """

    shape: tuple[int, int, int]
    voxel_size: tuple[float, float, float]
    _placed: dict[str, _Sums] = field(default_factory=dict)
    _stored: dict[str, _Sums] = field(default_factory=dict)
    _inside: np.ndarray | None = None

    @property
    def affine(self) -> np.ndarray:
        """(4, 4) of the cube about the MNI brain's centre on which maps are averaged in millimetres."""
        made = np.diag([*self.voxel_size, 1.0])
        made[:3, 3] = np.array(_CENTRE) - (np.array(self.shape) - 1) / 2 * np.array(self.voxel_size)
        return made

    def add(
        self, label: str, values: np.ndarray, volume: np.ndarray, affine: np.ndarray, inside: np.ndarray
    ) -> None:
        """Count a subject's map, volume and `head`, each (D, H, W); the volume has `affine`."""
        low = volume.min()
        placed = [onto(array, affine, self.shape, self.affine) for array in (values, volume - low)]
        self._add(self._placed, label, placed[0], placed[1] + low)
        self._add(self._stored, label, values, volume)
        here = onto(inside.astype(np.float32), affine, self.shape, self.affine)
        self._inside = here if self._inside is None else self._inside + here

    def _add(self, sums: dict[str, _Sums], label: str, values: np.ndarray, volume: np.ndarray) -> None:
        if label not in sums:
            sums[label] = _Sums(0, np.zeros(self.shape, np.float64), np.zeros(self.shape, np.float64))
        sums[label].count += 1
        sums[label].maps += values
        sums[label].volumes += volume

    def overlap(self) -> float:
        """Return Dice overlap of the foreground of most subjects with the MNI152 brain, 0 to 1."""
        from nilearn.datasets import load_mni152_brain_mask

        if self._inside is None:
            return 0.0
        brain = load_mni152_brain_mask(resolution=2)
        mask = onto(np.asarray(brain.dataobj, np.float32), np.asarray(brain.affine), self.shape, self.affine)
        count = sum(sums.count for sums in self._placed.values())
        ours, theirs = self._inside > count / 2, mask > 0.5
        return float(2 * (ours & theirs).sum() / max(1, ours.sum() + theirs.sum()))

    def means(self, *, mni: bool) -> dict[str, tuple[int, np.ndarray, np.ndarray]]:
        """Return, per class, the number of subjects, the mean map and the mean volume, both (D, H, W)
        float32.

        Args:
            mni: averaged in millimetres, on the grid of `affine`; else voxel by voxel of the stored cubes,
                which lie about each subject's own brain.
        """
        sums = self._placed if mni else self._stored
        return {
            label: (s.count, (s.maps / s.count).astype(np.float32), (s.volumes / s.count).astype(np.float32))
            for label, s in sums.items()
        }
