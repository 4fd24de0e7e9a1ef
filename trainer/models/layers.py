"""The parts that the networks share: normalisation, convolution, residual block, stem and head.

Everything here takes and returns symbolic tensors `(B, D, H, W, C)` and names each layer, so that a layer
has the same name in every build, checkpoint and plan.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import keras

from trainer.errors import ModelError

Normalisation = Literal["batch", "sync", "group", "layer", "none"]

# As in the published PyTorch models (momentum 0.1 there). Keras' own 0.99 needs hundreds of steps before the
# moving statistics are usable, and a brain cohort has a handful of steps in an epoch.
BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-5}


def normalisation(kind: str, channels: int, *, name: str, gamma: str = "ones") -> keras.layers.Layer | None:
    """A new normalisation layer over the last axis, or None for 'none'.

    Args:
        kind: 'batch'; 'sync' (batch statistics over all ranks); 'group' (Wu and He, arXiv 1803.08494: at
            most 32 groups, at least 4 channels in each); 'layer' (one group: each sample's own); 'none'.
        channels: length of the last axis.
        gamma: initialiser of the scale.

    Raises:
        ModelError: there is no such kind.
    """
    if kind == "batch":
        return keras.layers.BatchNormalization(**BATCH_NORM, gamma_initializer=gamma, name=name)
    if kind == "sync":
        # The only layer that knows of ranks: imported when asked for, so that networks stay free of Horovod.
        from trainer.strategies.batch_norm import SyncBatchNormalization

        return SyncBatchNormalization(**BATCH_NORM, gamma_initializer=gamma, name=name)
    if kind in ("group", "layer"):
        groups = 1 if kind == "layer" else _groups(channels)
        return keras.layers.GroupNormalization(groups, epsilon=1e-5, gamma_initializer=gamma, name=name)
    if kind == "none":
        return None
    known = ", ".join(get_args(Normalisation))
    raise ModelError(f"There is no normalisation {kind!r}.", cure=f"Known: {known}.")


def _groups(channels: int) -> int:
    """The largest divisor of `channels` that leaves at most 32 groups of at least 4 channels."""
    most = max(1, min(32, channels // 4))
    return max(groups for groups in range(1, most + 1) if channels % groups == 0)


def convolution(
    x: Any, channels: int, kernel: int, *, strides: int = 1, norm: str, name: str, gamma: str = "ones"
) -> Any:
    """Convolution and normalisation, without activation; padded so that a stride s gives ceil(size / s)."""
    x = keras.layers.Conv3D(
        channels,
        kernel,
        strides=strides,
        padding="same",
        use_bias=norm == "none",  # a normalisation would take the bias away again
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
    layer = normalisation(norm, channels, name=f"{name}_norm", gamma=gamma)
    return x if layer is None else layer(x)


def relu(x: Any, *, name: str) -> Any:
    """Rectified linear activation under a stable name."""
    return keras.layers.Activation("relu", name=f"{name}_relu")(x)


def residual_block(x: Any, channels: int, *, strides: int = 1, norm: str, name: str) -> Any:
    """Basic residual block: two 3x3x3 convolutions beside a shortcut (He et al., arXiv 1512.03385, 3.3).

    The shortcut is the identity where shapes agree and a 1x1x1 convolution elsewhere (option B). The last
    normalisation starts with scale 0, so that a block starts as the identity (Goyal et al., arXiv 1706.02677,
    section 5.1), which steadies the first steps of large global batches.
    """
    shortcut = x
    if strides != 1 or x.shape[-1] != channels:
        shortcut = convolution(x, channels, 1, strides=strides, norm=norm, name=f"{name}_shortcut")
    y = convolution(x, channels, 3, strides=strides, norm=norm, name=f"{name}_1")
    y = relu(y, name=f"{name}_1")
    y = convolution(y, channels, 3, norm=norm, name=f"{name}_2", gamma="zeros")
    return relu(keras.layers.Add(name=f"{name}_sum")([y, shortcut]), name=name)


def stem(x: Any, channels: int, *, norm: str) -> Any:
    """7x7x7 convolution and 3x3x3 maximum, each with stride 2: a quarter of the size along each axis."""
    x = relu(convolution(x, channels, 7, strides=2, norm=norm, name="stem"), name="stem")
    return keras.layers.MaxPooling3D(3, strides=2, padding="same", dtype=pooling_dtype(), name="stem_pool")(x)


def pooling_dtype() -> str | None:
    """The type to pool in: float32 instead of float16, for which TensorFlow 2.21 has no kernel on a CPU."""
    return "float32" if keras.config.dtype_policy().compute_dtype == "float16" else None


def head(x: Any, classes: int, *, dropout: float) -> Any:
    """Mean over the volume, dropout, and logits `(B, classes)` that are float32 at any precision policy."""
    if not 0 <= dropout < 1:
        raise ModelError(f"dropout is {dropout!r}: it must be at least 0 and below 1.")
    x = keras.layers.GlobalAveragePooling3D(name="head_pool")(x)
    if dropout:
        x = keras.layers.Dropout(dropout, name="head_dropout")(x)
    return keras.layers.Dense(classes, dtype="float32", name="head_logits")(x)
