"""Simple features: what is known of a subject, how bright its image is, how much tissue it has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from trainer.data.images.foreground import otsu
from trainer.data.shards.index import Volume
from trainer.data.shards.shards import ShardSet
from trainer.data.workers import default_workers

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
_MOST_THREADS = 8


@dataclass(frozen=True)
class Features:
    """Named columns.

    Attributes:
        names: of the columns.
        values: float64 (volumes, columns), NaN where unknown.
    """

    names: tuple[str, ...]
    values: np.ndarray

    @classmethod
    def beside(cls, parts: Sequence[Features]) -> Features:
        """Return all columns of several feature tables."""
        return cls(
            tuple(name for part in parts for name in part.names), np.hstack([part.values for part in parts])
        )

    def known(self) -> Features:
        """Return the features without columns that are unknown, or the same, in every volume."""
        kept = [
            k for k in range(len(self.names)) if len(set(self.values[~np.isnan(self.values[:, k]), k])) > 1
        ]
        return Features(tuple(self.names[k] for k in kept), self.values[:, kept])


def people(volumes: Sequence[Volume], *, age: bool = True) -> Features:
    """Return the age in years, and a column for each sex that occurs but the last."""
    sexes = sorted({volume.sex for volume in volumes if volume.sex is not None})
    columns = {"age": [math.nan if v.age is None else float(v.age) for v in volumes]} if age else {}
    for sex in sexes[:-1]:
        columns[f"sex {sex}"] = [math.nan if v.sex is None else float(v.sex == sex) for v in volumes]
    return Features(tuple(columns), np.array(list(columns.values()), np.float64).reshape(-1, len(volumes)).T)


def tissue(volumes: Sequence[Volume]) -> Features:
    """Return tissue volumes in millilitres, then their shares of the whole, which do not depend on head size.

    Of the tissues that every volume has for which any is known.
    """
    there = [set(volume.tissue) for volume in volumes if volume.tissue]
    names = sorted(set.intersection(*there)) if there else []
    ml = np.array(
        [[float(v.tissue[name]) if v.tissue else math.nan for name in names] for v in volumes], np.float64
    ).reshape(len(volumes), len(names))
    total = ml.sum(axis=1, keepdims=True)
    return Features(
        (*(f"{name} (mL)" for name in names), *(f"{name} (share)" for name in names)),
        np.hstack([ml, ml / np.where(total == 0, 1.0, total)]),
    )


def intensities(
    shards: ShardSet, rows: Sequence[int], progress: Callable[[int, int], None] | None = None
) -> Features:
    """Return moments and percentiles of each stored volume's voxels, of all and of those in the foreground.

    Each volume is read once, on several threads.

    Args:
        shards: the shard set.
        rows: of the volumes.
        progress: called with (volumes read, volumes in all).

    Raises:
        ShardError: a volume is damaged.
    """
    channels = shards.shape[3]
    values = np.empty((len(rows), channels * len(_STATISTICS)))
    with ThreadPoolExecutor(min(_MOST_THREADS, default_workers())) as pool:
        read = pool.map(lambda row: _of_volume(shards.read(row)), rows)
        for done, found in enumerate(read, 1):
            values[done - 1] = found
            if progress is not None:
                progress(done, len(rows))
    prefixes = [f"contrast {c + 1}: " if channels > 1 else "" for c in range(channels)]
    return Features(tuple(prefix + name for prefix in prefixes for name in _STATISTICS), values)


_MOMENTS = ("mean", "sd", "skewness", "kurtosis", *(f"{p} %" for p in PERCENTILES))
_STATISTICS = (*_MOMENTS, *(f"{name} of the foreground" for name in _MOMENTS), "share of the foreground")


def _of_volume(volume: np.ndarray) -> np.ndarray:
    """(C * statistics,) of a volume (D, H, W, C)."""
    statistics: list[float] = []
    for channel in np.moveaxis(volume.astype(np.float32), -1, 0):
        inside = channel[channel > otsu(channel)] if np.ptp(channel) > 0 else channel
        statistics += [*_statistics(channel), *_statistics(inside), inside.size / channel.size]
    return np.array(statistics)


def _statistics(values: np.ndarray) -> list[float]:
    """Mean, standard deviation, skewness, excess kurtosis (0 for constant values), percentiles."""
    flat = values.ravel().astype(np.float64)
    mean, deviation = float(flat.mean()), float(flat.std())
    standard = (flat - mean) / (deviation or 1.0)
    kurtosis = float((standard**4).mean()) - 3 if deviation else 0.0
    return [mean, deviation, float((standard**3).mean()), kurtosis, *np.percentile(flat, PERCENTILES)]
