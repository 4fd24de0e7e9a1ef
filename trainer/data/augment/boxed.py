"""A box of a changed volume, made of a box of the volume where the changes of the sample allow it.

Bit for bit the box of what `Drawn.applied` makes of the whole. Mirroring, shifts by whole voxels, scaling,
plain noise and cut-out allow it. Resampling, and the changes of one channel, which know its least value, its
spectrum or a random number for each voxel, need the whole volume.
"""

from __future__ import annotations

import numpy as np

from trainer.data.augment.drawing import Drawn
from trainer.data.augment.warping import warp

# (start, stop) along D, H, W, in voxels.
Box = tuple[tuple[int, int], ...]


def source(drawn: Drawn, box: Box) -> Box | None:
    """Return the box of the volume that a box of the changed volume is made of; None for all of it.

    An empty box is made of an empty one, whatever the changes.

    Args:
        drawn: the changes of the sample.
        box: of the changed volume.
    """
    mixes = drawn.affine is not None or drawn.elastic is not None or any(drawn.channels)
    if mixes and all(start < stop for start, stop in box):
        return None
    return tuple((int(p.min()), int(p.max()) + 1) if p.size else (0, 0) for p in _places(drawn, box))


def changed(drawn: Drawn, part: np.ndarray, box: Box) -> np.ndarray:
    """Return a box of the changed volume; call once, as `Drawn.applied`.

    Args:
        drawn: the changes of the sample.
        part: float32 (d, h, w, C), the volume's voxels in the box that `source` returns.
        box: of the changed volume.

    Returns:
        float32, of the shape of `box` and C, a new array.
    """
    places = [p - p.min() if p.size else p for p in _places(drawn, box)]
    volume: np.ndarray = part[np.ix_(*places)]
    whole = (*drawn.grid.shape, part.shape[3])
    volume = drawn.plain.toned(volume, whole, tuple(slice(start, stop) for start, stop in box))
    if drawn.cut_out is not None:
        volume = drawn.cut_out.applied(volume, [start for start, _ in box])
    return volume


def moved(drawn: Drawn, label_map: np.ndarray) -> np.ndarray:
    """Return a whole label map (D, H, W) as `Drawn.applied` moves it with its volume."""
    labels, _ = drawn.plain.moved(label_map, None)
    if drawn.mirrored:
        labels = np.flip(labels, drawn.mirrored)
    if drawn.affine is not None or drawn.elastic is not None:
        nothing = np.zeros(drawn.grid.shape, np.float32)
        _, resampled = warp([nothing], labels, drawn.grid, drawn.affine, drawn.elastic, [0.0])
        labels = labels if resampled is None else resampled
    return labels


def _places(drawn: Drawn, box: Box) -> list[np.ndarray]:
    """Return along each axis which voxels of the volume those of the box were."""
    by_axis = []
    for axis, ((start, stop), size) in enumerate(zip(box, drawn.grid.shape, strict=True)):
        places = np.arange(start, stop)
        if axis in drawn.mirrored:
            places = size - 1 - places
        by_axis.append(drawn.plain.sources(axis, places, size))
    return by_axis
