"""File names for subjects and classes, whatever these are called."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

# With `_mosaic.png` behind it, a name stays far below the 255 bytes of file systems.
_MOST_BYTES = 150
# What is written beside a subject's map under its name; so these may not be another's name either.
_ENDINGS = ("", "_mosaic", "_glass")


def distinct(wanted: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Names of letters, digits, dots, dashes and underscores; those that come again get a number.

    Names that differ by case only count as the same: some file systems hold them so.

    Args:
        wanted: what the files are of.
        taken: names of other files of the folder.
    """
    used = {f"{name}{ending}".casefold() for name in taken for ending in _ENDINGS}
    names = []
    for plain in map(_safe, wanted):
        name, number = plain, 1
        while used & (files := {f"{name}{ending}".casefold() for ending in _ENDINGS}):
            number += 1
            name = f"{plain}_{number}"
        used |= files
        names.append(name)
    return names


def _safe(name: str) -> str:
    letters = unicodedata.normalize("NFC", name)
    kept = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in letters)
    short = kept.encode()[:_MOST_BYTES].decode(errors="ignore").lstrip(".-")
    return short or "unnamed"
