"""Weights that others have published for PyTorch, read from safetensors into networks of ours.

MedicalNet's 3D ResNets: S. Chen, K. Ma, Y. Zheng, arXiv 1904.00625, github.com/Tencent/MedicalNet. SFCN: H.
Peng et al., Medical Image Analysis 68, 2021, 101871, github.com/ha-ha-ha-han/UKBiobank_deep_pretrain.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from trainer.errors import RunError

SUFFIX = ".safetensors"
_HOW = "docs/how-to/start-from-another-run.md says how to make one."


class _LayerNames(NamedTuple):
    """Names of a layer: ours, and theirs without `.weight`."""

    ours: str
    theirs: str


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file, by name; names that begin with `module.` without that.

    Raises:
        RunError: it cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return {name.removeprefix("module."): array for name, array in load_file(path).items()}
    except (OSError, SafetensorError, TypeError, KeyError) as error:
        raise RunError(f"{path}: is no safetensors file ({error}).", cure=_HOW, path=path) from None


def start(model: keras.Model, path: Path) -> tuple[list[str], list[str]]:
    """Put published weights into a network; changed in place.

    Args:
        model: a resnet with `medicalnet`, or an sfcn.
        path: of a safetensors file.

    Returns:
        Names of our layers that were taken, and of those that are as they were: the head.

    Raises:
        RunError: the file cannot be read, is of another network, or lacks a layer.
    """
    arrays = read(path)
    family, named = _family(path, arrays)
    pairs = {pair.ours: pair.theirs for layer in model.layers if (pair := named(layer.name)) is not None}
    if not pairs or not any(f"{theirs}.weight" in arrays for theirs in pairs.values()):
        raise _unfit(path, family, f"network {model.name!r} has no layer of it")
    weights, left = {}, []
    for layer in model.layers:
        if not layer.weights:
            continue
        if layer.name not in pairs:
            left.append(layer.name)
            continue
        weights[layer.name] = _weights(path, family, layer, pairs[layer.name], arrays)
    unread = sorted(
        name
        for name in arrays
        if name.rpartition(".")[0] not in pairs.values() and not re.match(_HEADS[family], name)
    )
    if unread:
        raise _unfit(path, family, f"{unread[0]!r} has no place in network {model.name!r}")
    for name, values in weights.items():
        model.get_layer(name).set_weights(values)
    return list(weights), left


def _family(path: Path, arrays: dict[str, np.ndarray]) -> tuple[str, Callable[[str], _LayerNames | None]]:
    if any(name.startswith("layer1.0.conv1.") for name in arrays):
        return "MedicalNet", _medicalnet
    if any(name.startswith("feature_extractor.conv_0.") for name in arrays):
        return "SFCN", _sfcn
    few = ", ".join(sorted(arrays)[:3])
    raise RunError(
        f"{path}: holds neither MedicalNet's weights nor SFCN's ({few}, ...).", cure=_HOW, path=path
    )


# What is theirs alone: heads, which depend on what was learned.
_HEADS = {"MedicalNet": r"conv_seg\.|fc\.", "SFCN": r"classifier\."}


def _medicalnet(name: str) -> _LayerNames | None:
    stem = {"stem_conv": "conv1", "stem_norm": "bn1"}.get(name)
    if stem is not None:
        return _LayerNames(name, stem)
    found = re.fullmatch(r"stage(\d)_block(\d+)_(\d|shortcut)_(conv|norm)", name)
    if found is None:
        return None
    stage, block, number, kind = found.groups()
    if number == "shortcut":
        inner = f"downsample.{int(kind == 'norm')}"
    else:
        inner = f"{'conv' if kind == 'conv' else 'bn'}{number}"
    return _LayerNames(name, f"layer{stage}.{int(block) - 1}.{inner}")


def _sfcn(name: str) -> _LayerNames | None:
    found = re.fullmatch(r"block(\d)_(conv|norm)", name)
    if found is None:
        return None
    return _LayerNames(name, f"feature_extractor.conv_{int(found[1]) - 1}.{int(found[2] == 'norm')}")


def _weights(
    path: Path, family: str, layer: keras.Layer, theirs: str, arrays: dict[str, np.ndarray]
) -> list[np.ndarray]:
    """Return the layer's weights in our order and layout."""

    def of(name: str) -> np.ndarray:
        if name not in arrays:
            raise _unfit(path, family, f"it has no {name!r} for layer {layer.name!r}")
        return arrays[name].astype(np.float32)

    weight = of(f"{theirs}.weight")
    if isinstance(layer, keras.layers.BatchNormalization):
        mean = of(f"{theirs}.running_mean")
        convolution = _before(theirs)
        if convolution is not None and f"{convolution}.bias" in arrays:
            # Ours has no bias before a normalisation, which takes it away again.
            mean = mean - of(f"{convolution}.bias")
        weights = [weight, of(f"{theirs}.bias"), mean, of(f"{theirs}.running_var")]
    elif weight.ndim == len(layer.kernel.shape):
        weights = [np.moveaxis(weight, (0, 1), (-1, -2))]
    else:
        weights = [weight]
    shapes, ours = [array.shape for array in weights], [tuple(w.shape) for w in layer.weights]
    if shapes != ours:
        raise _unfit(path, family, f"{theirs} has shapes {shapes}, layer {layer.name!r} {ours}")
    return weights


def _before(theirs: str) -> str | None:
    """Return the name of SFCN's convolution before a normalisation."""
    before, _, number = theirs.rpartition(".")
    return f"{before}.0" if number == "1" and before.startswith("feature_extractor.") else None


def _unfit(path: Path, family: str, why: str) -> RunError:
    return RunError(f"{path}: {family}'s weights do not fit: {why}.", cure=_CURES[family], path=path)


_CURES = {
    "MedicalNet": "Take model.name=resnet10 (or 18, 34, 50), as the file's, with model.options.medicalnet=B "
    "(18 and 34: A).",
    "SFCN": "Take model.name=sfcn with its own width, 32.",
}
