"""Occlusion: how much the score falls when a part of the volume is covered.

Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", ECCV 2014 (arXiv 1311.2901),
section 4.2, with cubes in place of squares.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import keras
import numpy as np

from trainer.errors import InputError
from trainer.explain import score
from trainer.explain.score import Target

Cube = tuple[slice, slice, slice]


def occlusion(
    model: keras.Model,
    volumes: np.ndarray,
    target: Target = None,
    *,
    patch: int = 8,
    stride: int = 4,
    fill: np.ndarray | float = 0.0,
    covariates: np.ndarray | None = None,
    batch: int = 8,
) -> np.ndarray:
    """Return the mean fall of the score over all cubes that cover a voxel: (B, D, H, W) float32, in units of
    the score.

    Positive where the network needs what is there; negative where it does better without.

    Args:
        volumes: (B, D, H, W, C).
        target: the class explained, or one for each volume; None for a network of one output.
        patch: edge of a cube in voxels.
        stride: voxels from one cube to the next, at most `patch`, so that each voxel is covered.
        fill: what covers, of any shape that broadcasts to `volumes`: the background, or the mean of a cohort.
        covariates: (B, k), for a model that takes [volume, covariates].
        batch: covered volumes that go through the network at once.

    Raises:
        ModelError: no such class.
        InputError: patch or stride do not fit.
    """
    score.check(model, target)
    if not 1 <= stride <= patch or patch > min(volumes.shape[1:4]):
        raise InputError(
            f"a patch of {patch} voxels every {stride} voxels cannot cover {volumes.shape[1:4]} voxels",
            cure="Choose a patch that fits into the volume, and a stride of 1 to the patch.",
        )
    volumes = np.asarray(volumes, np.float32)
    cover = np.broadcast_to(np.asarray(fill, np.float32), volumes.shape)
    whole = score.scores(model, volumes, target, covariates=covariates, batch=batch)
    of_each = score.per_volume(target, len(volumes))
    maps = []
    for k, volume in enumerate(volumes):
        class_number = None if of_each is None else int(of_each[k])
        own = None if covariates is None else covariates[k : k + 1]
        total, count = np.zeros(volume.shape[:3], np.float32), np.zeros(volume.shape[:3], np.float32)
        changing: list[Cube] = []
        for cube in cubes(volume.shape[:3], patch, stride):
            count[cube] += 1
            if not np.array_equal(volume[cube], cover[k][cube]):  # else the score stays, so 0 is added
                changing.append(cube)
        for first in range(0, len(changing), batch):
            part = changing[first : first + batch]
            covered = np.repeat(volume[None], len(part), axis=0)
            for copy, cube in zip(covered, part, strict=True):
                copy[cube] = cover[k][cube]
            repeated = None if own is None else np.repeat(own, len(part), axis=0)
            found = score.scores(model, covered, class_number, covariates=repeated, batch=batch)
            for cube, value in zip(part, found, strict=True):
                total[cube] += whole[k] - value
        maps.append(total / count)
    return np.stack(maps)


def cubes(shape: tuple[int, ...], patch: int, stride: int) -> Iterator[Cube]:
    """Yield cubes of `patch` voxels every `stride` voxels; the last along each axis ends where the volume
    does.
    """
    starts = [sorted({*range(0, side - patch, stride), side - patch}) for side in shape]
    for x, y, z in itertools.product(*starts):
        yield slice(x, x + patch), slice(y, y + patch), slice(z, z + patch)
