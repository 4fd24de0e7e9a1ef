"""Base of the changes of one channel, and the grid of the volume they are drawn for."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np


@dataclass(frozen=True)
class VolumeGrid:
    """A volume's grid.

    Attributes:
        shape: (D, H, W).
        voxel_mm: edges of a voxel along D, H, W, in mm.
    """

    shape: tuple[int, int, int]
    voxel_mm: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @property
    def step(self) -> np.ndarray:
        """Return the edges of a voxel, float64 (3,), in mm."""
        return np.array(self.voxel_mm, np.float64)

    @property
    def centre(self) -> np.ndarray:
        """Return the middle of the volume, float64 (3,), in voxels."""
        return (np.array(self.shape, np.float64) - 1) / 2


# By name of its section in `data.augment`, what draws a change from a stream, that section and the grid.
OF_CHANNELS: dict[str, Callable[[Any, Any, VolumeGrid], Change]] = {}
Draw = TypeVar("Draw", bound=Callable[..., Any])


def of_channels(section: str) -> Callable[[Draw], Draw]:
    """Return a decorator of what draws a section's change, for each channel by itself."""

    def registered(draw: Draw) -> Draw:
        OF_CHANNELS[section] = draw
        return draw

    return registered


class Change(abc.ABC):
    """A change of one channel, drawn; a dataclass whose fields say what was drawn."""

    @abc.abstractmethod
    def applied(self, channel: np.ndarray, background: float) -> np.ndarray:
        """Return the changed channel.

        Args:
            channel: float32 (D, H, W); left as it is.
            background: what the channel has where there is no signal.

        Returns:
            float32 (D, H, W), a new array or the channel itself.
        """

    def to_json(self) -> dict[str, Any]:
        """Return what was drawn: the fields that `repr` shows too."""
        fields = dataclasses.fields(cast(Any, self))
        return {field.name: getattr(self, field.name) for field in fields if field.repr}
