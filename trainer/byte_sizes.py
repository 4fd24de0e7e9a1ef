"""Read and write numbers of bytes with units, such as `4 GiB`."""

from __future__ import annotations

import re

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def parse(text: str) -> int:
    """Return the bytes of a text such as `4 GiB` or `512MiB`.

    Raises:
        ValueError: it is no number with one of the units B, KiB, MiB, GiB and TiB, or is less than a byte.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i)?B", text.strip())
    # Of more digits than any memory has, a float would be infinite.
    size = int(float(match[1]) * _UNITS[f"{match[2] or ''}B"]) if match and len(match[1]) < 30 else 0
    if size < 1:
        raise ValueError("write a size with its unit: B, KiB, MiB, GiB or TiB, such as '4 GiB'")
    return size


def as_text(size: int) -> str:
    """Return a number of bytes as text, in the largest unit that leaves at least one, such as `4.2 GiB`."""
    unit = next((name for name in reversed(_UNITS) if size >= _UNITS[name]), "B")
    return f"{size} B" if unit == "B" else f"{size / _UNITS[unit]:.1f} {unit}"
