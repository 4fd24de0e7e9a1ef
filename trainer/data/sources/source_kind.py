"""What a layout of images says of itself; `sources.KINDS` has all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.sources.listing import SourceListing
from trainer.data.sources.map_request import MapRequest
from trainer.data.sources.tables import TextTable


@dataclass(frozen=True)
class SourceRequest:
    """What of a source is to be listed.

    Attributes:
        label: column with the class to learn.
        table: of labels, by subject or image, for sources without.
        contrast: suffix of the images to take.
        contrasts: where each entry needs several images, the first in place of `contrast`.
        maps: which label maps to take.
        run: which of several runs to take.
        adni: which visits to take and how to divide MCI: an `AdniRequest`.
    """

    label: str
    table: TextTable | None = None
    contrast: str = "T1w"
    contrasts: tuple[str, ...] = ()
    maps: MapRequest | None = None
    run: int | None = None
    adni: Any = None


@dataclass(frozen=True)
class SourceKind:
    """A layout of images.

    Attributes:
        name: of it, in what is told of an import.
        recognises: whether a path, which exists, has this layout.
        find: lists the images; raises CohortError and ConfigError.
        takes: what of a request it understands besides `label` and `contrast`.
        is_written_by_users: its tables are; odd lines in them are errors.
    """

    name: str
    recognises: Callable[[Path], bool]
    find: Callable[[Path, SourceRequest], SourceListing]
    takes: frozenset[str]
    is_written_by_users: bool = True
