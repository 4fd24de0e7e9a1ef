"""One process that times kinds of layers, with or without oneDNN: forward and backward, on one thread.

Run by `cingulum.bench.step` as `python -m trainer.bench.convolutions JOB` under both values of
TF_ENABLE_ONEDNN_OPTS, so that the choice of `trainer.processor` is measured on this machine.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainer.bench import blocks
from trainer.bench.blocks import ProgressWatch


@dataclasses.dataclass(frozen=True)
class ConvolutionJob:
    """What to time: each kind of `KINDS`, `passes` times in a block."""

    passes: int = 1


# Name, edge of the volume in voxels, input channels, type, the layer's name in Keras and its options. A batch
# has two samples.
KINDS: tuple[tuple[str, int, int, str, str, Mapping[str, Any]], ...] = (
    ("3x3x3", 32, 16, "float32", "Conv3D", {"filters": 16, "kernel_size": 3}),
    ("3x3x3 of one channel", 32, 1, "float32", "Conv3D", {"filters": 16, "kernel_size": 3}),
    ("3x3x3, stride 2", 16, 16, "float32", "Conv3D", {"filters": 32, "kernel_size": 3, "strides": 2}),
    ("3x3x3 on 2x2x2 voxels", 2, 64, "float32", "Conv3D", {"filters": 64, "kernel_size": 3}),
    ("1x1x1", 16, 64, "float32", "Conv3D", {"filters": 64, "kernel_size": 1}),
    ("depthwise 3x3x3", 16, 16, "float32", "Conv3D", {"filters": 16, "kernel_size": 3, "groups": 16}),
    ("transposed, stride 2", 16, 16, "float32", "Conv3DTranspose",
     {"filters": 16, "kernel_size": 2, "strides": 2}),
    ("max pooling", 32, 16, "float32", "MaxPooling3D", {"pool_size": 2}),
    ("3x3x3 in float64", 16, 16, "float64", "Conv3D", {"filters": 16, "kernel_size": 3}),
    ("3x3x3 in bfloat16", 16, 16, "bfloat16", "Conv3D", {"filters": 16, "kernel_size": 3}),
)  # fmt: skip
_SAMPLES = 2


def main() -> None:
    """Time what the job on the command line describes, a block each time that a line comes."""
    job = ConvolutionJob(**json.loads(sys.argv[1]))
    from trainer.ranks import starting

    with ProgressWatch() as watch:
        watch.beat("importing TensorFlow")
        world = starting.init(threads=1)
        steps = {kind[0]: _forward_and_backward(*kind[1:]) for kind in KINDS}

        def block() -> list[float]:
            seconds = []
            for name, step in steps.items():
                watch.beat(f"timing {name}")
                seconds.append(statistics.median(_seconds(step) for _ in range(job.passes)))
            return seconds

        blocks.answer(world, block, watch)


def _forward_and_backward(
    edge: int, channels: int, dtype: str, name: str, options: Mapping[str, Any]
) -> Callable[[], Any]:
    """Return what computes a layer and its gradients, of inputs and weights, on random volumes."""
    import keras
    import numpy as np
    import tensorflow as tf

    if name != "MaxPooling3D":
        options = {**options, "padding": "same"}
    layer = getattr(keras.layers, name)(**options, dtype=dtype)
    shape = (_SAMPLES, edge, edge, edge, channels)
    volumes = tf.cast(np.random.default_rng(0).normal(size=shape), dtype)
    layer.build(shape)

    @tf.function(autograph=False, jit_compile=False)
    def both(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, [x, *(v.value for v in layer.trainable_variables)])

    return lambda: both(volumes)


def _seconds(step: Callable[[], Any]) -> float:
    started = time.perf_counter()
    step()[0].numpy()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
