"""The parts that the networks share: normalisation, convolution, residual block, stem and head.

Everything here takes and returns symbolic tensors `(B, D, H, W, C)` and names each layer, so that a layer
has the same name in every build, checkpoint and plan.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import keras

from trainer.errors import ModelError

Normalisation = Literal["batch", "sync", "group", "instance", "layer", "none"]

# As in the published PyTorch models (momentum 0.1 there). Keras' own 0.99 needs hundreds of steps before the
# moving statistics are usable, and a brain cohort has a handful of steps in an epoch.
BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-5}


def normalisation(kind: str, channels: int, *, name: str, gamma: str = "ones") -> keras.layers.Layer | None:
    """Return a new normalisation layer over the last axis, or None for 'none'.

    Args:
        kind: 'batch'; 'sync' (batch statistics over all ranks); 'group' (Wu and He, arXiv 1803.08494: at
            most 32 groups, at least 4 channels in each); 'instance' (Ulyanov et al., arXiv 1607.08022: each
            channel of each sample by itself); 'layer' (one group: all of a sample together); 'none'.
        channels: length of the last axis.
        gamma: initialiser of the scale.

    Raises:
        ModelError: there is no such kind.
    """
    if kind == "batch":
        return keras.layers.BatchNormalization(**BATCH_NORM, gamma_initializer=gamma, name=name)
    if kind == "sync":
        # The only layer that knows of ranks: imported when asked for, so that networks stay free of Horovod.
        from trainer.models.batch_norm import SyncBatchNormalization

        return SyncBatchNormalization(**BATCH_NORM, gamma_initializer=gamma, name=name)
    if kind in ("group", "instance", "layer"):
        groups = {"group": _groups(channels), "instance": channels, "layer": 1}[kind]
        return keras.layers.GroupNormalization(groups, epsilon=1e-5, gamma_initializer=gamma, name=name)
    if kind == "none":
        return None
    known = ", ".join(get_args(Normalisation))
    raise ModelError(
        f"There is no normalisation {kind!r}.", cure=f"Known: {known}.", key="model.options.normalisation"
    )


def _groups(channels: int) -> int:
    """The largest divisor of `channels` that leaves at most 32 groups of at least 4 channels."""
    most = max(1, min(32, channels // 4))
    return max(groups for groups in range(1, most + 1) if channels % groups == 0)


def normalised(x: Any, kind: str, *, name: str, gamma: str = "ones") -> Any:
    """Add `normalisation` of that kind to a feature map.

    Raises:
        ModelError: there is no such kind, or it would make every value 0.
    """
    sides = x.shape[1:-1]
    if kind == "instance" and max(sides) == 1:
        raise ModelError(
            f"Instance normalisation of one voxel always gives 0 ({name}).",
            cure="Take larger volumes, or model.options.normalisation=group.",
            key="model.options.normalisation",
        )
    layer = normalisation(kind, x.shape[-1], name=f"{name}_norm", gamma=gamma)
    return x if layer is None else layer(x)


def convolution(
    x: Any,
    channels: int,
    kernel: int,
    *,
    strides: int = 1,
    padding: str = "same",
    dilation: int = 1,
    norm: str,
    name: str,
    gamma: str = "ones",
) -> Any:
    """Add a convolution and normalisation, without activation, to a volume or (4 axes) an image.

    With padding 'same' a stride s gives ceil(size / s); 'even' has the same border on both sides, as
    PyTorch's `padding=kernel // 2`, where TensorFlow's has less before than after.
    """
    if padding == "even":
        padding = "same"
        if strides > 1:
            x = keras.layers.ZeroPadding3D(kernel // 2, name=f"{name}_border")(x)
            padding = "valid"
    kind = keras.layers.Conv3D if len(x.shape) == 5 else keras.layers.Conv2D
    x = kind(
        channels,
        kernel,
        strides=strides,
        padding=padding,
        dilation_rate=dilation,
        use_bias=norm == "none",  # a normalisation would take the bias away again
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
    return normalised(x, norm, name=name, gamma=gamma)


def relu(x: Any, *, name: str) -> Any:
    """Add a rectified linear activation under a stable name."""
    return keras.layers.Activation("relu", name=f"{name}_relu")(x)


def residual_block(
    x: Any,
    channels: int,
    *,
    strides: int = 1,
    norm: str,
    name: str,
    padding: str = "same",
    dilation: int = 1,
    shortcut: str = "B",
) -> Any:
    """Add a basic residual block: two 3x3x3 convolutions beside a shortcut (He et al., arXiv 1512.03385,
    3.3).

    The shortcut is the identity where shapes agree and a 1x1x1 convolution elsewhere (option B), or every
    second voxel with channels of zeros beside (option A). The last normalisation starts with scale 0, so that
    a block starts as the identity (Goyal et al., arXiv 1706.02677, section 5.1), which steadies the first
    steps of large global batches.
    """
    beside = shortcut_of(x, channels, strides=strides, norm=norm, name=name, kind=shortcut)
    y = convolution(
        x, channels, 3, strides=strides, padding=padding, dilation=dilation, norm=norm, name=f"{name}_1"
    )
    y = relu(y, name=f"{name}_1")
    y = convolution(y, channels, 3, dilation=dilation, norm=norm, name=f"{name}_2", gamma="zeros")
    return relu(keras.layers.Add(name=f"{name}_sum")([y, beside]), name=name)


def shortcut_of(x: Any, channels: int, *, strides: int, norm: str, name: str, kind: str) -> Any:
    """Return what is added to a block's output: its input, brought to the output's shape."""
    if strides == 1 and x.shape[-1] == channels:
        return x
    if kind == "B":
        return convolution(x, channels, 1, strides=strides, norm=norm, name=f"{name}_shortcut")
    if strides > 1:
        x = keras.layers.AveragePooling3D(1, strides, name=f"{name}_shortcut_pool")(x)
    missing = [
        keras.layers.Rescaling(0.0, name=f"{name}_shortcut_zeros{number}")(x)
        for number in range(1, channels // x.shape[-1])
    ]
    return keras.layers.Concatenate(name=f"{name}_shortcut")([x, *missing])


def stem(x: Any, channels: int, *, norm: str, padding: str = "same") -> Any:
    """Add a 7x7x7 convolution and a 3x3x3 maximum, each with stride 2: a quarter of each axis."""
    x = convolution(x, channels, 7, strides=2, padding=padding, norm=norm, name="stem")
    x = relu(x, name="stem")
    if padding == "even":  # no less than ReLU gives
        x = keras.layers.ZeroPadding3D(1, name="stem_pool_border")(x)
        return max_pool(x, 3, strides=2, name="stem")
    return max_pool(x, 3, strides=2, padding="same", name="stem")


def max_pool(x: Any, size: int, *, strides: int, padding: str = "valid", name: str) -> Any:
    """Add a maximum over `size` voxels along each axis, of a volume or (4 axes) of an image."""
    kind = keras.layers.MaxPooling3D if len(x.shape) == 5 else keras.layers.MaxPooling2D
    return kind(size, strides=strides, padding=padding, dtype=pooling_dtype(), name=f"{name}_pool")(x)


def pooling_dtype() -> str | None:
    """Return the type to pool in: float32 instead of float16, for which TensorFlow 2.21 has no kernel on a
    CPU.
    """
    return "float32" if keras.config.dtype_policy().compute_dtype == "float16" else None


def head(x: Any, classes: int, *, dropout: float, hidden: int = 0, pool: str = "mean") -> Any:
    """Add pooling, dropout, and logits `(B, classes)` that are float32 at any precision policy.

    Args:
        hidden: units of two layers with ReLU and dropout in between, as AlexNet and VGG have them; 0: none.
        pool: 'mean' over the volume, which forgets where a feature was seen; 'none': each place of the last
            feature map by itself.

    Raises:
        ModelError: no such pool, or hidden or dropout out of range.
    """
    if pool not in ("mean", "none"):
        raise ModelError(f"There is no pool {pool!r}.", cure="Known: mean, none.", key="model.options.pool")
    if not isinstance(hidden, int) or hidden < 0:
        raise ModelError(
            f"hidden is {hidden!r}: it must be a whole number of units, or 0 for none.",
            key="model.options.hidden",
        )
    if pool == "mean":
        x = keras.layers.GlobalAveragePooling3D(name="head_pool")(x)
    else:
        x = keras.layers.Flatten(name="head_places")(x)
    for number in (1, 2) if hidden else ():
        x = drop(x, dropout, name=f"head_{number}")
        x = keras.layers.Dense(hidden, kernel_initializer="he_normal", name=f"head_{number}_dense")(x)
        x = relu(x, name=f"head_{number}")
    x = drop(x, dropout, name="head")
    return keras.layers.Dense(classes, dtype="float32", name="head_logits")(x)


def drop(x: Any, share: float, *, name: str) -> Any:
    """Drop a share of the features in training; no layer at all where that is 0."""
    if not 0 <= share < 1:
        raise ModelError(
            f"dropout is {share!r}: it must be at least 0 and below 1.", key="model.options.dropout"
        )
    return keras.layers.Dropout(share, name=f"{name}_dropout")(x) if share else x
