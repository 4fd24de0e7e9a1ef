"""The plain changes: mirrored, moved by whole voxels, scaled in intensity, overlaid with noise.

They came first and draw from one stream of numpy's Generator; runs made with them are repeated exactly.
"""

from __future__ import annotations

import numpy as np

from trainer.config import AugmentConfig
from trainer.data.augment.streams import AUGMENTATION


class Plain:
    """The plain changes of one sample, drawn.

    Attributes:
        mirrored: whether left and right change places.
        steps: int (3,), shift along D, H, W in voxels.
        factor: of all intensities.
    """

    def __init__(self, config: AugmentConfig, seed: int, epoch: int, sample: int) -> None:
        self._config = config
        sequence = np.random.SeedSequence([AUGMENTATION, seed, epoch, sample])
        self._random = np.random.Generator(np.random.Philox(sequence))
        # All numbers are drawn whatever the configuration, so that adding one change leaves the others alone.
        mirrored = self._random.random() < 0.5
        shifts = self._random.uniform(-1, 1, size=3)
        self.factor = 1 + config.scale * self._random.uniform(-1, 1)
        self.mirrored = bool(config.flip and mirrored)
        self.steps = (
            np.rint(shifts * (config.shift + 0.499)).astype(int) if config.shift else np.zeros(3, int)
        )

    def to_json(self) -> dict[str, object]:
        """Return what was drawn, of the enabled changes."""
        drawn: dict[str, object] = {}
        if self._config.flip:
            drawn["flip"] = self.mirrored
        if self._config.shift:
            drawn["shift"] = self.steps.tolist()
        if self._config.scale:
            drawn["scale"] = self.factor
        if self._config.noise:
            drawn["noise"] = self._config.noise
        return drawn

    def moved(self, volume: np.ndarray, label_map: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Mirror and shift; the label map with its volume."""
        if self.mirrored:
            volume = volume[::-1]
            label_map = None if label_map is None else label_map[::-1]
        if self._config.shift:
            volume = _shifted(volume, self.steps)
            label_map = None if label_map is None else _shifted(label_map, self.steps)
        return volume, label_map

    def sources(self, axis: int, places: np.ndarray, size: int) -> np.ndarray:
        """Return which voxels along an axis of `size` voxels those at `places` were before `moved`."""
        if self._config.shift:
            places = np.clip(places - self.steps[axis], 0, size - 1)
        return size - 1 - places if self.mirrored and axis == 0 else places

    def toned(
        self,
        volume: np.ndarray,
        whole: tuple[int, ...] | None = None,
        part: tuple[slice, ...] = (),
    ) -> np.ndarray:
        """Scale, and add noise; call once, since each call draws new noise.

        Args:
            volume: float32 (D, H, W, C), or a part of one.
            whole: shape of the volume that it is a part of: noise is drawn for all of it.
            part: which part it is.
        """
        if self._config.scale:
            volume = volume * np.float32(self.factor)
        if self._config.noise:
            noise = self._random.standard_normal(whole or volume.shape, np.float32)[part]
            volume = volume + np.float32(self._config.noise) * noise
        return volume


def _shifted(volume: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Shift by whole voxels, with replicated edges, which are background in a cropped brain."""
    sources = [
        np.clip(np.arange(size) - shift, 0, size - 1)
        for size, shift in zip(volume.shape[:3], shifts, strict=True)
    ]
    return volume[np.ix_(*sources)]
