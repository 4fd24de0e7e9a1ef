"""Layers of our networks as plain data, for another framework."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def described(model: keras.Model) -> list[dict[str, Any]]:
    """Return the layers, each after its inputs: name, kind, inputs (names), and what the kind needs.

    Raises:
        ValueError: there is a layer that has no name here.
    """
    return [
        {"name": one.name.replace(".", "_"), "inputs": _inputs(one), **_layer(one)} for one in model.layers
    ]


def arrays(model: keras.Model) -> dict[str, np.ndarray]:
    """Return all weights by `<layer>/<number>`, as `torch_networks.give` takes them."""
    return {
        f"{one.name.replace('.', '_')}/{number}": np.asarray(weight)
        for one in model.layers
        for number, weight in enumerate(one.get_weights())
    }


def _inputs(layer: Any) -> list[str]:
    if isinstance(layer, keras.layers.InputLayer):
        return []
    (node,) = layer._inbound_nodes
    return [before.operation.name.replace(".", "_") for before in node.parent_nodes]


def _layer(one: Any) -> dict[str, Any]:
    kinds = keras.layers
    if isinstance(one, kinds.InputLayer):
        return {"kind": "input"}
    if isinstance(one, kinds.Conv3DTranspose | kinds.Conv3D):
        name = "transposed" if isinstance(one, kinds.Conv3DTranspose) else "convolution"
        sizes = {"size": list(one.kernel_size), "stride": list(one.strides), "same": one.padding == "same"}
        channels = one.input.shape[-1]
        return {"kind": name, "from": channels, "to": one.filters, "bias": one.use_bias, **sizes}
    if isinstance(one, kinds.MaxPooling3D | kinds.AveragePooling3D):
        name = "max_pool" if isinstance(one, kinds.MaxPooling3D) else "mean_pool"
        same = {"same": one.padding == "same"}
        return {"kind": name, "size": list(one.pool_size), "stride": list(one.strides), **same}
    if isinstance(one, kinds.BatchNormalization):
        channels = one.input.shape[-1]
        return {"kind": "norm", "to": channels, "epsilon": one.epsilon, "momentum": one.momentum}
    if isinstance(one, kinds.Dense):
        channels = one.input.shape[-1]
        return {"kind": "dense", "from": channels, "to": one.units, "bias": one.use_bias}
    if isinstance(one, kinds.Dropout):
        return {"kind": "dropout", "rate": one.rate}
    simple = {kinds.Add: "sum", kinds.Concatenate: "concatenate", kinds.GlobalAveragePooling3D: "mean"}
    for kind, name in simple.items():
        if isinstance(one, kind):
            return {"kind": name}
    if isinstance(one, kinds.Activation) and one.activation is keras.activations.relu:
        return {"kind": "relu"}
    raise ValueError(f"{one.name}: a layer {type(one).__name__} has no name here")
