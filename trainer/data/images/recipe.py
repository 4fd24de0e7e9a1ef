"""Parameters of preprocessing, label maps included, as one value that is stored with a set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from trainer.data.shards.stored_types import STORED_TYPES
from trainer.errors import ConfigError

MapKind = Literal["probseg", "dseg"]
BACKGROUND = "background"
# The two transforms of a NIfTI header, in the order in which they are taken.
Xform = Literal["sform", "qform"]
XFORMS: tuple[Xform, ...] = get_args(Xform)


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
                f"preprocessing: maps are of kind {self.kind!r}.", cure="Use 'probseg' or 'dseg'."
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


# Keys that a recipe has only where they were chosen.
_CHOSEN = ("contrasts", "maps", "xform", "prepare", "brain")

# Length of the default cube's edge. An adult brain is at most about 180 mm long (ICBM152: 145 x 180 x 150).
DEFAULT_EXTENT_MM = 192.0


@dataclass(frozen=True)
class Recipe:
    """All parameters of preprocessing. The same recipe and the same file give the same bytes.

    Attributes:
        size: edge of the cube in voxels: D = H = W.
        spacing: edge of a voxel in mm.
        dtype: type stored, one of `stored_types.STORED_TYPES`.
        normalisation: 'zscore': values are clipped to the `low_percentile` of the resampled image and the
            `high_percentile` of its foreground, then the foreground's mean is subtracted and the result
            divided by the foreground's standard deviation.
        foreground: 'otsu': the largest connected part brighter than Otsu's threshold.
        volume: which volume of four-dimensional images, from 0; None refuses them.
        nan: 'refuse' images with NaN or infinite values, or make them 'zero'.
        contrasts: names of the channels where there are several, such as ("T1w", "T2w"); the first decides
            grid and cube.
        maps: what the label maps are made of, where there are some.
        xform: which transform of a NIfTI header counts where it has both; None: the sform, with a warning
            where the qform contradicts it.
        prepare: 'linear': the bias field is removed and the head registered to the average brain
            (`trainer.data.images.linear`); the brain takes the place of the foreground. None: neither.
        brain: of prepared scans, 'head': keep all that was scanned; 'mask': the brain alone.
    """

    size: int
    spacing: float
    dtype: str = "float16"
    normalisation: str = "zscore"
    foreground: str = "otsu"
    low_percentile: float = 0.5
    high_percentile: float = 99.5
    volume: int | None = None
    nan: str = "refuse"
    version: int = 1
    contrasts: tuple[str, ...] = ()
    maps: MapRecipe | None = None
    xform: Xform | None = None
    prepare: Literal["linear"] | None = None
    brain: Literal["head", "mask"] | None = None

    def __post_init__(self) -> None:
        allowed: dict[str, Sequence[Any]] = {
            "dtype": STORED_TYPES,
            "normalisation": ("zscore",),
            "foreground": ("otsu",),
            "nan": ("refuse", "zero"),
            "version": (1,),
            "xform": (None, *XFORMS),
            "prepare": (None, "linear"),
            "brain": (None,) if self.prepare is None else ("head", "mask"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                known = ", ".join(repr(value) for value in values)
                raise ConfigError(
                    f"preprocessing: {name} is {getattr(self, name)!r}; known are {known}.",
                    cure=f"Use {known}.",
                )
        if not 8 <= self.size <= 512:
            raise ConfigError(
                f"preprocessing: size is {self.size}.",
                cure="Give an edge of 8 to 512 voxels, such as --size 96.",
            )
        if not 0.1 <= self.spacing <= 20:
            raise ConfigError(
                f"preprocessing: spacing is {self.spacing} mm.",
                cure="Give 0.1 to 20 mm, such as --spacing 2.",
            )
        if len(self.contrasts) == 1 or len(set(filter(None, self.contrasts))) < len(self.contrasts):
            raise ConfigError(
                f"preprocessing: contrasts are {', '.join(map(repr, self.contrasts))}.",
                cure="Give each once, and two or more, such as T1w,T2w.",
            )

    @classmethod
    def of_size(cls, size: int, **others: Any) -> Recipe:
        """Return the recipe whose cube of `size` voxels covers 192 mm."""
        return cls(size=size, spacing=DEFAULT_EXTENT_MM / size if size else 0.0, **others)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return (D, H, W, C) of the output."""
        return (self.size, self.size, self.size, max(1, len(self.contrasts)))

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object; keys of `_CHOSEN` only where they were chosen."""
        tree = {**asdict(self), "contrasts": list(self.contrasts)}
        tree["maps"] = self.maps.to_json() if self.maps else None
        return {key: value for key, value in tree.items() if key not in _CHOSEN or value}

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Recipe:
        """Rebuild it from JSON.

        Raises:
            ConfigError: an unknown key, or one missing that has no default (made by another version).
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(tree) - known):
            raise ConfigError(
                f"preprocessing: unknown key {unknown[0]!r}.",
                cure="It was made by a newer version: update cingulum, or import again.",
            )
        if missing := sorted({"size", "spacing"} - set(tree)):
            raise ConfigError(f"preprocessing: {missing[0]!r} is missing.", cure="Import the images again.")
        several = tuple(map(str, tree.get("contrasts", ())))
        maps = MapRecipe.from_json(tree["maps"]) if tree.get("maps") else None
        return cls(**{**tree, "contrasts": several, "maps": maps})
