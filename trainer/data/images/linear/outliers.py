"""Registered scans that lie apart from the others of their cohort, where fixed bounds see nothing odd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainer.data.images.findings import Finding, warning

# Of fewer scans nobody can say what is usual.
_FEWEST = 20
# In median absolute deviations, scaled to be a standard deviation where values are normal.
_APART = 5.0


class _Number(NamedTuple):
    """A number of a registration.

    Attributes:
        words: what it is, for people.
        odd: the side on which it is odd: -1 below, 1 above, 0 either.
        spread: that differs from scan to scan at least.
    """

    words: str
    odd: int
    spread: float


_NUMBERS = {
    "inner": _Number("correlation in the brain", -1, 0.02),
    "dice": _Number("overlap of the brains", -1, 0.005),
    "turn_degrees": _Number("turn in degrees", 1, 2.0),
    "scale": _Number("size against the average brain", 0, 0.02),
    "stretch": _Number("stretch", 1, 0.02),
}


def outliers(registrations: Sequence[Mapping[str, Any] | None]) -> dict[int, Finding]:
    """Return a finding for each scan that lies apart, by its place in the list.

    Args:
        registrations: `Registration.to_json` of each scan; None for one that is left out.
    """
    there = [number for number, one in enumerate(registrations) if one is not None]
    if len(there) < _FEWEST:
        return {}
    complaints: dict[int, list[str]] = {}
    for name, kind in _NUMBERS.items():
        values = np.array([float((registrations[number] or {})[name]) for number in there])
        middle = float(np.median(values))
        spread = max(1.4826 * float(np.median(np.abs(values - middle))), kind.spread)
        apart = (values - middle) / spread
        odd = np.abs(apart) if kind.odd == 0 else kind.odd * apart
        for place in np.flatnonzero(odd > _APART):
            words = f"{kind.words} {values[place]:.2f}, most others {middle:.2f}"
            complaints.setdefault(there[int(place)], []).append(words)
    return {
        number: warning(
            "outlier", f"lies apart from the others: {'; '.join(words)}.", "Look at it in qc.html."
        )
        for number, words in complaints.items()
    }
