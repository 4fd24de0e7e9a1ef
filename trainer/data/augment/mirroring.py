"""Mirroring along the axes of a volume."""

from __future__ import annotations

from trainer.config.augment import MirrorConfig
from trainer.data.augment.streams import Stream


def draw(stream: Stream, config: MirrorConfig) -> tuple[int, ...]:
    """Draw the axes along which a sample is mirrored."""
    chances = (config.left_right, config.back_front, config.bottom_top)
    # All three are drawn in any case, so that asking for one axis leaves the others alone.
    mirrored = [stream.happens(chance) for chance in chances]
    return tuple(axis for axis, yes in enumerate(mirrored) if yes)
