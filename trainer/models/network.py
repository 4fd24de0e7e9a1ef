"""What the registry knows of one network."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

Function = Callable[..., keras.Model]

# Four halvings of 16 voxels leave one: below that a stage would only see its own padding.
SMALLEST = 16


@dataclass(frozen=True)
class Network:
    """A network that can be built by name.

    Attributes:
        dense: whether it gives an output for each voxel instead of one for each volume; None for a function
            of the user's that is not registered, of which we do not know.
        dimensions: 3 for volumes; 2 for images `(H, W, C)`, or volumes of one slice `(1, H, W, C)`; None as
            above.
        smallest: the least voxels that it needs along each side.
        paper: where it was published.
    """

    name: str
    function: Function
    dense: bool | None = None
    dimensions: int | None = None
    smallest: int = 1
    paper: str = ""

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments and their defaults, `width` among them."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    @property
    def takes_any_option(self) -> bool:
        """Whether the function ends in **options, so that we cannot check them."""
        return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.function).parameters.values())
