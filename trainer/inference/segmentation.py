"""One image's label map: windows over the prepared volume, the way back, volumes in millilitres."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from trainer.data.images.preprocess import Prepared
from trainer.inference import answers, sliding, space
from trainer.inference.ensemble import Ensemble
from trainer.inference.sliding import Slabs, Windows
from trainer.inference.space import Grid


def segment(
    ensemble: Ensemble,
    prepared: Prepared,
    told: Mapping[str, Any],
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
        told: what is known of the person, by the names of covariates.
        windows: of the networks' size.
        image: the file whose geometry the map takes.
        written: where the map goes; its folder is made.

    Returns:
        `segmentation` (the path), the volume of each class but the background in ml as `ml_<class>`, measured
        on the image's own voxels, and for several members the standard deviation of each one's own volumes.
    """
    classes, members = ensemble.first.classes, len(ensemble.members)
    target = Grid.of_file(image)
    array, affine = _within(target, prepared, windows.size)
    d, h, w = array.shape[:3]
    source = Grid((d, h, w), affine)
    own = np.zeros((members, len(classes)))  # voxels of each member's own map

    def predict(some: np.ndarray) -> np.ndarray:
        """(M, B, d, h, w, K) as outputs (B, d, h, w, M * K)."""
        found = np.moveaxis(ensemble.ask(some, [told]), 0, -2)
        return found.reshape(*found.shape[:-2], members * len(classes))

    def averaged(slabs: Slabs) -> Slabs:
        for first, slab in slabs:
            each = slab.reshape(*slab.shape[:3], members, len(classes))
            if members > 1:
                for member in range(members):
                    labels = each[..., member, :].argmax(axis=-1)
                    own[member] += np.bincount(labels.ravel(), minlength=len(classes))
            yield first, each.mean(axis=-2)

    labels = space.labels_on(target, averaged(sliding.blend(array, predict, windows)), source)
    written.parent.mkdir(parents=True, exist_ok=True)
    space.write_label_map(written, labels, like=image)
    volumes = [round(ml, 3) for ml in space.volumes_ml(labels, target, len(classes))[1:]]
    said = [str(written), *volumes, *answers.spread(own[:, 1:] * source.voxel_ml)]
    return dict(zip(answers.columns("segmentation", classes, members > 1), said, strict=True))


def _within(target: Grid, prepared: Prepared, least: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The part of the prepared cube that lies in the image, and its affine: padding needs no network.

    It is never smaller than a window, so that networks see the padding that they were trained with.
    """
    corners = np.array(np.meshgrid(*([-0.5, n - 0.5] for n in target.shape))).reshape(3, -1).T
    places = nibabel.affines.apply_affine(np.linalg.inv(prepared.affine) @ target.affine, corners)
    size = np.array(prepared.array.shape[:3])
    low = np.clip(np.floor(places.min(axis=0) + 0.5).astype(int), 0, np.maximum(0, size - least))
    high = np.clip(np.ceil(places.max(axis=0) + 0.5).astype(int), low + least, size)
    affine = prepared.affine.copy()
    affine[:3, 3] += affine[:3, :3] @ low
    return prepared.array[tuple(slice(a, b) for a, b in zip(low, high, strict=True))], affine
