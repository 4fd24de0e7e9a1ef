"""Sliding windows: a network of small windows over a volume of any size, blended, in bounded memory.

The windows stand on a regular grid, so that the weight of a window at a voxel is a product of one number
per axis. These are divided by their sums beforehand, which makes the weights of all windows at any voxel
sum to 1: blending is then a sum, nothing is divided afterwards, and the sum of the weights is never stored.
Windows that begin at the same plane are computed together; planes that no later window reaches are handed on
and forgotten, so that memory grows with the height of a window and not with that of the volume.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trainer.errors import ConfigError

Predict = Callable[[np.ndarray], np.ndarray]
Slabs = Iterator[tuple[int, np.ndarray]]


@dataclass(frozen=True)
class Windows:
    """How windows are laid and blended.

    Attributes:
        size: (d, h, w) in voxels.
        overlap: share of a window's edge that it has in common with the next, at least; 0 to below 1.
            Half, as in nnU-Net (Isensee et al., Nature Methods 18, 2021).
        blending: 'gaussian': weights fall off from a window's middle with a standard deviation of an eighth
            of its edge, as in nnU-Net, since a network knows least about a window's border;
            'constant': all of a window's voxels count alike.
        batch: windows per call of the network.
    """

    size: tuple[int, int, int]
    overlap: float = 0.5
    blending: Literal["gaussian", "constant"] = "gaussian"
    batch: int = 1

    def __post_init__(self) -> None:
        if min(self.size) < 1:
            raise ConfigError(f"windows of {self.size} voxels: each edge must have at least one.")
        if not 0 <= self.overlap < 1:
            raise ConfigError(
                f"overlap is {self.overlap:g}: must be at least 0 and below 1.", cure="For example 0.5."
            )
        if self.blending not in ("gaussian", "constant"):
            raise ConfigError(f"blending is {self.blending!r}; known are 'gaussian' and 'constant'.")
        if self.batch < 1:
            raise ConfigError(f"{self.batch} windows per batch: must be at least 1.")


def starts(length: int, window: int, overlap: float) -> tuple[int, ...]:
    """Return first voxels of the windows along an axis: evenly spread, as few as reach the overlap
    everywhere.
    """
    if length <= window:
        return (0,)
    step = max(1, math.floor(window * (1 - overlap)))
    count = math.ceil((length - window) / step) + 1
    return tuple(round(number * (length - window) / (count - 1)) for number in range(count))


def weights(length: int, window: int, first: Sequence[int], blending: str) -> np.ndarray:
    """Return weights (windows, window) float32 along one axis; over the windows that hold a voxel they sum to
    1.
    """
    places = np.arange(window) - (window - 1) / 2
    profile = np.exp(-0.5 * (places / (window / 8)) ** 2) if blending == "gaussian" else np.ones(window)
    total = np.zeros(max(length, window))
    for start in first:
        total[start : start + window] += profile
    return np.stack([profile / total[start : start + window] for start in first]).astype(np.float32)


def blend(volume: np.ndarray, predict: Predict, windows: Windows) -> Slabs:
    """Yield blended outputs of a network for a whole volume, slab after slab.

    Args:
        volume: (D, H, W, C), an array or a memory map; read window by window. Where an axis is shorter than
            the window, the volume is continued by its last voxels, and the result is cut to size again.
        predict: from windows float32 (B, d, h, w, C) to outputs (B, d, h, w, K) of a floating type. The
            outputs are averaged as they are: give probabilities, or logits, as is wanted.
        windows: how they are laid.

    Yields:
        The number of a slab's first plane, and the slab: float32 (n, H, W, K). Slabs follow one another
        without gaps. A slab is valid until the next one is asked for.

    Besides the volume and a batch, memory holds the sums of one layer of windows: float32 (d, H, W, K).
    """
    shape = volume.shape[:3]
    axes = [starts(n, size, windows.overlap) for n, size in zip(shape, windows.size, strict=True)]
    shares = [
        weights(n, size, first, windows.blending)
        for n, size, first in zip(shape, windows.size, axes, strict=True)
    ]
    rows = list(itertools.product(range(len(axes[1])), range(len(axes[2]))))
    sums = np.empty(0, np.float32)  # (d, H, W, K) once the network has said what K is
    for number, plane in enumerate(axes[0]):
        for some in _batches(rows, windows.batch):
            corners = [(plane, axes[1][j], axes[2][k]) for j, k in some]
            outputs = predict(np.stack([cut(volume, corner, windows.size) for corner in corners]))
            if not sums.size:
                sums = np.zeros((windows.size[0], *shape[1:], outputs.shape[-1]), np.float32)
            for (j, k), (_, h, w), output in zip(some, corners, outputs, strict=True):
                weight = shares[0][number][:, None, None] * shares[1][j][:, None] * shares[2][k]
                place = sums[:, h : h + windows.size[1], w : w + windows.size[2]]
                inside = output[:, : place.shape[1], : place.shape[2]]
                place += inside * weight[:, : place.shape[1], : place.shape[2], None]
        last = number == len(axes[0]) - 1
        done = (shape[0] if last else axes[0][number + 1]) - plane
        yield plane, sums[:done]
        if not last:
            _move_up(sums, done)


def whole(volume: np.ndarray, predict: Predict, windows: Windows) -> np.ndarray:
    """Return all blended outputs, float32 (D, H, W, K): takes D / d times the memory of `blend`."""
    slabs = [slab.copy() for _, slab in blend(volume, predict, windows)]
    return np.concatenate(slabs)


def cut(volume: np.ndarray, corner: Sequence[int], size: Sequence[int]) -> np.ndarray:
    """Return a window float32 (d, h, w, C) of a volume, continued by the last voxels where it ends sooner."""
    bounds = tuple(slice(first, first + n) for first, n in zip(corner, size, strict=True))
    found = np.asarray(volume[bounds], np.float32)
    missing = [(0, n - there) for n, there in zip(size, found.shape[:3], strict=True)]
    return np.pad(found, [*missing, (0, 0)], mode="edge") if any(after for _, after in missing) else found


def _move_up(sums: np.ndarray, done: int) -> None:
    """Drop the first `done` planes and begin as many new ones; plane by plane, without a copy of all."""
    for plane in range(len(sums)):
        if plane + done < len(sums):
            sums[plane] = sums[plane + done]
        else:
            sums[plane] = 0


def _batches(items: list[tuple[int, int]], size: int) -> Iterator[list[tuple[int, int]]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


# From a volume (b, d, h, w, C), or a pair of it and covariates (b, k), to outputs (b, ...).
Network = Callable[[Any], Any]
# A probability no smaller, so that its logarithm is finite in float32.
_LEAST = 1e-9


def blended_logits(network: Network, x: Any, windows: Windows) -> np.ndarray:
    """Return logits of every voxel of whole volumes: the logarithm of blended probabilities.

    Probabilities are blended, as `cingulum predict` does, so that figures and predicted maps agree.

    Args:
        network: gives logits (b, d, h, w, K).
        x: float32 (B, D, H, W, C), or a pair of it and covariates (B, k).
        windows: of the network's size.

    Returns:
        float32 (B, D, H, W, K).
    """
    volumes, covariates = _parts(x)

    def probabilities(number: int) -> Callable[[np.ndarray], np.ndarray]:
        return lambda some: _softmax(_asked(network, some, covariates, number))

    found = [whole(volume, probabilities(number), windows) for number, volume in enumerate(volumes)]
    return np.log(np.maximum(np.stack(found), _LEAST))


def mean_outputs(network: Network, x: Any, size: tuple[int, int, int], batch: int) -> np.ndarray:
    """Return the mean output over a regular grid of patches that covers each volume.

    Patches overlap only where a volume is no multiple of them, and then by as little as that needs.

    Args:
        network: gives outputs (b, m): logits, or numbers.
        x: float32 (B, D, H, W, C), or a pair of it and covariates (B, k).
        size: (d, h, w) of a patch.
        batch: patches per call of the network.

    Returns:
        float32 (B, m).
    """
    volumes, covariates = _parts(x)
    axes = [starts(n, edge, 0.0) for n, edge in zip(volumes.shape[1:4], size, strict=True)]
    corners = list(itertools.product(*axes))
    means = []
    for number, volume in enumerate(volumes):
        outputs = [
            _asked(
                network,
                np.stack([cut(volume, corner, size) for corner in corners[first : first + batch]]),
                covariates,
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


def _asked(network: Network, some: np.ndarray, covariates: np.ndarray | None, number: int) -> np.ndarray:
    """Outputs for patches of the volume `number`; each with the covariates of that volume."""
    if covariates is None:
        return np.asarray(network(some))
    return np.asarray(network((some, np.repeat(covariates[number : number + 1], len(some), axis=0))))


def _softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))
