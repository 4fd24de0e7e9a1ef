"""Networks of patches asked about whole volumes: windows blended, or the mean over a grid of patches."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from trainer.inference import sliding
from trainer.inference.sliding import Windows

# From a volume (b, d, h, w, C), or a pair of it and covariates (b, k), to outputs (b, ...).
Network = Callable[[Any], Any]
# A probability no smaller, so that its logarithm is finite in float32.
_LEAST = 1e-9


def blended_logits(network: Network, x: Any, windows: Windows) -> np.ndarray:
    """Logits of every voxel of whole volumes: the logarithm of blended probabilities.

    Probabilities are blended, as `cingulum predict` does, so that figures and predicted maps agree.

    Args:
        network: gives logits (b, d, h, w, K).
        x: float32 (B, D, H, W, C), or a pair of it and covariates (B, k).
        windows: of the network's size.

    Returns:
        float32 (B, D, H, W, K).
    """
    volumes, told = _parts(x)

    def probabilities(number: int) -> Callable[[np.ndarray], np.ndarray]:
        return lambda some: _softmax(_asked(network, some, told, number))

    found = [sliding.whole(volume, probabilities(number), windows) for number, volume in enumerate(volumes)]
    return np.log(np.maximum(np.stack(found), _LEAST))


def mean_outputs(network: Network, x: Any, size: tuple[int, int, int], batch: int) -> np.ndarray:
    """The mean output over a regular grid of patches that covers each volume.

    Patches overlap only where a volume is no multiple of them, and then by as little as that needs.

    Args:
        network: gives outputs (b, m): logits, or numbers.
        x: float32 (B, D, H, W, C), or a pair of it and covariates (B, k).
        size: (d, h, w) of a patch.
        batch: patches per call of the network.

    Returns:
        float32 (B, m).
    """
    volumes, told = _parts(x)
    axes = [sliding.starts(n, edge, 0.0) for n, edge in zip(volumes.shape[1:4], size, strict=True)]
    corners = list(itertools.product(*axes))
    means = []
    for number, volume in enumerate(volumes):
        outputs = [
            _asked(
                network,
                np.stack([sliding.cut(volume, corner, size) for corner in corners[first : first + batch]]),
                told,
                number,
            )
            for first in range(0, len(corners), batch)
        ]
        means.append(np.concatenate(outputs).mean(axis=0, dtype=np.float64))
    return np.stack(means).astype(np.float32)


def _parts(x: Any) -> tuple[np.ndarray, np.ndarray | None]:
    if isinstance(x, tuple | list):
        return np.asarray(x[0]), np.asarray(x[1])
    return np.asarray(x), None


def _asked(network: Network, some: np.ndarray, told: np.ndarray | None, number: int) -> np.ndarray:
    """Outputs for patches of the volume `number`; each is told what belongs to that volume."""
    if told is None:
        return np.asarray(network(some))
    return np.asarray(network((some, np.repeat(told[number : number + 1], len(some), axis=0))))


def _softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))
