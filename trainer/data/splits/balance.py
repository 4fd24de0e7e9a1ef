"""Balance classes of unequal size: repeat their rows, or weight their samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def balanced_rows(rows: Sequence[int], targets: np.ndarray) -> tuple[int, ...]:
    """Return the rows with those of smaller classes repeated, so that every class is equally frequent.

    Args:
        rows: training rows.
        targets: int32 (len(rows),), the class of each.

    Returns:
        Each row at least once, and none of a class twice more often than another of it. Which rows of a class
        come once more than the others is a matter of their order.
    """
    members = [np.flatnonzero(targets == k) for k in np.unique(targets)]
    most = max(len(m) for m in members)
    places = np.concatenate([np.resize(m, most) for m in members])
    return tuple(rows[place] for place in np.sort(places))


def balanced_weights(targets: np.ndarray, classes: int) -> np.ndarray:
    """Return class weights n / (classes * members), float32 (classes,), of mean 1 over `targets`.

    Raises:
        ValueError: a class has no member.
    """
    members = np.bincount(targets, minlength=classes)
    if len(members) > classes or not members.all():
        raise ValueError(f"{classes} classes, but members {members.tolist()}")
    return (len(targets) / (classes * members)).astype(np.float32)
