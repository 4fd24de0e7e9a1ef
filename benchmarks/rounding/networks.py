"""Registered networks with the same sums in float32 and float64.

TensorFlow has no maximum pooling of volumes in float64 on a processor: there the same maximum is taken of
shifted slices, and strides are taken by leaving out voxels.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

WIDTHS = {"tiny": 8}  # of the others: 4 channels


def network(spec: str, edge: int, precision: str, *, synchronous: bool) -> Any:
    """A registered network by 'name[:normalisation[:activation]]', such as tanh in place of its ReLUs."""
    import keras

    from trainer import models

    name, normalisation, activation = (*spec.split(":"), "", "")[:3]
    options = {"normalisation": normalisation} if normalisation else {}
    if "dropout" in models.describe(name).options:
        options["dropout"] = 0.0
    model = models.build(
        name, (edge, edge, edge, 1), 2, width=WIDTHS.get(name, 4), sync_batch_norm=synchronous, **options
    )

    def exchanged(layer: Any) -> Any:
        config = {**layer.get_config(), "dtype": precision}
        if activation and config.get("activation") == "relu":
            config["activation"] = activation
        if precision == "float64" and isinstance(layer, keras.layers.MaxPooling3D):
            return slices_maximum(config)
        if precision == "float64" and isinstance(layer, keras.layers.Conv3D):
            return moved_by_one(config)
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=exchanged)


def moved_by_one(config: dict[str, Any]) -> Any:
    """`keras.layers.Conv3D` whose kernel moves by one voxel and whose output is then thinned out.

    The same sums: TensorFlow's gradients of convolutions with strides take 15 times as long in float64.
    """
    import keras
    from keras import ops

    class Convolution(keras.layers.Conv3D):
        def convolution_op(self, inputs: Any, kernel: Any) -> Any:
            step, size = self.strides[0], self.kernel_size[0]
            if step == 1:
                return super().convolution_op(inputs, kernel)
            if self.padding == "same":
                inputs = padded(inputs, size, step, 0.0)
            return ops.conv(inputs, kernel, padding="valid")[:, ::step, ::step, ::step]

    return Convolution.from_config(config)


def padded(x: Any, size: int, step: int, value: float) -> Any:
    """A feature map with what the padding 'same' adds for a kernel or pool of this size and stride."""
    from keras import ops

    missing = [max((-(-n // step) - 1) * step + size - n, 0) for n in x.shape[1:4]]
    around = [(0, 0), *((p // 2, p - p // 2) for p in missing), (0, 0)]
    return ops.pad(x, around, constant_values=value)


def slices_maximum(config: dict[str, Any]) -> Any:
    """`keras.layers.MaxPooling3D` in any type: the maximum over strided slices, one per place of the pool."""
    import keras
    from keras import ops

    size, strides = config["pool_size"][0], config["strides"][0]

    def maximum(x: Any) -> Any:
        if config["padding"] == "same":
            x = padded(x, size, strides, -np.inf)
        sides = [(n - size) // strides + 1 for n in x.shape[1:4]]
        found = None
        for shift in itertools.product(range(size), repeat=3):
            d, h, w = (
                slice(s, s + (m - 1) * strides + 1, strides) for s, m in zip(shift, sides, strict=True)
            )
            part = x[:, d, h, w]
            found = part if found is None else ops.maximum(found, part)
        return found

    return keras.layers.Lambda(maximum, name=config["name"], dtype=config["dtype"])


def first_weights(spec: str, edge: int, seed: int) -> list[np.ndarray]:
    """The same float32 numbers in every process and at every precision."""
    import keras

    floatx = keras.config.floatx()
    keras.config.set_floatx("float32")
    keras.utils.set_random_seed(seed)
    found = network(spec, edge, "float32", synchronous=False).get_weights()
    keras.config.set_floatx(floatx)
    return list(found)
