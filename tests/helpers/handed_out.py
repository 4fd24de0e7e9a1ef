"""What a loader hands out, as arrays of our own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.data.loading.batch_reader import Batches


def as_arrays(batches: Batches) -> list[Any]:
    """Every batch of one pass, copied; nested as it was."""
    return [tf.nest.map_structure(lambda tensor: tensor.numpy().copy(), batch) for batch in batches]
