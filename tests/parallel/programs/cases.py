"""What the equivalence proof trains: one network and one batch sequence per optimizer option.

Plain Keras, but for what layers draw at random. `plain_keras.py` (one process, no strategy) and
`distributed.py` (several ranks) both take their networks, optimizers and data from here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras.optimizers import SGD, Adam, AdamW, LossScaleOptimizer

from trainer.strategies.draws import Draws, SamplesOfPass

BATCH = 12  # divisible by 1, 2, 3 and 4 ranks
STEPS = 6
SEED = 5  # of what layers draw


@dataclass(frozen=True)
class Case:
    """One option. `ring` holds what only the distributed side knows; tolerances are absolute."""

    optimizer: Callable[[], keras.Optimizer]
    policy: str = "float32"
    batch_norm: bool = False
    ring: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 2e-6
    overflow_at: int | None = None  # a step at which one sample overflows float16
    noise: bool = False  # layers that draw at random
    normals: bool = True  # normal numbers, too, which are not compiled
    compiled: bool = False  # the update, by XLA; not the reference's
    passes: str = "none"  # how XLA compiles them; not the reference's


CASES = {
    "sgd": Case(lambda: SGD(0.1)),
    "momentum": Case(lambda: SGD(0.1, momentum=0.9, nesterov=True)),
    "adam": Case(lambda: Adam(0.01), tolerance=2e-5),
    "adamw": Case(lambda: AdamW(0.01, weight_decay=0.1), tolerance=2e-5),
    "clip_norm": Case(lambda: SGD(0.1, clipnorm=0.01)),
    "clip_value": Case(lambda: SGD(0.1, clipvalue=0.003)),
    "global_clip_norm": Case(lambda: SGD(0.1, global_clipnorm=0.02)),
    "accumulation": Case(lambda: SGD(0.1, momentum=0.9, gradient_accumulation_steps=2)),
    "accumulation_clip": Case(
        lambda: Adam(0.01, global_clipnorm=0.02, gradient_accumulation_steps=3), tolerance=2e-5
    ),
    "weight_decay": Case(lambda: SGD(0.1, weight_decay=0.1)),
    "ema": Case(lambda: SGD(0.1, use_ema=True, ema_momentum=0.8)),
    "ema_overwrite": Case(lambda: SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2)),
    "static_loss_scale": Case(lambda: SGD(0.1, loss_scale_factor=64.0)),
    "per_tensor": Case(lambda: SGD(0.1, clipnorm=0.01), ring={"reduction": "per_tensor"}),
    "grouped": Case(lambda: SGD(0.1, clipnorm=0.01), ring={"reduction": "grouped"}),
    "small_buckets": Case(lambda: SGD(0.1, clipnorm=0.01), ring={"bucket_mb": 0.0005}),
    "sync_batch_norm": Case(lambda: SGD(0.1, momentum=0.9), batch_norm=True, tolerance=1e-5),
    "sync_batch_norm_accumulation": Case(
        lambda: SGD(0.1, gradient_accumulation_steps=2), batch_norm=True, tolerance=1e-5
    ),
    # Where rounding is 1e-16, another algorithm than one process' has nowhere to hide.
    "float64": Case(lambda: SGD(0.1, momentum=0.9), policy="float64", batch_norm=True, tolerance=1e-12),
    "float64_gather": Case(
        lambda: SGD(0.1), policy="float64", batch_norm=True, ring={"gather": True}, tolerance=1e-12
    ),
    "compiled_float64": Case(
        lambda: AdamW(0.01, weight_decay=0.1, clipnorm=0.01, use_ema=True, ema_momentum=0.8),
        policy="float64",
        tolerance=1e-12,
        compiled=True,
    ),
    "compiled": Case(lambda: AdamW(0.01, weight_decay=0.1, clipvalue=0.01), compiled=True),  # on servers
    "compiled_accumulation": Case(
        lambda: Adam(0.01, global_clipnorm=0.02, gradient_accumulation_steps=3),
        policy="float64",
        tolerance=1e-12,
        compiled=True,
    ),
    "compiled_loss_scale_overflow": Case(
        lambda: LossScaleOptimizer(SGD(0.1), initial_scale=128.0),
        policy="mixed_float16",
        tolerance=1e-3,
        overflow_at=2,
        compiled=True,
    ),
    **{
        f"passes_{way}": Case(
            lambda: SGD(0.1, momentum=0.9),
            policy="float64",
            batch_norm=True,
            noise=True,
            normals=False,
            ring={"bucket_mb": 0.0005},
            tolerance=1e-12,
            passes=way,
        )
        for way in ("whole", "buckets")
    },
    "noise": Case(lambda: SGD(0.1, momentum=0.9), noise=True, tolerance=1e-5),
    "noise_float64": Case(
        lambda: SGD(0.1, momentum=0.9), policy="float64", batch_norm=True, noise=True, tolerance=1e-12
    ),
    "noise_accumulation": Case(
        lambda: SGD(0.1, gradient_accumulation_steps=2), policy="float64", noise=True, tolerance=1e-12
    ),
    "noise_bfloat16": Case(lambda: SGD(0.1), policy="mixed_bfloat16", noise=True, tolerance=3e-3),
    "float16_wire": Case(lambda: SGD(0.1), ring={"compression": "float16"}, tolerance=3e-4),
    "bfloat16_wire": Case(lambda: SGD(0.1), ring={"compression": "bfloat16"}, tolerance=2e-3),
    "bfloat16": Case(lambda: SGD(0.1), policy="mixed_bfloat16", tolerance=3e-3),
    "loss_scale": Case(
        lambda: LossScaleOptimizer(SGD(0.1), initial_scale=128.0, dynamic_growth_steps=3),
        policy="mixed_float16",
        tolerance=1e-3,
    ),
    "loss_scale_overflow": Case(
        lambda: LossScaleOptimizer(SGD(0.1), initial_scale=128.0),
        policy="mixed_float16",
        tolerance=1e-3,
        overflow_at=2,
    ),
    "loss_scale_accumulation_overflow": Case(
        lambda: LossScaleOptimizer(SGD(0.1, gradient_accumulation_steps=2), initial_scale=128.0),
        policy="mixed_float16",
        tolerance=1e-3,
        overflow_at=2,
    ),
    "loss_scale_sync_batch_norm": Case(
        lambda: LossScaleOptimizer(SGD(0.1), initial_scale=128.0),
        policy="mixed_float16",
        batch_norm=True,
        tolerance=3e-3,
    ),
}


class DropPath(keras.layers.Layer):
    """Stochastic depth (arXiv 1603.09382) as a user may write it, with a strength that all samples share."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator()

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        each = keras.random.uniform((keras.ops.shape(x)[0], 1, 1, 1, 1), seed=self.seeds)
        all_alike = keras.random.uniform((1, 1, 1, 1, 1), seed=self.seeds)
        return x * keras.ops.cast(each >= 0.25, x.dtype) * keras.ops.cast(1 + all_alike, x.dtype)


def network(
    case: Case, batch_norm: type[keras.layers.Layer] = keras.layers.BatchNormalization
) -> keras.Model:
    """A small 3D network; the first convolution has no bias: under batch norm its gradient is noise."""
    layers = [keras.Input((8, 8, 8, 1)), keras.layers.Conv3D(4, 3, use_bias=False)]
    if case.batch_norm:
        layers.append(batch_norm(momentum=0.7))
    layers.append(keras.layers.Activation("tanh"))
    if case.noise:
        layers += [keras.layers.SpatialDropout3D(0.3), DropPath()]
        layers += [keras.layers.GaussianNoise(0.2)] if case.normals else []
    layers += [keras.layers.Conv3D(6, 3, strides=2), keras.layers.Activation("tanh")]
    if case.noise:
        layers += [keras.layers.Dropout(0.4), keras.layers.AlphaDropout(0.2)]
    layers.append(keras.layers.GlobalAveragePooling3D())
    if case.noise and case.normals:
        layers.append(keras.layers.GaussianDropout(0.2))
    layers += [
        keras.layers.Dense(3, dtype="float64" if keras.config.floatx() == "float64" else "float32"),
    ]
    return keras.Sequential(layers)


def set_precision(case: Case) -> None:
    """Choose the policy of what is built from now on; Keras' losses compute in the type of `floatx`."""
    keras.config.set_floatx("float64" if case.policy == "float64" else "float32")
    keras.config.set_dtype_policy(case.policy)


def batches(case: Case) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The global batches: volumes, classes, weights (the last one's tail only fills up: weight 0)."""
    rng = np.random.default_rng(7)
    found = []
    for step in range(STEPS):
        x = rng.normal(1.0, 2.0, size=(BATCH, 8, 8, 8, 1)).astype(np.float32)
        if step == case.overflow_at:
            x[BATCH - 1] *= 1e6  # in the last rank's share only: the others see nothing wrong
        w = np.ones(BATCH, np.float32)
        if step == STEPS - 1:
            w[:9], w[9:] = BATCH / 9, 0
        y = rng.integers(0, 3, BATCH).astype(np.int32)
        found.append((x.astype(keras.config.floatx()), y, w.astype(keras.config.floatx())))
    return found


def train_in_one_process(model: keras.Model, case: Case, rounds: int = 1) -> None:
    """Train with Keras alone, on the whole batches; layers draw what they draw for these samples."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=case.optimizer(), loss=loss, jit_compile=False, run_eagerly=case.noise)
    model.optimizer.build(model.trainable_variables)
    draws = Draws(model, SEED)
    parts = model.optimizer.gradient_accumulation_steps or 1
    for number, (x, y, w) in enumerate(rounds * batches(case)):
        samples = SamplesOfPass(((number % parts * BATCH, BATCH),), whole=parts == 1)
        with draws.of_pass(x, number // parts, samples) if case.noise else contextlib.nullcontext():
            model.train_on_batch(x, y, sample_weight=w)


def state(model: keras.Model, optimizer: keras.Optimizer) -> dict[str, np.ndarray]:
    """All weights and all of the optimizer's variables, by number."""
    arrays = {f"weight_{i}": np.asarray(v.value) for i, v in enumerate(model.weights)}
    return arrays | {f"optimizer_{i}": np.asarray(v.value) for i, v in enumerate(optimizer.variables)}
