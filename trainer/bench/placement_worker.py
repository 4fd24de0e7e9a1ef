"""One process of a placement benchmark: a network divided over ranks, or one alone, timed block by block.

Run by `cingulum.bench.placement` as `python -m trainer.bench.placement_worker JOB`, where JOB is a
`PlacementJob` as JSON.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

from trainer.bench import blocks
from trainer.bench.blocks import ProgressWatch


@dataclasses.dataclass(frozen=True)
class PlacementJob:
    """What to time.

    Attributes:
        strategy: section of `train.strategy`.
        model: name of a registered network.
        size: edge of the cubic volumes, in voxels.
        depth: of the volumes that this process gets, in voxels; less than `size` for a part of them.
        batch: samples per step.
        width: channels of the first stage.
        steps: steps per block.
        options: further arguments of the network's function.
    """

    strategy: dict[str, Any]
    model: str = "resnet18"
    size: int = 96
    depth: int = 96
    batch: int = 1
    width: int | None = 16
    steps: int = 10
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def main() -> None:
    """Time what the job on the command line describes, a block each time that a line comes."""
    job = PlacementJob(**json.loads(sys.argv[1]))
    with ProgressWatch() as watch:
        watch.beat("importing TensorFlow and meeting the other ranks")
        strategy, world = begin(job)
        watch.beat("building the network")
        _, learner, batch = prepared(job, strategy, world)
        batches = itertools.repeat(batch)
        blocks.answer(
            world, lambda: blocks.seconds_of(learner, itertools.islice(batches, job.steps), watch), watch
        )


def strategy_of(job: PlacementJob) -> Any:
    """Return the job's strategy."""
    from trainer import config as configuration
    from trainer.strategies import registry

    tree = {
        "name": "placement",
        "data": {"shards": "none"},
        "model": {"name": job.model},
        "train": {"global_batch": job.batch, "strategy": job.strategy},
    }
    return registry.of(configuration.parse(json.dumps(tree), []))


def begin(job: PlacementJob) -> tuple[Any, Any]:
    """Return the job's strategy and the world of its ranks, which has one thread each."""
    from trainer import quiet
    from trainer.ranks import launch, starting

    quiet.leave_out_what_keras_can_do_without()
    strategy = strategy_of(job)
    members = strategy.members(launch.expected_size())
    return strategy, starting.init(1, environment=strategy.environment(), members=members)


def network_of(job: PlacementJob) -> Any:
    """Return the job's Keras network, which has two classes, of volumes or of voxels."""
    from trainer import models

    shape = (job.depth, job.size, job.size, 1)
    dense = {"dense": True} if models.describe(job.model).dense else {}
    return models.build(job.model, shape, 2, width=job.width, **dense, **job.options)


def prepared(
    job: PlacementJob, strategy: Any, world: Any, build: Callable[[Any, Any], Any] | None = None
) -> tuple[Any, Any, Any]:
    """Return the plan, the learner, and a batch of this rank's share of noise.

    Args:
        job: what to train.
        strategy: see `begin`.
        world: see `begin`.
        build: from the plan and a `Setup` to the learner; default: the strategy's.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    from trainer import models
    from trainer.strategies.learner import Setup
    from trainer.tasks import losses

    keras.utils.set_random_seed(1)
    model = network_of(job)
    optimizer = strategy.divided(keras.optimizers.SGD(1e-3, momentum=0.9), world)
    optimizer.build(model.trainable_variables)
    plan = strategy.plan(model, optimizer, world.size)
    is_dense = bool(models.describe(job.model).dense)
    judged = (losses.dice_cross_entropy(), losses.mean_dice) if is_dense else (None, None)
    learner = (build or strategy.build)(plan, Setup(model, optimizer, world, *judged))
    shape = (plan.micro_batch, *model.inputs[0].shape[1:])
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    share = plan.share(world.rank)
    if share is not None and share.space is not None:
        x = x[(slice(None), *(slice(*ends) for ends in share.space))]
    y = tf.zeros(shape[:-1], tf.uint8) if is_dense else tf.range(len(x)) % 2
    return plan, learner, (tf.constant(x), y, tf.ones(len(x)))


if __name__ == "__main__":
    main()
