"""Scripts of users that forget a line, one after the other in one world; prints what came of each.

Each case starts from different weights on each rank. The reference is plain Keras on rank 0's weights and
the samples of all ranks together, computed by every rank for itself.
"""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import json

import keras
import numpy as np
import tensorflow as tf

import trainer
from trainer.errors import ConfigError
from trainer.ranks import world as worlds

world = trainer.init(threads=1)
said: list[str] = []
report = worlds.report
worlds.report = lambda text: said.append(text) if text.startswith("warning") else report(text)
rng = np.random.default_rng(0)
X = rng.normal(size=(8, 4)).astype(np.float32)
Y = rng.normal(size=(8, 2)).astype(np.float32)
MINE = slice(4 * trainer.rank(), 4 * trainer.rank() + 4)
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adam": lambda: keras.optimizers.Adam(0.1, global_clipnorm=1.0),
    "accumulating": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=4.0),
    "scaled_accumulating": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), initial_scale=4.0
    ),
}


def network(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(2)])


def step(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_mean((model(x, training=True) - y) ** 2))
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
    )


def train(kind: str, model, optimizer, x, y, steps: int) -> None:
    if kind == "fit":
        model.compile(optimizer, "mse")
        for _ in range(steps):
            model.fit(x, y, batch_size=len(x), shuffle=False, verbose=0)
        return

    def once():
        step(model, optimizer, x, y)

    function = tf.function(once) if kind == "graph" else once
    for _ in range(steps):
        function()


def weights_after(
    name: str, kind: str, seed: int, x, y, steps: int, *, distributed: bool
) -> list[np.ndarray]:
    model, optimizer = network(seed), OPTIMIZERS[name]()
    if distributed:
        optimizer = trainer.DistributedOptimizer(optimizer)
    train(kind, model, optimizer, x, y, steps)
    return model.get_weights()


def apart(left: list[np.ndarray], right: list[np.ndarray]) -> float:
    return max(float(np.max(np.abs(a - b))) for a, b in zip(left, right, strict=True))


outcomes: dict[str, dict[str, object]] = {}


def record(case: str, **facts: object) -> None:
    outcomes[case] = {**facts, "said": list(said)}
    said.clear()


# trainer.callbacks() forgotten, no seed: every kind of loop and optimizer.
for name in OPTIMIZERS:
    steps = 4 if "accumulating" in name else 2
    for kind in ("fit", "graph") if name == "adam" else ("graph",):
        ours = weights_after(name, kind, 5 + trainer.rank(), X[MINE], Y[MINE], steps, distributed=True)
        plain = weights_after(name, kind, 5, X, Y, steps, distributed=False)
        record(f"callbacks:{kind}:{name}", apart=apart(ours, plain), weights=ours[0].tolist())
# Gradients are taken before the optimizer is asked: the first update is rank 0's alone.
ours = weights_after("adam", "eager", 5 + trainer.rank(), X[MINE], Y[MINE], 1, distributed=True)
plain = weights_after("adam", "eager", 5, X[:4], Y[:4], 1, distributed=False)
record("callbacks:eager:adam", apart=apart(ours, plain), weights=ours[0].tolist())
ours = weights_after("adam", "eager", 5 + trainer.rank(), X[MINE], Y[MINE], 3, distributed=True)
record("callbacks:eager:later", weights=ours[0].tolist())

# trainer.shard forgotten: everyone trains on everything, in each kind of loop.
for name in OPTIMIZERS:
    for kind in ("fit", "eager") if name == "adam" else ("graph",):
        weights_after(name, kind, 5, X, Y, 4, distributed=True)
        record(f"shard:{kind}:{name}")
# Both forgotten, and no seed.
for kind in ("fit", "eager"):
    ours = weights_after("adam", kind, 5 + trainer.rank(), X, Y, 3, distributed=True)
    record(f"callbacks+shard:{kind}", weights=ours[0].tolist())
# Line 4 forgotten, with and without shard.
for name, mine in (("optimizer", MINE), ("optimizer+shard", slice(None))):
    model = network(5)
    model.compile(OPTIMIZERS["adam"](), "mse")
    try:
        model.fit(X[mine], Y[mine], verbose=0, callbacks=trainer.callbacks())
        record(name, refused=None)
    except ConfigError as error:
        record(name, refused=str(error))
# Nothing forgotten but callbacks, with the same seed: nothing to say.
ours = weights_after("adam", "fit", 5, X[MINE], Y[MINE], 2, distributed=True)
record("nothing", weights=ours[0].tolist())
# A first gradient of zero says nothing about the samples: no warning, and the next update is looked at.
optimizer, variable = trainer.DistributedOptimizer(keras.optimizers.SGD(0.1)), keras.Variable(1.0)
for gradient in (0.0, 1.0 + trainer.rank(), 1.0):
    optimizer.apply([tf.constant(gradient)], [variable])
record("zero, then unlike", weights=float(variable.value))
optimizer, variable = trainer.DistributedOptimizer(keras.optimizers.SGD(0.1)), keras.Variable(1.0)
for gradient in (0.0, np.inf, 1.0, 1.0):
    optimizer.apply([tf.constant(gradient)], [variable])
record("zero and infinite, then alike")
# Optimizer state that differs is made alike, too.
optimizer, variable = (
    trainer.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
    keras.Variable(1.0),
)
optimizer.build([variable])
optimizer.variables[-1].assign(float(trainer.rank()))
optimizer.apply([tf.constant(1.0 + trainer.rank())], [variable])
record("state", weights=float(variable.value))
# Gradients taken outside of a compiled update cannot be told apart later.
model, optimizer = network(5 + trainer.rank()), trainer.DistributedOptimizer(keras.optimizers.SGD(0.1))
gradients = [tf.ones(v.shape) for v in model.trainable_variables]
try:
    tf.function(lambda given: optimizer.apply(given, model.trainable_variables))(gradients)
    record("outside", refused=None)
except Exception as error:  # TensorFlow makes one of its own of it, with the message and the place
    record("outside", refused=str(error))
optimizer = trainer.DistributedOptimizer(keras.optimizers.SGD(0.1))
variables = [keras.Variable(np.ones(1 + trainer.rank()))]
try:
    optimizer.apply([tf.ones(1 + trainer.rank())], variables)
    record("networks", refused=None)
except ConfigError as error:
    record("networks", refused=str(error))
# Weights made alike by hand.
model = network(5 + trainer.rank())
model.layers[0].trainable = False
optimizer = trainer.DistributedOptimizer(keras.optimizers.Adam(0.1))
trainer.broadcast(model, optimizer)
step(model, optimizer, X[MINE], Y[MINE])
record("broadcast", weights=[w.tolist() for w in model.get_weights()])

everyones = world.allgather_object(outcomes)
if world.is_main:
    print(json.dumps(everyones))
