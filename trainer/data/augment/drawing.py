"""Draw the changes of one sample, then apply them. The same numbers on any rank or thread.

The order is that of a scan: the head (its place and shape), what moves it, how sharp it is seen, the coil's
shading, noise; then what is done to the image afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.config import AugmentConfig
from trainer.config.augment import MirrorConfig
from trainer.data.augment import affine, cut_out, elastic, intensity, kspace
from trainer.data.augment.affine import Affine
from trainer.data.augment.change import OF_CHANNELS, Change, VolumeGrid
from trainer.data.augment.cut_out import CutOut
from trainer.data.augment.elastic import Elastic
from trainer.data.augment.plain import Plain
from trainer.data.augment.streams import Key, Stream
from trainer.data.augment.warping import warp

# Whose changes of one channel's intensities are drawn; applied in the order of the configuration.
_MODULES = (kspace, intensity)
_OF_CHANNELS = {name: OF_CHANNELS[name] for name in AugmentConfig.model_fields if name in OF_CHANNELS}


@dataclass(frozen=True)
class Drawn:
    """All changes of one sample.

    Attributes:
        grid: of its volume.
        plain: the plain changes; their noise can be applied once only.
        mirrored: axes along which it is mirrored.
        affine: or None.
        elastic: or None.
        channels: for each channel the changes of its intensities by name, in the order of application.
        cut_out: or None.
    """

    grid: VolumeGrid
    plain: Plain
    mirrored: tuple[int, ...]
    affine: Affine | None
    elastic: Elastic | None
    channels: tuple[dict[str, Change], ...]
    cut_out: CutOut | None

    def to_json(self) -> dict[str, Any]:
        """Return the changes that happen, as a JSON object; lists have an entry for each channel."""
        drawn: dict[str, Any] = self.plain.to_json()
        if self.mirrored:
            drawn["mirror"] = list(self.mirrored)
        if self.affine is not None:
            drawn["affine"] = vars(self.affine)
        if self.elastic is not None:
            kept = ("spacing", "largest", "control")
            drawn["elastic"] = {name: getattr(self.elastic, name) for name in kept}
        for name in _OF_CHANNELS:
            if any(name in changes for changes in self.channels):
                drawn[name] = [
                    changes[name].to_json() if name in changes else None for changes in self.channels
                ]
        if self.cut_out is not None:
            drawn["cut_out"] = vars(self.cut_out)
        return drawn

    def applied(
        self, volume: np.ndarray, label_map: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the volume and its label map, changed; see `trainer.data.augment.augment`."""
        volume, label_map = self.plain.moved(volume, label_map)
        if self.mirrored:
            volume = np.flip(volume, self.mirrored)
            label_map = None if label_map is None else np.flip(label_map, self.mirrored)
        if self.affine is not None or self.elastic is not None or any(self.channels):
            volume, label_map = self._by_channel(volume, label_map)
        volume = self.plain.toned(volume)
        if self.cut_out is not None:
            volume = self.cut_out.applied(volume)
        return volume, label_map

    def _by_channel(
        self, volume: np.ndarray, label_map: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Resample all channels alike, and change the intensity of each by itself."""
        channels = [np.ascontiguousarray(volume[..., number]) for number in range(volume.shape[3])]
        backgrounds = [float(channel.min()) for channel in channels]
        if self.affine is not None or self.elastic is not None:
            channels, label_map = warp(channels, label_map, self.grid, self.affine, self.elastic, backgrounds)
        for number, (changes, background) in enumerate(zip(self.channels, backgrounds, strict=True)):
            for change in changes.values():
                channels[number] = change.applied(channels[number], background)
        return channels[0][..., None] if len(channels) == 1 else np.stack(channels, axis=-1), label_map


def draw(
    config: AugmentConfig,
    seed: int,
    epoch: int,
    sample: int,
    shape: tuple[int, ...],
    voxel_mm: tuple[float, float, float],
) -> Drawn:
    """Draw the changes of a sample.

    Every change draws from a stream of its own, named after it, so that switching one on or off, or changing
    its ranges, leaves the others' numbers alone.

    Args:
        config: which changes, and how large.
        seed: of the run.
        epoch: from 0.
        sample: its number.
        shape: (D, H, W, C) of the volume.
        voxel_mm: edges of a voxel along D, H, W, in mm.
    """
    grid = VolumeGrid((shape[0], shape[1], shape[2]), voxel_mm)

    def chosen(name: str, channel: int = 0) -> Stream | None:
        """Return the stream of a change, where the change happens."""
        probability = getattr(config, name).probability
        if not probability:
            return None
        stream = Key(seed, epoch, sample, name, channel).open()
        return stream if stream.happens(probability) else None

    moved, bent, cut = chosen("affine"), chosen("elastic"), chosen("cut_out")
    mirror = config.mirror
    mirrors = any((mirror.left_right, mirror.back_front, mirror.bottom_top))
    return Drawn(
        grid,
        Plain(config, seed, epoch, sample),
        _mirrored(Key(seed, epoch, sample, "mirror").open(), mirror) if mirrors else (),
        affine.draw(moved, config.affine) if moved else None,
        elastic.draw(bent, config.elastic, grid) if bent else None,
        tuple(
            {
                name: made(stream, getattr(config, name), grid)
                for name, made in _OF_CHANNELS.items()
                if (stream := chosen(name, channel)) is not None
            }
            for channel in range(shape[3])
        ),
        cut_out.draw(cut, config.cut_out, grid) if cut else None,
    )


def _mirrored(stream: Stream, config: MirrorConfig) -> tuple[int, ...]:
    """Draw the axes along which a sample is mirrored."""
    # All three are drawn in any case, so that asking for one axis leaves the others alone.
    chances = (config.left_right, config.back_front, config.bottom_top)
    mirrored = [stream.happens(chance) for chance in chances]
    return tuple(axis for axis, yes in enumerate(mirrored) if yes)
