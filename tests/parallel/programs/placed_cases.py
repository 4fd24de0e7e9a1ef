"""What the proofs of divided networks train: networks, strategies, options and the data of each case.

`placed.py` takes its cases from here, and so does its test. Nothing here starts MPI.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import network_cases
import numpy as np
import tensorflow as tf
from divided_networks import mixed_network

from trainer import models
from trainer.config import DataConfig, RunConfig, TrainConfig
from trainer.models import attention
from trainer.models import layers as parts
from trainer.tasks import losses

EVALUATED = 2
SGD = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}
# From a number of ranks to a section `train.strategy`.
Strategy = Callable[[int], dict[str, Any]]


def section(name: str, **options: Any) -> Strategy:
    """The same section for any number of ranks."""
    return lambda ranks: {"name": name, **options}


HYBRID = section("hybrid", micro_batches=2)
VOLUME = section("hypergraph", objective="volume", imbalance=0.3)
SPATIAL, FILTERS = section("spatial", small_maps="space"), section("filters")
WAYS: dict[str, Strategy] = {
    "spatial": SPATIAL,
    "filters": FILTERS,
    "master": lambda ranks: {
        "name": "filters",
        "mode": "master",
        "shares": [1 / (1 + i) for i in range(ranks)],
    },
    "hybrid": HYBRID,
    "hypergraph": VOLUME,
}
MASTER = WAYS["master"]


def both(targets: Any, outputs: Any) -> Any:
    """A loss that both outputs of a network take part in, the second one twice as much."""
    first, second = (tf.reduce_mean(tf.square(one - 0.1), axis=1) for one in outputs)
    return first + 2 * second


def nothing(targets: Any, outputs: Any) -> Any:
    """A score that says nothing."""
    return 0.0 * both(targets, outputs)


LOSSES = {
    "classes": (losses.cross_entropy(), losses.hits),
    "numbers": (losses.huber(), losses.absolute()),
    "maps": (losses.dice_cross_entropy(), losses.mean_dice),
    "both": (both, nothing),
}


@dataclass(frozen=True)
class Case:
    """One training of an update's `batch` samples for some `steps`, and how near it must come.

    Attributes:
        network: builds it.
        strategy: `train.strategy`.
        anew: `train.strategy` of every second update, over the same ranks.
        seed: of layouts at random, instead of the strategy's own.
        train: further keys of `train`.
        loss: a key of `LOSSES`.
        policy: of dtypes. In float64, rounding hides no other algorithm than that of one process.
        tolerance: largest difference of a number.
        start: of the random numbers that the network begins with.
        ranks: numbers of ranks that it needs; () for any.
        overflow_at: a micro-batch in which one sample overflows float16.
        in_graph: compare with Keras in a graph, not eagerly.
        compiled: let XLA compile owners' updates; not Keras'.
    """

    network: Callable[[], keras.Model]
    strategy: Strategy = SPATIAL
    anew: Strategy | None = None
    seed: int | None = None
    train: dict[str, Any] = field(default_factory=dict)
    loss: str = "classes"
    policy: str = "float64"
    tolerance: float = 1e-9
    start: int = 3
    steps: int = 3
    batch: int = 2
    ranks: tuple[int, ...] = ()
    overflow_at: int | None = None
    in_graph: bool = False
    compiled: bool = False

    @property
    def accumulation(self) -> int:
        """Micro-batches per update."""
        return int(self.train.get("accumulation", 1))

    def micro_batches(self) -> list[np.ndarray]:
        """The samples of each part of a batch that passes through stages at a time, all replicas together."""
        section = self.strategy(max(self.ranks, default=1))
        replicas, parts = section.get("replicas", 1), section.get("micro_batches", 1)
        if section["name"] not in ("hybrid", "hypergraph") or replicas == "auto":
            replicas = parts = 1
        rows = np.arange(self.batch).reshape(replicas, parts, -1)
        return list(rows.swapaxes(0, 1).reshape(parts, -1))

    def config(self, ranks: int) -> RunConfig:
        """The configuration of such a run on so many ranks."""
        return RunConfig(
            name="case",
            data=DataConfig(shards=Path("nowhere"), evaluation_batch=EVALUATED),
            train=TrainConfig(
                **{
                    "epochs": 2,
                    "global_batch": self.batch * self.accumulation,
                    "schedule": {"name": "constant", "warmup_epochs": 0},
                    "optimizer": SGD,
                    "seed": 5,
                    "strategy": self.strategy(ranks),
                    **self.train,
                }
            ),
        )


def registered(name: str, **options: Any) -> Callable[[], keras.Model]:
    """A registered network at the smallest size there is."""
    return lambda: network_cases.small(name, **options)


def own(outputs: int = 2, *, covariates: int = 0) -> keras.Model:
    """A network of few layers whose logits and second norm are float32 where all else is of 16 bits."""
    layers, kind = keras.layers, keras.config.floatx()
    x = volume = keras.Input((8, 8, 8, 1), name="volume")
    for stage, width in ((1, 4), (2, 6)):
        x = layers.Conv3D(width, 3, strides=stage, padding="same", name=f"stage{stage}_conv")(x)
        dtype, activation = (None, "tanh") if stage == 1 else (kind, "relu")
        x = layers.BatchNormalization(momentum=0.9, dtype=dtype, name=f"stage{stage}_norm")(x)
        x = layers.Activation(activation, name=f"stage{stage}_{activation}")(x)
    x = layers.GlobalAveragePooling3D(name="head_pool")(x)
    inputs = [volume]
    if covariates:
        inputs.append(keras.Input((covariates,), name="covariates"))
        x = layers.Concatenate(name="head_covariates")([x, inputs[1]])
    logits = layers.Dense(outputs, dtype=kind, name="head_logits")(x)
    return keras.Model(inputs, logits)


def noisy() -> keras.Model:
    """A network of all layers that draw at random, whose maps no power of two divides."""
    layers = keras.layers
    x = volume = keras.Input((7, 7, 7, 1), name="volume")
    x = layers.Conv3D(5, 3, padding="same", name="first_conv")(x)
    x = layers.BatchNormalization(momentum=0.9, name="first_norm")(x)
    x = layers.ReLU(name="first_relu")(layers.SpatialDropout3D(0.3, name="first_dropout")(x))
    x = layers.Conv3D(6, 3, padding="same", name="second_conv")(
        layers.GaussianNoise(0.1, name="first_noise")(x)
    )
    x = layers.Dropout(0.3, noise_shape=(None, 1, None, None, None), name="second_dropout")(x)
    x = layers.AlphaDropout(0.2, name="second_alpha")(layers.Activation("tanh", name="second_tanh")(x))
    x = layers.Dropout(0.2, name="second_again")(x)
    x = layers.GaussianDropout(0.2, name="head_noise")(layers.GlobalAveragePooling3D(name="head_pool")(x))
    return keras.Model(volume, layers.Dense(2, dtype=keras.config.floatx(), name="head_logits")(x))


def residual() -> keras.Model:
    """A network whose halves a skip reaches over, with batch norm and dropout on both sides."""
    layers = keras.layers

    def block(x: Any, name: str) -> Any:
        x = layers.Conv3D(6, 3, padding="same", name=f"{name}_conv")(x)
        x = layers.BatchNormalization(momentum=0.9, name=f"{name}_norm")(x)
        return layers.Dropout(0.2, name=f"{name}_dropout")(layers.ReLU(name=f"{name}_relu")(x))

    volume = keras.Input((8, 8, 8, 1), name="volume")
    first = block(volume, "first")
    x = layers.Add(name="skip")([first, block(block(first, "second"), "third")])
    x = layers.GlobalAveragePooling3D(name="head_pool")(layers.Activation("tanh", name="head_tanh")(x))
    return keras.Model(volume, layers.Dense(2, dtype=keras.config.floatx(), name="head_logits")(x))


def _registered(name: str, way: str) -> Case:
    strategy, network = WAYS[way], models.describe(name)
    loss = "maps" if network.dense else "classes"
    # In the second step, two neighbours in a map of sfcn are equal but for rounding: its pooling in float32
    # takes one of them in one process, and the other one in ranks.
    steps = 1 if name == "sfcn" else 2
    # Two micro-batches of two samples: a batch norm of one value has no variance.
    batch = 4 if way == "hybrid" else 2
    return Case(
        registered(name),
        strategy,
        loss=loss,
        steps=steps,
        batch=batch,
        tolerance=NETWORK,
        # Two neighbours that its second pooling takes of four samples differ by 2e-6: eagerly, plain Keras
        # gives a gradient to the smaller one, and not in a graph, as ours are.
        in_graph=(name, way) == ("vgg", "hybrid"),
    )


# Three steps add up gradients of about 0.1, rounded to 2^-8 and 2^-11 of what they are sums of.
BFLOAT16, FLOAT16 = 3e-3, 4e-4
OVERFLOW: dict[str, Any] = {
    "policy": "mixed_float16",
    "tolerance": FLOAT16,
    "train": {"precision": "mixed_float16"},
    "overflow_at": 1,
}
# Maxima over windows are of float32, in which they may fall to either side.
NETWORK = 1e-5
TEN_STEPS = 1e-6
# Of docs/results/hypergraph.md.
FIVE = ("resnet18", "resattnet34", "densenet121", "unet3d", "vgg")


def _optimizer(name: str, **options: Any) -> dict[str, Any]:
    return {"optimizer": {"name": name, "learning_rate": 0.01, **options}}


def _ten_steps(name: str) -> Case:
    """Ten updates of a registered network by `VOLUME`, so slow that rounding does not grow."""
    return dataclasses.replace(
        _registered(name, "hypergraph"),
        train={"optimizer": {**SGD, "learning_rate": 0.001}},
        steps=10,
        start=4,
        tolerance=TEN_STEPS,
        ranks=(2 + FIVE.index(name) % 3,),
        in_graph=name == "vgg",
    )


# Of a registered network: on all numbers of ranks, on which others are not.
ON_ANY = ("tiny filters", "resattnet18 filters")


def _ranks(name: str, way: str) -> tuple[int, ...]:
    """Each way of each network on two, three or four ranks in turn, and on one rank a way of each network.

    So each way and each network is divided over each number. On one rank nothing is divided: the ways differ
    by micro-batches alone.
    """
    if f"{name} {way}" in ON_ANY:
        return ()
    network, number = models.names().index(name), list(WAYS).index(way)
    alone = (1,) if number == network % len(WAYS) else ()
    return (*alone, 2 + (network + number) % 3)


def _own(strategy: Strategy = FILTERS, **changes: Any) -> Case:
    return dataclasses.replace(Case(own, strategy), **changes)


CASES: dict[str, Case] = {
    **{
        f"{name} {way}": dataclasses.replace(_registered(name, way), ranks=_ranks(name, way))
        for name in models.names()
        for way in WAYS
        if way != "spatial" or models.describe(name).dimensions == 3  # images are refused
    },
    **{f"ten steps of {name} by hypergraph": _ten_steps(name) for name in FIVE},
    **{
        f"mixed at random {seed}": Case(mixed_network, seed=seed, loss="both", tolerance=NETWORK)
        for seed in range(4)
    },
    "adam": _own(train=_optimizer("adam")),
    "adamw": _own(MASTER, train=_optimizer("adamw", weight_decay=0.1)),
    "clip norm": _own(train=_optimizer("sgd", clip_norm=0.01)),
    "clip norm in space": _own(SPATIAL, train=_optimizer("adam", clip_norm=0.01)),
    "global clip norm": _own(train=_optimizer("sgd", global_clip_norm=0.02)),
    "global clip norm in space": _own(SPATIAL, train=_optimizer("adam", global_clip_norm=0.02)),
    "clip value": _own(train=_optimizer("sgd", clip_value=0.003)),
    "averaged": _own(train=_optimizer("adam", ema=0.8)),
    "averaged in space": _own(SPATIAL, train=_optimizer("sgd", ema=0.8)),
    "accumulation": _own(train={"accumulation": 2}),
    "accumulation clipped in space": _own(
        SPATIAL, train={"accumulation": 3, **_optimizer("adam", global_clip_norm=0.02)}
    ),
    "compiled": _own(
        compiled=True, train=_optimizer("adamw", weight_decay=0.1, ema=0.8, global_clip_norm=0.02)
    ),
    "compiled in space": _own(
        SPATIAL, compiled=True, train={"accumulation": 2, **_optimizer("adam", clip_value=0.003)}
    ),
    "schedule": _own(train={"schedule": {"name": "cosine", "warmup_epochs": 0.5}}, steps=6),
    "moved": _own(
        SPATIAL,
        train={
            "schedule": {"name": "cosine", "warmup_epochs": 0.5},
            **_optimizer("adamw", weight_decay=0.1, ema=0.8, global_clip_norm=0.05),
        },
        steps=8,
    ),
    "rate factors": _own(
        train={
            "transfer": {"rate_factors": {"stage1_*": 0.25, "head*": 3.0}},
            **_optimizer("adamw", weight_decay=0.1),
        }
    ),
    "frozen": _own(train={"transfer": {"freeze": ("stage1_*",)}}),
    "replicas": _own(section("spatial", replicas=2), batch=4, ranks=(2, 4)),
    "replicas of filters": _own(
        section("filters", replicas=2), network=noisy, batch=4, ranks=(2, 4), train={"accumulation": 2}
    ),
    "stages": _own(HYBRID, batch=4, train=_optimizer("adamw", weight_decay=0.1, ema=0.8)),
    "stages by gpipe": _own(
        section("hybrid", micro_batches=4, schedule="gpipe", partitions=9, planner="dynamic"),
        batch=4,
        train={"accumulation": 2, **_optimizer("adam", global_clip_norm=0.02)},
    ),
    "replicas of stages": _own(
        section("hybrid", micro_batches=2, replicas=2),
        batch=8,
        ranks=(2, 4),
        train=_optimizer("sgd", clip_norm=0.01),
    ),
    "stages computed again": _own(section("hybrid", micro_batches=2, recompute=True), batch=4),
    "stages computed again by gpipe": _own(
        lambda ranks: {
            **{"name": "hybrid", "micro_batches": 4, "partitions": 9, "planner": "dynamic"},
            **{"schedule": "gpipe", "recompute": ranks > 1},
        },
        network=residual,
        batch=8,
        train={"accumulation": 2, **_optimizer("adam")},
    ),
    "replicas of stages computed again": _own(
        section("hybrid", micro_batches=2, replicas=2, schedule="gpipe", recompute=True),
        network=residual,
        batch=8,
        ranks=(2, 4),
    ),
    "stages of two inputs": _own(HYBRID, network=lambda: own(covariates=2), batch=4),
    "stages overflow": _own(HYBRID, batch=4, **OVERFLOW),
    "hypergraph": _own(
        section("hypergraph", objective="volume", balance="layers", imbalance=0.5, granularity=3),
        batch=4,
        train={"accumulation": 2, **_optimizer("adam", global_clip_norm=0.02)},
    ),
    # What was measured of a small network may give everything to one rank.
    "hypergraph for time with perhaps nothing to do": _own(section("hypergraph", objective="time"), batch=4),
    "hypergraph in stages": _own(
        section("hypergraph", objective="volume", imbalance=0.5, micro_batches=2),
        network=noisy,
        batch=4,
        train=_optimizer("adamw", weight_decay=0.1, ema=0.8),
    ),
    "replicas of a hypergraph": _own(
        section("hypergraph", objective="volume", balance="layers", imbalance=0.5, replicas=2),
        batch=4,
        ranks=(2, 4),
        train=_optimizer("sgd", clip_norm=0.01),
    ),
    "as many replicas of a hypergraph as take least": _own(
        section("hypergraph", objective="volume", replicas="auto"), batch=4
    ),
    "bricks": _own(section("spatial", parts=[2, 2, 1]), ranks=(4,)),
    "small maps": Case(registered("tiny"), section("spatial"), steps=2, tolerance=NETWORK),
    "one with nothing to do": _own(
        section("filters", shares=[1, 0]), ranks=(2,), train=_optimizer("sgd", global_clip_norm=0.02)
    ),
    "numbers": _own(SPATIAL, network=lambda: own(1), loss="numbers"),
    "divided anew": _own(
        anew=MASTER,
        train={
            "accumulation": 2,
            "schedule": {"name": "cosine", "warmup_epochs": 0.5},
            **_optimizer("adamw", weight_decay=0.1, ema=0.8, global_clip_norm=0.05),
        },
        ranks=(2, 3, 4),
    ),
    "replicas divided anew": _own(
        section("filters", replicas=2),
        anew=section("filters", replicas=2, shares=[1, 0]),
        batch=4,
        ranks=(4,),
        train=_optimizer("adam"),
    ),
    "overflow divided anew": _own(anew=MASTER, ranks=(2, 3, 4), **OVERFLOW),
    "covariates": _own(network=lambda: own(covariates=2)),
    "bfloat16": _own(policy="mixed_bfloat16", tolerance=BFLOAT16, train={"precision": "mixed_bfloat16"}),
    "bfloat16 in space": _own(
        SPATIAL, policy="mixed_bfloat16", tolerance=BFLOAT16, train={"precision": "mixed_bfloat16"}
    ),
    "float16": _own(policy="mixed_float16", tolerance=FLOAT16, train={"precision": "mixed_float16"}),
    "overflow": _own(**OVERFLOW),
    "overflow in space": _own(SPATIAL, **OVERFLOW),
    "noise of filters": _own(network=noisy),
    "noise in space": _own(SPATIAL, network=noisy),
    "noise in bfloat16": _own(
        SPATIAL,
        network=noisy,
        policy="mixed_bfloat16",
        tolerance=BFLOAT16,
        train={"precision": "mixed_bfloat16"},
    ),
}

# Of "moved": the strategy of each leg, and whether rank 0 trains it alone.
STEPS_OF_LEG = 2
LEGS = ((SPATIAL, False), (MASTER, False), (FILTERS, True), (FILTERS, False))


def use(policy: str) -> None:
    """Forget what was built, and choose the policy of what is built from now on."""
    keras.backend.clear_session()
    keras.config.set_floatx("float64" if policy == "float64" else "float32")
    keras.config.set_dtype_policy(policy)
    # On a CPU, TensorFlow has no maximum over windows of float64.
    for module in (parts, attention):
        module.pooling_dtype = (lambda: "float32") if policy == "float64" else POOLING


POOLING = parts.pooling_dtype


def batches(case: Case, model: keras.Model) -> list[tuple[list[np.ndarray], np.ndarray, np.ndarray]]:
    """All micro-batches, of all ranks: inputs, targets, weights (0 for what fills up the last one)."""
    rng = np.random.default_rng(7)
    wide = keras.config.floatx()
    found = []
    count = case.steps * case.accumulation
    for step in range(count):
        x = [rng.normal(0.5, 1, (case.batch, *one.shape[1:])).astype(wide) for one in model.inputs]
        if step == case.overflow_at:
            x[0][-1] *= 1e6
        w = np.ones(case.batch, model.outputs[0].dtype)
        if step == count - 1:
            w[:] = case.batch / (case.batch - 1)
            w[-1] = 0
        found.append((x, targets(case, model, rng), w))
    return found


def targets(case: Case, model: keras.Model, rng: np.random.Generator) -> np.ndarray:
    """Targets of a micro-batch as the case's loss takes them."""
    if case.loss == "classes":
        return rng.integers(0, 2, case.batch).astype(np.int32)
    if case.loss == "maps":
        return rng.integers(0, 2, (case.batch, *model.outputs[0].shape[1:-1])).astype(np.uint8)
    return rng.normal(size=case.batch).astype(keras.config.floatx())


def evaluated(model: keras.Model) -> list[np.ndarray]:
    """Inputs of a batch that is only predicted."""
    rng = np.random.default_rng(8)
    return [
        rng.normal(0.5, 1, (EVALUATED, *one.shape[1:])).astype(keras.config.floatx()) for one in model.inputs
    ]


def state(model: keras.Model, optimizer: keras.Optimizer) -> dict[str, np.ndarray]:
    """All weights and all of the optimizer's variables."""
    named = {f"weight {v.path}": v for v in model.weights}
    named |= {f"optimizer {i} {v.name}": v for i, v in enumerate(optimizer.variables)}
    return {name.replace("/", "."): np.asarray(v.value) for name, v in named.items()}
