"""Common base of changes of one channel's intensities."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, cast

import numpy as np


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

    def told(self) -> dict[str, Any]:
        """Describe what was drawn: the fields that `repr` shows too."""
        fields = dataclasses.fields(cast(Any, self))
        return {field.name: getattr(self, field.name) for field in fields if field.repr}
