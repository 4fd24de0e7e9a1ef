"""Do the maps depend on what the network has learned? They should change when its weights are randomised.

Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018 (arXiv 1810.03292), section 3: cascading
randomisation from the last layer to the first. SSIM: Wang et al., IEEE Trans. Image Processing 13(4), 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import keras
import numpy as np
from scipy import ndimage, stats

Explain = Callable[[keras.Model], np.ndarray]


@dataclass(frozen=True)
class Similarity:
    """How alike the maps of the trained and of a partly randomised network are; means over the volumes.

    Attributes:
        layer: the first layer whose weights are random, with all after it; None: the trained network.
        randomised: how many layers' weights are random.
        rank_correlation: Spearman's, over the voxels, -1 to 1.
        ssim: structural similarity of the maps, each divided by its largest absolute value; at most 1.
    """

    layer: str | None
    randomised: int
    rank_correlation: float
    ssim: float


def layers_with_weights(model: keras.Model) -> list[str]:
    """Return names of the layers that have weights, first to last."""
    return [layer.name for layer in model.layers if layer.weights]


def randomised(model: keras.Model, seed: int, layers: Sequence[str] | None = None) -> keras.Model:
    """Return a copy of the model with the weights of some layers shuffled within each tensor.

    Shuffling keeps each tensor's distribution (so that no layer blows up, and a variance stays positive) and
    nothing of what it has learned. The model given is left alone.

    Args:
        seed: decides the order.
        layers: names; None for all.
    """
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    rng = np.random.default_rng(seed)
    for name in layers_with_weights(model) if layers is None else layers:
        layer = copy.get_layer(name)
        layer.set_weights([rng.permuted(w.ravel()).reshape(w.shape) for w in layer.get_weights()])
    return copy


def cascade(model: keras.Model, explain: Explain, *, seed: int = 0, most: int = 8) -> tuple[Similarity, ...]:
    """Explain the network again and again, with the weights of ever more layers random, the last ones first.

    Args:
        explain: from a network to maps (B, D, H, W), such as `lambda m: grad_cam(m, volumes, target)`.
        seed: of the random weights.
        most: how many stages to look at, where there are more layers; the last has all weights random.

    Returns:
        The trained network with itself (1 and 1), then one entry per stage.
    """
    names = layers_with_weights(model)
    first = explain(model)
    story = [Similarity(None, 0, *similarity(first, first))]
    stages = np.unique(np.linspace(1, len(names), min(most, len(names))).round().astype(int))
    for count in stages.tolist():
        maps = explain(randomised(model, seed, names[-count:]))
        story.append(Similarity(names[-count], count, *similarity(first, maps)))
    return tuple(story)


def similarity(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Return mean rank correlation and mean SSIM of two stacks of maps (B, D, H, W).

    A map without any contrast has no ranks: its correlation counts as 0.
    """
    ranks = [_rank_correlation(a, b) for a, b in zip(first, second, strict=True)]
    structure = [ssim(_scaled(a), _scaled(b)) for a, b in zip(first, second, strict=True)]
    return float(np.mean(ranks)), float(np.mean(structure))


def ssim(first: np.ndarray, second: np.ndarray) -> float:
    """Return mean of `ssim_map`, at most 1."""
    return float(ssim_map(first, second).mean())


def ssim_map(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return structural similarity about each voxel of two volumes (D, H, W) of values that reach over 1,
    with the constants and the window of Wang et al.: a Gaussian of 1.5 voxels, cut off 5 voxels from its
    centre.
    """
    first, second = first.astype(np.float64), second.astype(np.float64)
    steady, contrast = 0.01**2, 0.03**2

    def mean(values: np.ndarray) -> np.ndarray:
        return ndimage.gaussian_filter(values, 1.5, radius=5, mode="nearest")

    a, b = mean(first), mean(second)
    spread_a, spread_b = mean(first**2) - a**2, mean(second**2) - b**2
    together = mean(first * second) - a * b
    alike = (2 * a * b + steady) / (a**2 + b**2 + steady)
    return alike * (2 * together + contrast) / (spread_a + spread_b + contrast)


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 1.0 if np.array_equal(first, second) else 0.0
    return float(stats.spearmanr(first.ravel(), second.ravel()).statistic)


def _scaled(values: np.ndarray) -> np.ndarray:
    most = np.abs(values).max()
    return values / most if most > 0 else values
