"""What networks said about one image, as columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def columns(task: str, classes: Sequence[str], several: bool) -> tuple[str, ...]:
    """Names of the columns of a task.

    Args:
        task: 'classification', 'regression' or 'segmentation'.
        classes: names.
        several: whether it is an ensemble, of which the spread is told (standard deviation over the members).
    """
    if task == "regression":
        return ("predicted", *(["sd"] if several else []))
    if task == "segmentation":
        names = [f"ml_{name}" for name in classes[1:]]
        return ("segmentation", *names, *(f"sd_{name}" for name in names if several))
    spreads = [f"sd_{name}" for name in classes if several]
    return ("predicted", *(f"p_{name}" for name in classes), *spreads)


def row(task: str, classes: Sequence[str], found: np.ndarray) -> dict[str, Any]:
    """The columns of one image.

    Args:
        task: 'classification' or 'regression'.
        classes: names.
        found: float64 (M, K) or (M, 1), what each of M members said: probabilities, or numbers.
    """
    means = found.mean(axis=0)
    said: list[Any]
    if task == "regression":
        said = [round(float(means[0]), 4)]
    else:
        said = [classes[int(means.argmax())], *(round(float(share), 6) for share in means)]
    said += spread(found)
    return dict(zip(columns(task, classes, len(found) > 1), said, strict=True))


def spread(found: np.ndarray) -> list[float]:
    """Standard deviation (of a sample: divided by M - 1) over M members (M, K); [] for a single one."""
    if len(found) < 2:
        return []
    return [round(float(value), 6) for value in found.std(axis=0, ddof=1)]
