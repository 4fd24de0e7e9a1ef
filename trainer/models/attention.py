"""Self-attention over the voxels of a feature map.

Zhang et al., "Self-Attention Generative Adversarial Networks" (arXiv 1805.08318, section 3), in three
dimensions, as 3D-ResAttNet uses it (arXiv 2008.04024). With the feature map x as N = D*H*W vectors of C
channels:

    f, g = W_f x, W_g x   (C/8 channels)      h = W_h x   (C channels)
    beta[j, i] = softmax over i of f(x_i)' g(x_j)
    y_j = gamma * sum_i beta[j, i] h(x_i) + x_j      gamma starts at 0

The projections are plain 1x1x1 `Conv3D` layers, so that a planner sees them as it sees any convolution.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from trainer.models.layers import pooling_dtype

# An attention map has N x keys entries: 4096 keys, a 16^3 grid, are the most that are looked at one by one.
MOST_KEYS = 4096


def self_attention(x: Any, *, name: str, most_keys: int = MOST_KEYS) -> Any:
    """Add self-attention to a feature map `(B, D, H, W, C)`; the shape stays.

    On a grid of more than `most_keys` voxels, f and h are averaged over 2x2x2 neighbours until they fit;
    every voxel still asks (g), so that the map grows linearly with the volume instead of with its square.
    """
    channels = x.shape[-1]
    inner = max(1, channels // 8)
    keys = x
    for level in range(_halvings(x.shape[1:4], most_keys)):
        pool = keras.layers.AveragePooling3D(
            2, padding="same", dtype=pooling_dtype(), name=f"{name}_pool{level + 1}"
        )
        keys = pool(keys)
    f = _project(keys, inner, name=f"{name}_f")
    g = _project(x, inner, name=f"{name}_g")
    h = _project(keys, channels, name=f"{name}_h")
    return AttentionSum(name=f"{name}_sum")([f, g, h, x])


def _project(x: Any, channels: int, *, name: str) -> Any:
    return keras.layers.Conv3D(channels, 1, kernel_initializer="glorot_uniform", name=name)(x)


def _halvings(size: tuple[int, ...], most_keys: int) -> int:
    """How often a grid of `size` must be halved to have at most `most_keys` voxels."""
    count = 0
    while size[0] * size[1] * size[2] > most_keys:
        size = tuple((side + 1) // 2 for side in size)
        count += 1
    return count


@keras.saving.register_keras_serializable(package="cingulum")
class AttentionSum(keras.layers.Layer):
    """gamma * softmax(f'g) h + x, with one learned gamma that starts at 0.

    Call with [f `(B, d, h, w, c)`, g `(B, D, H, W, c)`, h `(B, d, h, w, C)`, x `(B, D, H, W, C)`];
    returns `(B, D, H, W, C)`. The softmax is at least float32 at any precision policy.
    """

    def build(self, input_shape: Any) -> None:
        """Create gamma."""
        self.gamma = self.add_weight(name="gamma", shape=(), initializer="zeros")
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Mix the values of all voxels into each voxel."""
        f, g, h, x = inputs
        keys, queries, values = (_flatten(part) for part in (f, g, h))
        scores = ops.einsum("bjc,bic->bji", queries, keys)
        scores = ops.cast(scores, keras.backend.result_type(scores.dtype, "float32"))
        # ops.softmax warns where the grid is down to one voxel, although 1 is right there.
        beta = ops.exp(scores - ops.logsumexp(scores, axis=-1, keepdims=True))
        mixed = ops.einsum("bji,bic->bjc", ops.cast(beta, values.dtype), values)
        return ops.cast(self.gamma, x.dtype) * ops.reshape(mixed, (-1, *x.shape[1:])) + x

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of x."""
        return input_shape[3]


def _flatten(x: Any) -> Any:
    """`(B, D, H, W, C)` to `(B, D*H*W, C)`."""
    _, depth, height, width, channels = x.shape
    return ops.reshape(x, (-1, depth * height * width, channels))
