"""The part of the recipe that concerns label maps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from trainer.errors import ConfigError

MapKind = Literal["probseg", "dseg"]
BACKGROUND = "background"


@dataclass(frozen=True)
class MapRecipe:
    """How the map files of an image become one label map.

    Attributes:
        kind: 'probseg': a file per class with its share of every voxel; 'dseg': one file of label numbers
            (names of BIDS derivatives).
        classes: names, background first: what a voxel of the label map counts through.
        labels: of 'dseg', (number in the file, place in `classes`), by number; 0 may be among them.
    """

    kind: MapKind
    classes: tuple[str, ...]
    labels: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(MapKind):
            raise ConfigError(
                f"preprocessing: maps are of kind {self.kind!r}.", cure="Known are 'probseg' and 'dseg'."
            )
        if len(self.classes) < 2:
            raise ConfigError(
                "preprocessing: label maps have no class but the background.",
                cure="Name at least one label with --map-labels.",
            )

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        tree = asdict(self)
        return {**tree, "classes": list(self.classes), "labels": [list(pair) for pair in self.labels]}

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> MapRecipe:
        """Rebuild it from JSON.

        Raises:
            ConfigError: a key is missing or of the wrong kind.
        """
        try:
            labels = tuple((int(number), int(place)) for number, place in tree["labels"])
            return cls(tree["kind"], tuple(map(str, tree["classes"])), labels)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"preprocessing: maps cannot be read ({error}).", cure="Import the images again."
            ) from None
