"""What a benchmark says of repeats: the median, how far they lie apart, and how sure the median is."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_DRAWS = 2000


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return the quotients of what was measured in the same repeats."""
    return [one / other for one, other in zip(above, below, strict=True)]


def widest(figures: Mapping[str, Any]) -> float:
    """Return half the width of the widest interval among figures of `spread`, and those within them."""
    own = [
        (figures[f"{name.removesuffix('_low')}_high"] - low) / 2
        for name, low in figures.items()
        if name.endswith("_low")
    ]
    within = [widest(each) for each in figures.values() if isinstance(each, Mapping)]
    return max([*own, *within], default=0.0)


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return median, `_min` and `_max`; `_low` and `_high`: the median's interval of 95 %, by bootstrap."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (_DRAWS, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return {
        name: statistics.median(values),
        f"{name}_min": min(values),
        f"{name}_max": max(values),
        f"{name}_low": float(low),
        f"{name}_high": float(high),
    }
