"""Networks cut into stages at given layers, each trained for some updates, beside one process.

    python placed_cuts.py OUT CUTS

CUTS is a file: JSON, a list of `[NETWORK, SCHEDULE, REPLICAS, FIRSTS]`. NETWORK is a key of `NETWORKS`;
FIRSTS are the numbers of the layers that stages begin with, but the first one; each stage is on the next rank
of a replica. Writes to OUT, for each of them, the largest difference to plain Keras on one process of losses,
weights, gradients as the momentum has them, and moving averages: absolute, or relative where a number exceeds
1; and the seconds that it took.
"""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import dataclasses
import faulthandler
import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import placed_cases
import tensorflow as tf
from placed_cases import LOSSES, Case

from trainer.planning.placement import staging
from trainer.ranks import launch, starting
from trainer.ranks.members import Members
from trainer.ranks.world import World
from trainer.strategies import optimizers, registry
from trainer.strategies.learner import Setup
from trainer.strategies.placed.hybrid_plan import Division
from trainer.strategies.placed.reading import read

MICRO_BATCHES, STEPS = 2, 10
HANGING_S = 240
# Name of the network, and its loss.
NETWORKS = {"resattnet18": "classes", "unet3d": "maps", "densenet121": "classes"}
# Maxima over windows are of float32. Where two numbers in one differ by rounding alone, gradients go to
# either: with this rate and seed, 10 steps of one process by Keras and by the runtime stay together; with
# seed 3 they were 4e-5 apart for ResAttNet-18.
SEED = 4
SGD = {"name": "sgd", "learning_rate": 0.001, "momentum": 0.9}


def samples(network: str, replicas: int) -> int:
    """Samples of a replica in a micro-batch.

    A batch norm over two samples of one voxel each divides by their difference. In the batch of two replicas
    these are so close for DenseNet that plain Keras, its weights changed by 1e-10, ends 1e-2 from itself.
    """
    return 6 if (network, replicas) == ("densenet121", 2) else 2


def case_of(network: str, schedule: str, replicas: int, parts: int) -> Case:
    """One training in float64."""
    options = {"schedule": schedule, "replicas": replicas, "partitions": parts}
    return Case(
        placed_cases.registered(network),
        placed_cases.section("hybrid", micro_batches=MICRO_BATCHES, planner="dynamic", **options),
        loss=NETWORKS[network],
        steps=STEPS,
        batch=samples(network, replicas) * MICRO_BATCHES * replicas,
        train={"optimizer": SGD},
        ranks=(replicas * parts,),
    )


def made(case: Case) -> tuple[Any, keras.Model, keras.Optimizer]:
    """Strategy, network and optimizer of a case, from the same random numbers each time."""
    placed_cases.use(case.policy)
    config = case.config(max(case.ranks))
    keras.utils.set_random_seed(SEED)
    model = case.network()
    optimizer = optimizers.build(config.train, STEPS, model)
    optimizer.build(model.trainable_variables)
    return registry.of(config), model, optimizer


def cut(case: Case, each: int, firsts: list[int], world: World) -> dict[str, np.ndarray]:
    """Train with stages that begin at these layers, on `each` samples; returns the state, whole on rank 0."""
    strategy, model, optimizer = made(case)
    section, parts = strategy.section, len(firsts) + 1
    network = read(model, each)
    groups = staging.groups(network)
    layers = [network[groups[number][0]].layer or groups[number][0] for number in (0, *firsts)]
    division = Division(
        section.planner, section.schedule, section.micro_batches, tuple(layers), tuple(range(parts)),
        "FLOPs", None, 0.0, True,
    )  # fmt: skip
    recorded = {"replicas": section.replicas, "world_size": world.size}
    told = json.loads(json.dumps(dataclasses.asdict(division)))
    strategy.calibrate(model, world, {**recorded, "division": told})
    plan = strategy.plan(model, optimizer, world.size)
    assert (plan.division.partitions, plan.stages) == (tuple(layers), parts)
    learner = strategy.build(plan, Setup(model, optimizer, world, *LOSSES[case.loss]))
    share, losses = plan.share(world.rank), []
    for x, y, w in placed_cases.batches(case, model):
        size = len(y) // share.parts
        mine = slice(share.part * size, (share.part + 1) * size)
        losses.append(float(learner.train_step(x[0][mine], y[mine], w[mine])))
    found = placed_cases.state(learner.gather(), optimizer)
    learner.close()
    return found | {"losses": np.sum(world.allgather_object(losses), axis=0)}


@functools.cache
def alone(network: str, replicas: int) -> dict[str, np.ndarray]:
    """Train with Keras alone, which adds up the gradients of the same micro-batches; returns the state."""
    case = case_of(network, "1f1b", replicas, 1)
    _, model, optimizer = made(case)
    loss, _ = LOSSES[case.loss]

    @tf.function(autograph=False)
    def gradients(x: Any, y: Any, w: Any) -> Any:
        with tf.GradientTape() as tape:
            mean = tf.reduce_sum(loss(y, model(x, training=True)) * w) / case.batch
        return mean, tape.gradient(mean, model.trainable_variables)

    losses = []
    for x, y, w in placed_cases.batches(case, model):
        parts = [gradients(x[0][rows], y[rows], w[rows]) for rows in case.micro_batches()]
        optimizer.apply([sum(one) for one in zip(*(part[1] for part in parts), strict=True)])
        losses.append(float(sum(part[0] for part in parts)))
    return placed_cases.state(model, optimizer) | {"losses": np.array(losses)}


def largest(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Return the largest difference of two states."""
    assert found.keys() == expected.keys()
    return max(
        float(np.max(np.abs(found[key] - its) / np.maximum(np.abs(its), 1.0), initial=0.0))
        for key, its in expected.items()
        if np.issubdtype(its.dtype, np.floating)
    )


def main() -> None:
    world = starting.init(threads=1, members=Members(messages=launch.expected_size() > 1))
    rows = []
    for network, schedule, replicas, firsts in json.loads(Path(sys.argv[2]).read_text()):
        # A rank that waits for ever says where.
        faulthandler.dump_traceback_later(HANGING_S, exit=True)
        began = time.monotonic()
        case = case_of(network, schedule, replicas, len(firsts) + 1)
        found = cut(case, samples(network, replicas), firsts, world)
        took = time.monotonic() - began
        if world.is_main:
            difference = largest(found, alone(network, replicas))
            rows.append([network, schedule, replicas, firsts, difference, took])
            Path(sys.argv[1]).write_text(json.dumps(rows))
    world.barrier()
    world.shutdown()


main()
