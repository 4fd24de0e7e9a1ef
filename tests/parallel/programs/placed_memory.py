"""Bytes of parameters and activations on each rank, predicted and counted.

    python placed_memory.py OUT NETWORK STRATEGY [NETWORK STRATEGY ...]     with `ENVIRONMENT` of the test

NETWORK is a key of `NETWORKS`, STRATEGY one of `STRATEGIES`. Writes to the file OUT, for each pair and
rank, bytes, predicted and counted, of: `state`, blocks of variables and slots; `kept`, what is there when the
last forward pass before the first backward pass is done, the batch included; `most`, what is there at most
during a step; and `early`, predicted of messages that may come before they are asked for. Variables are all
of this process; the rest are large blocks that glibc's `malloc` has given out, of which TensorFlow takes its
tensors as the test tells it to; and for the most, the growth of the process's resident set.
"""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import ctypes
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from trainer import models
from trainer.config import DataConfig, RunConfig, TrainConfig
from trainer.ranks import launch, starting
from trainer.ranks.members import Members
from trainer.ranks.world import World
from trainer.strategies import registry
from trainer.strategies.learner import Setup
from trainer.tasks import losses
from trainer.telemetry.timeline import Timeline

# Name, edge of a volume, samples, and the network's first width.
NETWORKS = {
    "resnet18": ("resnet18", 64, 4, 16),
    "unet": ("unet3d", 48, 1, 8),
    "vgg": ("vgg", 64, 1, 8),
    "vgg of 4": ("vgg", 64, 4, 8),
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "spatial": {"name": "spatial"},
    "filters": {"name": "filters"},
    "1f1b": {"name": "hybrid", "micro_batches": 4, "planner": "dynamic"},
    "gpipe": {"name": "hybrid", "micro_batches": 4, "planner": "dynamic", "schedule": "gpipe"},
    "1f1b again": {"name": "hybrid", "micro_batches": 4, "planner": "dynamic", "recompute": True},
    "gpipe again": {
        **{"name": "hybrid", "micro_batches": 4, "planner": "dynamic", "schedule": "gpipe"},
        "recompute": True,
    },
}
STEPS = 2
SETTLED_S = 0.05


class _Given(ctypes.Structure):
    # arena, ordblks, smblks, hblks; then usmblks to keepcost.
    _fields_ = [("first", ctypes.c_size_t * 4), ("hblkhd", ctypes.c_size_t), ("rest", ctypes.c_size_t * 5)]


def given() -> int:
    """Bytes of large blocks that `malloc` has given out, and not got back."""
    return int(_mallinfo2().hblkhd)


_mallinfo2 = ctypes.CDLL(None).mallinfo2
_mallinfo2.restype = _Given


def settled() -> int:
    """Bytes that are given out once they have been the same for a while: messages leave in a thread."""
    now, since = given(), time.monotonic()
    while time.monotonic() < since + SETTLED_S:
        time.sleep(1e-3)
        if given() != now:
            now, since = given(), time.monotonic()
    return now


def variables() -> list[Any]:
    """All variables of this process that hold more than scalars."""
    found = [one for one in gc.get_objects() if isinstance(one, BaseResourceVariable)]
    return [one for one in found if one.handle.dtype == tf.resource and len(one.shape)]


def resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


class Watching(Timeline):
    """Counts when the forward pass is done, and lets the backward pass wait for that."""

    def __init__(self, *, is_piped: bool) -> None:
        super().__init__(enabled=False)
        self.bytes, self._passes, self._is_piped = 0, "", is_piped

    def begin(self) -> None:
        self.bytes, self._passes = 0, ""

    def _counted(self, kind: str, tensors: Any) -> Any:
        def count() -> np.int32:
            self._passes += kind[0]
            if "b" not in self._passes:
                self.bytes = given()
            return np.int32(0)

        with tf.control_dependencies(tf.nest.flatten(tensors)):
            return tf.numpy_function(count, [], tf.int32)

    def chunk_done(self, kind: str, micro: int, tensors: Any) -> list[Any]:
        return [self._counted(kind, tensors)]

    def forward_done(self, loss: Any) -> Any:
        if self._is_piped:
            return None
        with tf.control_dependencies([self._counted("forward", loss)]):
            return tf.nest.map_structure(tf.ones_like, loss)


def measure(name: str, strategy: str, world: World) -> dict[str, Any]:
    """Train some steps of a network; returns figures of this rank."""
    registered, size, samples, width = NETWORKS[name]
    dense, shape = models.describe(registered).dense, (size, size, size, 1)
    train = TrainConfig(global_batch=samples, strategy=STRATEGIES[strategy])
    config = RunConfig(name="memory", data=DataConfig(shards=Path("nowhere")), train=train)
    keras.utils.set_random_seed(1)
    others = {id(one): one for one in variables()}
    model = models.build(registered, shape, 2, dense=dense, width=width)
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    way = registry.of(config)
    plan: Any = way.plan(model, optimizer, world.size)
    judged = (losses.dice_cross_entropy(), losses.mean_dice) if dense else (None, None)
    watching = Watching(is_piped=plan.micro_batches > 1)
    learner: Any = way.build(plan, Setup(model, optimizer, world, *judged, watching))
    share = plan.share(world.rank)
    cut = (slice(None), *(slice(*ends) for ends in share.space))
    x = tf.constant(np.random.default_rng(0).normal(size=(samples, *shape)).astype(np.float32)[cut])
    y = tf.zeros((samples, size, size, size), tf.uint8) if dense else tf.range(samples) % 2
    for _ in range(STEPS):
        watching.begin()
        world.barrier()  # the others have received what this rank sent in the step before
        before = settled()
        Path("/proc/self/clear_refs").write_text("5")  # of VmHWM
        there = resident("VmRSS")
        world.barrier()  # else a message of a rank that is ahead would be there before
        np.asarray(learner.train_step(x, y, tf.ones(samples)))
        most = resident("VmHWM") - there
    others[id(learner._sums)] = learner._sums
    state = sum(one.read_value().numpy().nbytes for one in variables() if id(one) not in others)
    learner.close()
    batch = 4 * int(np.prod(x.shape))
    predicted = plan.memory()[world.rank]
    return {
        "state": [predicted.variables + predicted.slots, state],
        "kept": [predicted.kept, watching.bytes - before + batch],
        "most": [predicted.working, most + batch],
        "early": predicted.early,
    }


def main() -> None:
    world = starting.init(threads=1, members=Members(messages=launch.expected_size() > 1))
    found = []
    for name, strategy in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
        for rank, figures in enumerate(world.allgather_object(measure(name, strategy, world))):
            found.append(
                {"network": name, "strategy": strategy, "ranks": world.size, "rank": rank, **figures}
            )
    if world.is_main:
        Path(sys.argv[1]).write_text(json.dumps(found))
    world.barrier()
    world.shutdown()


main()
