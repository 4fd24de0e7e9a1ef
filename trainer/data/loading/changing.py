"""Read a training sample and change it at random: the whole of it, or as much as a slab needs."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from trainer.data.augment import boxed
from trainer.data.augment.drawing import Drawn
from trainer.data.loading.reader_time import ReaderTime
from trainer.data.loading.slabs import Slab
from trainer.data.shards.thread_memory import scratch

# Fills an array with a box of a volume, or with all of it, and reads its target.
Read = Callable[[np.ndarray, Slab | None], None]


def read_changed(
    read: Read, drawn: Drawn, x: np.ndarray, label_map: np.ndarray | None, slab: Slab | None
) -> float:
    """Fill `x` with a volume, or with its slab, as changed, and move the label map with it.

    The slab is bit for bit that of the whole changed volume. Where the changes need the whole volume, all of
    it is read, changed and cropped.

    Args:
        read: reads the volume, and its label map into `label_map`.
        drawn: the changes.
        x: float32 (D, H, W, C), or the shape of the slab; filled.
        label_map: uint8 (D, H, W), or None.
        slab: what is wanted; None for all.

    Returns:
        Seconds of it that were spent reading.
    """
    box = None if slab is None else boxed.source(drawn, slab.ranges)
    volume, taken = x, None
    if slab is not None:
        taken = None if box is None else Slab(box, slab.whole)
        volume = _memory(slab.whole if taken is None else taken.shape)
    began = ReaderTime.now()
    read(volume, taken)
    reading_s = ReaderTime.now() - began
    if slab is None or box is None:
        changed, moved = drawn.applied(volume, label_map)
        changed = changed if slab is None else changed[slab.part]
    else:
        changed = boxed.changed(drawn, volume, slab.ranges)
        moved = None if label_map is None else boxed.moved(drawn, label_map)
    if changed is not x:
        x[...] = changed
    if label_map is not None and moved is not label_map:
        label_map[...] = moved
    return reading_s


def _memory(shape: tuple[int, ...]) -> np.ndarray:
    """Return uninitialised float32 memory of this shape, valid until the thread asks again."""
    return scratch("unchanged", prod(shape) * 4).view(np.float32).reshape(shape)
