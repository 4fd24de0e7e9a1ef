#!/usr/bin/env python3
"""One network on one device by our step and by plain Keras: seconds and memory, as JSON on standard output.

Run by `benchmarks/on_a_gpu.py` as `python tensorflow_part.py JOB`, where JOB is a `Job` as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import trainer  # noqa: F401  # before TensorFlow, which it prepares

# isort: split
import keras
import networks
import numpy as np
import tensorflow as tf

from trainer import models
from trainer.ranks.world import World
from trainer.strategies import compiled_passes, compiled_update, data
from trainer.strategies.learner import Setup
from trainer.tasks import losses

PRECISIONS = ("float32", "mixed_bfloat16")


@dataclasses.dataclass(frozen=True)
class Job:
    """What to time.

    Attributes:
        network: name of a registered one.
        way: `ours` or `keras`.
        size: edge of the volumes in voxels.
        batch: volumes per step.
        width: channels of the first stage; None: the network's own.
        steps: of a block, between two moments at which the device is waited for.
        blocks: how many.
    """

    network: str
    way: str = "ours"
    size: int = 96
    batch: int = 4
    width: int | None = None
    steps: int = 20
    blocks: int = 5

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(D, H, W, C) of a volume."""
        return (self.size, self.size, self.size, 1)

    @property
    def dense(self) -> bool:
        """Whether the network makes label maps."""
        return models.describe(self.network).dense


def main() -> None:
    """Print the layers, and a row for each way and precision."""
    job = Job(**json.loads(sys.argv[1]))
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    rows = []
    timed = {"ours": _ours, "keras": _keras}[job.way]
    for precision in PRECISIONS:
        keras.config.set_dtype_policy(precision)
        for compiled in (False, True):
            row = {"way": job.way, "precision": precision, "compiled": compiled}
            rows.append({**row, **timed(job, compiled)})
    keras.config.set_dtype_policy("float32")
    found = {"device": _device(), "rows": rows, "layers": networks.described(_network(job))}
    print(json.dumps(found))


def _ours(job: Job, compiled: bool) -> dict[str, Any]:
    """Our step on one rank, compiled where `train.compile=auto` does or not, and its parts by themselves."""
    model = _network(job)
    optimizer = compiled_update.compilable(keras.optimizers.AdamW(1e-3))
    optimizer.build(model.trainable_variables)
    compiled_update.set_compiled(optimizer, compiled)
    loss = _loss(job)
    learner = data.build(Setup(model, optimizer, World(), loss, lambda y, outputs: loss(y, outputs)))
    passes = compiled_passes.choose("auto" if compiled else "none", learner.passes(), job.batch, World())
    network = learner.passes().network(passes.way)
    with tf.device("CPU:0"):
        batch = [tf.constant(part) for part in _batch(job)]
    _forget_peak()
    found = _timed(lambda: learner.train_step(*batch), job)
    memory = _peak()

    x, y, _ = (tf.identity(part) for part in batch)

    @tf.function(autograph=False, jit_compile=False)
    def both(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            mean = tf.reduce_mean(loss(y, network(x)))
        gradients = tape.gradient(mean, [v.value for v in model.trainable_variables])
        return tf.add_n([tf.cast(tf.reshape(g, [-1])[0], tf.float32) for g in gradients])

    tried = compiled_update.trial(optimizer, model.trainable_variables)
    return {
        **found,
        "forward_backward_ms": _timed(lambda: both(x, y), job)["step_ms"],
        "update_ms": 1000 * (tried.compiled_s if compiled else tried.plain_s),
        "fault": tried.fault,
        "passes": passes.model_dump(),
        "peak_bytes": memory,
        "parameters": model.count_params(),
    }


def _keras(job: Job, compiled: bool) -> dict[str, Any]:
    """A step of plain Keras, all of it compiled by XLA or not."""
    if compiled and not tf.config.list_physical_devices("GPU"):
        return {"fault": "on a processor XLA's convolutions take minutes"}
    model, loss = _network(job), _loss(job)

    def of_classes(y: Any, outputs: Any) -> Any:
        return loss(tf.cast(y, tf.int32), outputs)  # Keras makes them float32

    model.compile(keras.optimizers.AdamW(1e-3), loss=of_classes, jit_compile=compiled)
    model.make_train_function()
    step: Callable[..., Any] = model.train_function
    batches = iter(tf.data.Dataset.from_tensors(_batch(job)).repeat().prefetch(2))
    _forget_peak()
    try:
        return {**_timed(lambda: step(batches), job), "peak_bytes": _peak()}
    except tf.errors.OpError as error:
        return {"fault": str(error).strip().partition("\n")[0][:200]}


def _network(job: Job) -> keras.Model:
    keras.utils.set_random_seed(1)
    return models.build(job.network, job.shape, 2, dense=job.dense, width=job.width)


def _loss(job: Job) -> Callable[..., Any]:
    return losses.dice_cross_entropy() if job.dense else losses.cross_entropy()


def _batch(job: Job) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Volumes, targets and weights in the host's memory, as the loader hands them over."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((job.batch, *job.shape)).astype(np.float32)
    maps = rng.integers(0, 2, (job.batch, *job.shape[:3])).astype(np.uint8)
    y = maps if job.dense else (np.arange(job.batch) % 2).astype(np.int32)
    return x, y, np.ones(job.batch, np.float32)


def _timed(step: Callable[[], Any], job: Job) -> dict[str, Any]:
    """Milliseconds of a step: median, fastest and slowest block; three steps warm up."""
    began = time.perf_counter()
    for _ in range(3):
        step()
    tf.test.experimental.sync_devices()
    first, blocks = time.perf_counter() - began, []
    for _ in range(job.blocks):
        began = time.perf_counter()
        for _ in range(job.steps):
            step()
        tf.test.experimental.sync_devices()
        blocks.append(1000 * (time.perf_counter() - began) / job.steps)
    return {"step_ms": statistics.median(blocks), "block_ms": blocks, "first_s": first}


def _forget_peak() -> None:
    if tf.config.list_physical_devices("GPU"):
        tf.config.experimental.reset_memory_stats("GPU:0")


def _peak() -> int | None:
    """The most bytes that TensorFlow held on the GPU; None without one."""
    if not tf.config.list_physical_devices("GPU"):
        return None
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])


def _device() -> str:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "CPU"
    return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU"))


if __name__ == "__main__":
    main()
