"""Our networks in PyTorch, from a description of their layers: needs PyTorch, and neither Keras nor trainer.

`described` (in networks.py) writes the description where TensorFlow is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Described(nn.Module):
    """A network of described layers, whose values are (B, C, D, H, W).

    Args:
        layers: as `networks.described` has them, in an order in which each comes after its inputs.
        exact: pad as TensorFlow does, unevenly where the stride makes it so, which PyTorch can only do by
            copying the padded values. Without it the padding is PyTorch's usual one: as much arithmetic and
            as many values, but not the same numbers.
    """

    def __init__(self, layers: Sequence[Mapping[str, Any]], *, exact: bool = False) -> None:
        super().__init__()
        self.described, self.exact = list(layers), exact
        self.parts = nn.ModuleDict({one["name"]: made for one in layers if (made := _part(one)) is not None})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits: (B, K), or (B, K, D, H, W) of a network of label maps."""
        values: dict[str, torch.Tensor] = {}
        for one in self.described:
            given = [values[name] for name in one["inputs"]] or [x]
            values[one["name"]] = self._value(one, given)
        return values[self.described[-1]["name"]]

    def _value(self, one: Mapping[str, Any], given: list[torch.Tensor]) -> torch.Tensor:
        kind, x = one["kind"], given[0]
        if kind == "input":
            return x
        if kind == "sum":
            return sum(given[1:], x)
        if kind == "concatenate":
            return torch.cat(given, 1)
        if kind == "mean":
            return x.mean((2, 3, 4))
        if kind == "relu":
            return functional.relu(x)
        if kind in ("convolution", "max_pool", "mean_pool"):
            x, padding = self._padded(one, x)
            if kind == "convolution":
                own = self.parts[one["name"]]
                return functional.conv3d(x, own.weight, own.bias, one["stride"], padding)
            if kind == "max_pool":
                return functional.max_pool3d(x, one["size"], one["stride"], padding)
            return functional.avg_pool3d(
                x, one["size"], one["stride"], padding, ceil_mode=one["same"], count_include_pad=False
            )
        return self.parts[one["name"]](x)

    def _padded(self, one: Mapping[str, Any], x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        """The values, and what the operation itself has to pad."""
        if not one["same"] or one["kind"] == "mean_pool":
            return x, (0, 0, 0)
        usual = tuple((size - 1) // 2 for size in one["size"])
        if not self.exact:
            return x, usual
        ends: list[int] = []
        for size, stride, length in zip(one["size"], one["stride"], x.shape[2:], strict=True):
            added = max(0, (-(-length // stride) - 1) * stride + size - length)
            ends = [added // 2, added - added // 2, *ends]
        lowest = float("-inf") if one["kind"] == "max_pool" else 0.0
        return functional.pad(x, ends, value=lowest), (0, 0, 0)


def _part(one: Mapping[str, Any]) -> nn.Module | None:
    """What has weights, or acts otherwise in training."""
    if one["kind"] == "convolution":
        return nn.Conv3d(one["from"], one["to"], one["size"], one["stride"], bias=one["bias"])
    if one["kind"] == "transposed":
        return nn.ConvTranspose3d(one["from"], one["to"], one["size"], one["stride"], bias=one["bias"])
    if one["kind"] == "norm":
        return nn.BatchNorm3d(one["to"], eps=one["epsilon"], momentum=1 - one["momentum"])
    if one["kind"] == "dropout":
        return nn.Dropout(one["rate"])
    if one["kind"] == "dense":
        return nn.Linear(one["from"], one["to"], bias=one["bias"])
    return None


def give(network: Described, weights: Mapping[str, Any]) -> None:
    """Give a network the weights of Keras' one: arrays by `<layer>/<number>`, in Keras' order and layout."""
    places = {
        "convolution": [("weight", (4, 3, 0, 1, 2)), ("bias", (0,))],
        "transposed": [("weight", (4, 3, 0, 1, 2)), ("bias", (0,))],
        "norm": [("weight", (0,)), ("bias", (0,)), ("running_mean", (0,)), ("running_var", (0,))],
        "dense": [("weight", (1, 0)), ("bias", (0,))],
    }
    with torch.no_grad():
        for one in network.described:
            for number, (name, order) in enumerate(places.get(one["kind"], ())):
                if f"{one['name']}/{number}" in weights:
                    array = weights[f"{one['name']}/{number}"].transpose(order).copy()
                    getattr(network.parts[one["name"]], name).copy_(torch.from_numpy(array))
