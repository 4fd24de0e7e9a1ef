"""The box of each volume, or patch, that one rank reads where a strategy divides space.

Which bytes are read for a box, and why augmentation needs the whole: docs/decisions/0052-divided-networks.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from trainer.data.shards.shards import Origin
from trainer.errors import ConfigError

__all__ = ["Slab", "Space"]

# (start, stop) along depth, height and width, in voxels.
Space = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Slab:
    """A box of what the network takes, smaller than the whole.

    Attributes:
        ranges: (start, stop) along D, H, W, in voxels. With an empty range nothing of volumes is read.
        whole: (D, H, W, C) of the volume or patch.
    """

    ranges: Space
    whole: tuple[int, ...]

    @classmethod
    def of(cls, space: Space | None, whole: tuple[int, ...]) -> Slab | None:
        """Return the box of a volume or patch (D, H, W, C); None for all of it.

        Raises:
            ConfigError: it does not lie in there.
        """
        if space is None:
            return None
        sizes = whole[:3]
        if len(space) != 3 or not all(
            0 <= start <= stop <= size for (start, stop), size in zip(space, sizes, strict=True)
        ):
            raise ConfigError(
                f"train.strategy: the strategy has this rank read {space} of inputs of {sizes} voxels.",
                cure="`Share.space` is (start, stop) along depth, height and width, within the patch or "
                "volume; None for all of it.",
                key="train.strategy",
            )
        is_whole = all(ends == (0, size) for ends, size in zip(space, sizes, strict=True))
        return None if is_whole else cls(space, whole)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (d, h, w, C) of the box."""
        return (*(stop - start for start, stop in self.ranges), *self.whole[3:])

    @property
    def is_empty(self) -> bool:
        """Return whether it has no voxel."""
        return not prod(self.shape)

    @property
    def part(self) -> tuple[slice, ...]:
        """Return which part of the whole the box is."""
        return tuple(slice(start, stop) for start, stop in self.ranges)

    def origin(self, of_whole: Origin | None = None) -> Origin:
        """Return where the box begins in a volume, in voxels, given where its patch begins."""
        d, h, w = (
            first + start for first, (start, _) in zip(of_whole or (0, 0, 0), self.ranges, strict=True)
        )
        return d, h, w
