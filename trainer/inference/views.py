"""Test-time augmentation: a network is shown a volume in several ways, and its answers are averaged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.errors import ConfigError

# Whole voxels, so that nothing is interpolated: one step to each side along each axis.
_STEPS = ((1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1))


@dataclass(frozen=True)
class View:
    """One way to show a volume: shifted by whole voxels, then mirrored left to right."""

    mirrored: bool = False
    shift: tuple[int, int, int] = (0, 0, 0)

    def show(self, volumes: np.ndarray) -> np.ndarray:
        """Volumes (B, D, H, W, C) as this view has them; what comes in at an edge repeats it."""
        moved = volumes
        for axis, step in enumerate(self.shift, start=1):
            if step:
                places = np.clip(np.arange(moved.shape[axis]) - step, 0, moved.shape[axis] - 1)
                moved = np.take(moved, places, axis=axis)
        return moved[:, ::-1] if self.mirrored else moved

    def undo(self, outputs: np.ndarray) -> tuple[np.ndarray, tuple[slice, ...]]:
        """Outputs (B, D, H, W, K) about a shown volume as outputs about the volume itself.

        Returns:
            The outputs that there are, and the index of the voxels that they are about: those that a shift
            moved out of the volume are missing.
        """
        if self.mirrored:
            outputs = outputs[:, ::-1]
        there, here = [slice(None)], [slice(None)]
        for step, length in zip(self.shift, outputs.shape[1:4], strict=True):
            there.append(slice(max(0, step), length + min(0, step)))
            here.append(slice(max(0, -step), length - max(0, step)))
        return outputs[tuple(there)], tuple(here)


def views(*, flip: bool, shifts: int) -> tuple[View, ...]:
    """The volume as it is, `shifts` shifted copies, and the mirror image of each where `flip` is set.

    Raises:
        ConfigError: more shifts than there are.
    """
    if not 0 <= shifts <= len(_STEPS):
        raise ConfigError(f"--shifts {shifts}: 0 to {len(_STEPS)} shifted copies can be averaged.")
    moved = [(0, 0, 0), *_STEPS[:shifts]]
    return tuple(View(mirrored, step) for mirrored in ((False, True) if flip else (False,)) for step in moved)


def averaged(parts: list[tuple[np.ndarray, tuple[slice, ...]]]) -> np.ndarray:
    """The mean, at each voxel, of those views that are about it. The first must be about all."""
    total = np.array(parts[0][0], np.float32)
    if len(parts) == 1:
        return total
    count = np.ones((1, *total.shape[1:4], 1), np.float32)
    for outputs, index in parts[1:]:
        total[index] += outputs
        count[index] += 1
    return total / count
