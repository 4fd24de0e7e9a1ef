"""Tissue volumes of a registered brain: three classes of brightness, with the average brain's as priors.

Expectation maximisation of Gaussians whose prior probabilities differ from voxel to voxel, after
J. Ashburner and K. Friston, NeuroImage 26, 2005, 839; without their deformation and bias field.
"""

from __future__ import annotations

import functools

import numpy as np
from scipy import ndimage

from trainer.data.images.linear import average_brain
from trainer.data.images.linear.average_brain import FIELD_OF_VIEW

NAMES = ("grey", "white", "csf")
"""As in tables of tissue volumes: grey matter, white matter, cerebrospinal fluid."""

# One brain's tissue lies elsewhere than the average's: its shares are blurred (mm), and none is certain.
_BLUR_MM, _LEAST_SHARE = 3.0, 0.02
_MOST_ROUNDS, _SETTLED = 60, 1e-4
_FEWEST = 1000


def volumes_ml(scan: np.ndarray, brain: np.ndarray, world: np.ndarray) -> dict[str, float] | None:
    """Return mL of each of NAMES in the scan's own space; None where three classes cannot be told apart.

    They are looked for in the average brain's outline, which has the fluid about a shrunken brain, too.

    Args:
        scan: (SIZE, SIZE, SIZE) on the grid of the average brain, without bias field; NaN outside of it.
        brain: bool on that grid, the scan's.
        world: (4, 4) from mm of the scan to mm of the average brain.
    """
    inside = (brain | (average_brain.of_size(scan.shape[0]).mask > 0.5)) & np.isfinite(scan)
    values = scan[inside].astype(np.float64)
    if len(values) < _FEWEST or not np.ptp(values) > 0:
        return None
    fitted = _fitted(values, _priors(scan.shape[0])[:, inside])
    if fitted is None:
        return None
    voxel_ml = (FIELD_OF_VIEW / scan.shape[0]) ** 3 / 1000 / abs(float(np.linalg.det(world[:3, :3])))
    amounts = fitted.sum(axis=1) * voxel_ml
    return {name: round(float(amount), 3) for name, amount in zip(NAMES, amounts, strict=True)}


@functools.lru_cache(maxsize=2)
def _priors(size: int) -> np.ndarray:
    """Return shares of grey matter, white matter and CSF, (3, size, size, size), which add up to 1."""
    average = average_brain.of_size(size)
    csf = np.clip(1 - average.grey - average.white, 0, 1)
    blur = _BLUR_MM / (FIELD_OF_VIEW / size)
    shares = np.stack([ndimage.gaussian_filter(share, blur) for share in (average.grey, average.white, csf)])
    shares = np.maximum(shares, _LEAST_SHARE)
    return np.asarray(shares / shares.sum(axis=0), np.float32)


def _fitted(values: np.ndarray, shares: np.ndarray) -> np.ndarray | None:
    """Return the probabilities of the classes, (3, voxels); None where their order is not that of T1."""
    probable = shares.astype(np.float64)
    mixing, before = np.ones(len(values)), -np.inf
    for _ in range(_MOST_ROUNDS):
        total = probable.sum(axis=1)
        if not total.min() > 1:
            return None
        means = probable @ values / total
        spreads = (probable * (values - means[:, None]) ** 2).sum(axis=1) / total
        if not spreads.min() > 0:
            return None
        weights = total / (shares / mixing).sum(axis=1)
        mixing = weights @ shares
        density = np.exp(-0.5 * (values - means[:, None]) ** 2 / spreads[:, None]) / np.sqrt(spreads)[:, None]
        mixed = weights[:, None] * shares / mixing * density
        likely = mixed.sum(axis=0) + 1e-300
        probable = mixed / likely
        now = float(np.log(likely).mean())
        if now - before < _SETTLED:
            break
        before = now
    grey, white, csf = means
    return probable if csf < grey < white else None
