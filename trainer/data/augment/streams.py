"""Random numbers of one change of one sample: a stream of its own, so that no change affects another's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Keeps these random numbers apart from those of other uses of the same seed.
AUGMENTATION = 0x617567


class Key(NamedTuple):
    """Key of a stream: the run's seed, the epoch, the sample, the name of the change, the channel."""

    seed: int
    epoch: int
    sample: int
    name: str
    channel: int = 0

    def open(self) -> Stream:
        """Return the stream, from its beginning."""
        return Stream(self)


class Stream:
    """Random numbers made of Philox's raw words.

    Not of numpy's distributions: numpy keeps bit streams for ever (NEP 19), but not what its distributions
    make of them, and a resumed run may meet a newer numpy.

    Attributes:
        key: whose it is.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        own = (key.channel, *key.name.encode())
        entropy = [AUGMENTATION, key.seed, key.epoch, key.sample]
        self._words = np.random.Philox(np.random.SeedSequence(entropy, spawn_key=own))

    def happens(self, probability: float) -> bool:
        """Return True in that share of the streams."""
        return bool(self.uniform(0, 1) < probability)

    def uniform(self, low: float, high: float) -> float:
        """Return a number, uniform between `low` and `high`."""
        return float(self.uniforms(low, high, 1)[0])

    def uniforms(self, low: float, high: float, count: int) -> np.ndarray:
        """Return numbers, uniform from `low` to below `high`, float64 (count,)."""
        share = (self._words.random_raw(count) >> np.uint64(11)) * 2.0**-53
        return low + (high - low) * share

    def whole(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included."""
        return min(low + int(self.uniform(0, 1) * (high - low + 1)), high)

    def normals(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return standard normal numbers, float32 of this shape (Box and Muller 1958), none beyond 5.8.

        A pair from each raw word, 24 bits for the radius and 24 for the angle.
        """
        size = int(np.prod(shape))
        words = self._words.random_raw((size + 1) // 2)
        radius = ((words >> np.uint64(40)).astype(np.float32) + np.float32(1)) * np.float32(2.0**-24)
        np.log(radius, out=radius)
        radius *= np.float32(-2)
        np.sqrt(radius, out=radius)
        angle = ((words >> np.uint64(8)) & np.uint64(0xFFFFFF)).astype(np.float32)
        angle *= np.float32(2 * np.pi * 2.0**-24)
        made = np.empty((2, len(words)), np.float32)
        np.cos(angle, out=made[0])
        np.sin(angle, out=made[1])
        made *= radius
        return made.reshape(-1)[:size].reshape(shape)
