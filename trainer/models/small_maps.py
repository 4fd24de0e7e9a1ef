"""Convolutions of maps smaller than their kernel, which bfloat16 gets wrong on processors.

Where oneDNN computes in bfloat16 (processors with AVX-512; TensorFlow 2.21), the gradient of the weights of
such a convolution holds whatever was in its memory before: not a number, or, in silence, any number. In
float32 and float16 it is right (docs/decisions/0071-onednn.md). Such maps are the last of a network, and
cost next to nothing in float32, so this is done wherever the network is trained.
"""

from __future__ import annotations

from typing import Any

import keras

_CONVOLUTIONS = (
    *(keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D),
    *(keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D),
)
_TRANSPOSED = (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose)


def in_float32(model: keras.Model) -> list[str]:
    """Let convolutions in bfloat16 whose kernel is larger than their map compute in float32.

    Args:
        model: functional, with shapes that are known. Its weights, float32 under this policy, are kept.

    Returns:
        The names of these layers.
    """
    found = [layer for layer in model._flatten_layers() if _is_too_small(layer)]
    for layer in found:
        layer.dtype_policy = "float32"
    return [layer.name for layer in found]


def _is_too_small(layer: keras.layers.Layer) -> bool:
    if not isinstance(layer, (*_CONVOLUTIONS, *_TRANSPOSED)) or layer.compute_dtype != "bfloat16":
        return False
    if layer.padding == "valid" and not isinstance(layer, _TRANSPOSED):
        return False  # the map is as large as the kernel, or there is no output
    reach = [(k - 1) * d + 1 for k, d in zip(layer.kernel_size, layer.dilation_rate, strict=True)]
    return any(
        edge is not None and edge < size
        for shape in _maps(layer)
        for edge, size in zip(shape, reach, strict=True)
    )


def _maps(layer: Any) -> list[tuple[int | None, ...]]:
    """Edges of the larger map of each call: what goes in, or what comes out of a transposed one."""
    axes = slice(2, None) if layer.data_format == "channels_first" else slice(1, -1)
    tensors = [
        (node.output_tensors if isinstance(layer, _TRANSPOSED) else node.input_tensors)[0]
        for node in layer._inbound_nodes
    ]
    return [tuple(tensor.shape[axes]) for tensor in tensors]
