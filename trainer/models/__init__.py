"""Networks: one file per network, a registry, nothing but Keras 3 (any back end).

    from trainer import models
    model = models.build("resattnet18", input_shape=(96, 96, 96, 1), outputs=2, width=16)

`build` returns a `keras.Model` from volumes `(B, D, H, W, C)` to float32 logits `(B, outputs)`, or
`(B, D, H, W, outputs)` where an output for each voxel is asked for (`dense=True`). Importing this package
also makes our layers known to `keras.saving`, so import it before `keras.models.load_model`.
"""

from __future__ import annotations

from trainer.models import (  # noqa: F401  they register themselves
    alexnet,
    conv2,
    densenet,
    resattnet,
    resnet,
    sfcn,
    tiny,
    unet,
    vgg,
)
from trainer.models.network import Network
from trainer.models.registry import build, describe, names, outline, register

__all__ = ["Network", "build", "describe", "names", "outline", "register"]
