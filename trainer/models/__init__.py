"""Networks: one file per network, a registry, nothing but Keras 3 (any back end).

    from trainer import models
    model = models.build("resattnet18", input_shape=(96, 96, 96, 1), classes=2, width=16)

`build` returns a `keras.Model` from volumes `(B, D, H, W, C)` to float32 logits `(B, classes)`. Importing
this package also makes our layers known to `keras.saving`, so import it before `keras.models.load_model`.
"""

from __future__ import annotations

from trainer.models import resattnet, resnet, tiny  # noqa: F401  they register themselves
from trainer.models.registry import Network, build, describe, names, register

__all__ = ["Network", "build", "describe", "names", "register"]
