"""Which stages compute their activations again before a backward pass, and what they keep. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Recomputed(NamedTuple):
    """What follows for each stage there can be: from a partition (row) up to another, included (column).

    Attributes:
        kept_bytes: (P, P), kept of a micro-batch between its two passes.
        seconds: (P, P, D), to compute the stage again; 0 where it keeps everything.
        least_s: (P, D), to compute a partition again, whichever stage it is in.
    """

    kept_bytes: Floats
    seconds: Floats
    least_s: Floats


def recomputed(kept_bytes: Floats, moved_bytes: Floats, again_s: Floats) -> Recomputed:
    """Return what each stage keeps: what it reads of others, or everything where that is no more.

    Args:
        kept_bytes: (P,), what each partition keeps where everything is kept.
        moved_bytes: (P, P), see `Problem`.
        again_s: (2, P, D), see `Problem`.
    """
    count = len(kept_bytes)
    read, whole = np.zeros((count, count)), np.zeros((count, count))
    inside, last = again_s
    seconds = np.zeros((count, *last.shape))
    for start in range(count):
        # A tensor counts once, with the most of it that one partition reads.
        read[start, start:] = np.maximum.accumulate(moved_bytes[:start, start:], axis=1).sum(axis=0)
        whole[start, start:] = np.cumsum(kept_bytes[start:])
        seconds[start, start:] = np.cumsum(inside[start:], axis=0) - inside[start:] + last[start:]
    is_less = read < whole
    sure = np.array([is_less[: p + 1, p:].all() for p in range(count)])
    return Recomputed(np.minimum(read, whole), seconds * is_less[..., None], last * sure[:, None])
