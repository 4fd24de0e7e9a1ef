"""Parse `--maps` and `--map-labels`, before any file is searched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from trainer.data.images.recipe import BACKGROUND, MapKind, MapRecipe
from trainer.data.sources import tables
from trainer.data.sources.joins import as_number
from trainer.errors import CohortError, ConfigError

_EXAMPLES = "Examples: --map-labels 1=grey,2=white,3=csf or --map-labels names.tsv (columns index, name)."


@dataclass(frozen=True)
class MapRequest:
    """Maps that an import takes.

    Attributes:
        kind: 'probseg' or 'dseg', see `MapRecipe`.
        folder: the pipeline's folder in `derivatives/`; None to find it.
        entities: of the file names, such as ("desc", "aseg"), where a pipeline has several maps.
        labels: what `--map-labels` says; None where it was not given.
    """

    kind: MapKind
    folder: str | None = None
    entities: tuple[tuple[str, str], ...] = ()
    labels: str | None = None

    @classmethod
    def parse(cls, maps: str, labels: str | None = None) -> MapRequest:
        """Return the request that `KIND[:FOLDER][:KEY-VALUE...]` makes.

        Raises:
            ConfigError: the kind is unknown or a part is empty.
        """
        kind, *parts = maps.split(":")
        kinds: dict[str, MapKind] = {name: name for name in get_args(MapKind)}
        if kind not in kinds or not all(parts):
            raise ConfigError(
                f"--maps {maps}: is not one of probseg, dseg, probseg:FOLDER, dseg:FOLDER:desc-NAME.",
                cure="probseg takes a probability map per tissue, dseg one map of label numbers.",
            )
        folder = parts.pop(0) if parts and not _is_entity(parts[0]) else None
        if not all(_is_entity(part) for part in parts):
            raise ConfigError(
                f"--maps {maps}: only entities of the file names may follow the folder.",
                cure=f"For example --maps {kind}:fmriprep:desc-aseg",
            )
        pairs = tuple((key, value) for key, _, value in (part.partition("-") for part in parts))
        return cls(kinds[kind], folder, pairs, labels)


def _is_entity(part: str) -> bool:
    """Return whether it is an entity such as `desc-aseg`; a folder's name does not begin with such a key."""
    key, dash, value = part.partition("-")
    return bool(dash and value) and key in ("desc", "atlas", "seg", "space", "res", "acq", "run", "rec")


def stated_labels(text: str) -> dict[str, str]:
    """Return the name of each label of `--map-labels`, a list or a table, in their order.

    Raises:
        ConfigError: an entry is empty, or a label is there twice.
        CohortError: the table cannot be read or has no such columns.
    """
    if text.lower().endswith((".tsv", ".csv")):
        return labels_of_table(Path(text))
    return _once((*part.split("=", 1), part)[:2] for part in text.split(","))


def labels_of_table(path: Path) -> dict[str, str]:
    """Return the names of a table with columns `index` and `name` (BIDS: `dseg.tsv`).

    Raises:
        CohortError: the table cannot be read or has no such columns.
        ConfigError: a label is there twice.
    """
    table = tables.read(path)
    index, name = table.need(("index", "label"), "the label number"), table.need(("name",), "the name")
    return _once((row[index] or "", row[name] or row[index] or "") for row in table.rows)


def _once(pairs: Iterable[Iterable[str]]) -> dict[str, str]:
    names: dict[str, str] = {}
    first: dict[object, str] = {}
    for pair in pairs:
        label, name = (word.strip() for word in pair)
        if not label or not name:
            raise ConfigError("--map-labels: has an empty entry.", cure=_EXAMPLES)
        number = as_number(label)  # 1, 01 and the 1.0 of spreadsheets are one
        other = first.setdefault(label if number is None else number, label)
        if label in names or other != label:
            both = label if label == other else f"{other} ({label})"
            raise ConfigError(f"--map-labels: names the label {both} twice.", cure=_EXAMPLES)
        names[label] = name
    return names


def numbered(names: dict[str, str]) -> MapRecipe:
    """Return the recipe of label numbers: classes by their smallest number, the background first.

    Labels that share a name are one class; the name of label 0, else `background`, is that of the background.

    Raises:
        CohortError: a label is no whole number.
        ConfigError: there is no class but the background.
    """
    by_number: dict[int, str] = {}
    for label, name in names.items():
        number = as_number(label)
        if number is None or number != int(number):
            raise CohortError(f"The label {label!r} of the maps is not a whole number.", cure=_EXAMPLES)
        by_number[int(number)] = name
    background = by_number.get(0, BACKGROUND)
    ordered = sorted(by_number.items())
    classes = tuple(dict.fromkeys([background, *(name for _, name in ordered)]))
    return MapRecipe("dseg", classes, tuple((number, classes.index(name)) for number, name in ordered))
