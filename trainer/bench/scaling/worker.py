"""One process of a cell: builds the network, warms up, waits for a line, times steps, prints JSON.

Run under mpirun by `cingulum.bench.scaling.measure` as `python -m trainer.bench.scaling.worker CELL [RATE]`,
where CELL is a `Cell` as JSON, and RATE that of its links.
Rank 0 writes `ready` with what a prediction needs, reads `go`, writes `timed` as soon as all ranks have done
their steps, and then what was found. Batches are synthetic and in memory; each process computes with one
thread.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from trainer import quiet
from trainer.bench.scaling.cells import Cell, predict
from trainer.bench.scaling.variants import section

# Steps before the timed ones: the first traces the graph and makes connections.
WARM_UP = 1
# Servers leave Horovod nothing to do in a step. Looking every millisecond, the default, its ranks would send
# each other 170 kB/s meanwhile, and take the cores from those that work.
RARELY = {"HOROVOD_CYCLE_TIME": "50"}
CLASSES = 2
LEARNING_RATE = 1e-3


def main() -> None:
    """Measure what the cell on the command line describes; the rate of its links may follow, in bytes/s."""
    cell = Cell(**json.loads(sys.argv[1]))
    rate = float(sys.argv[2]) if sys.argv[2:] else None
    quiet.leave_out_what_keras_can_do_without()
    from trainer.ranks import starting

    strategy = _strategy(cell)
    members = strategy.members(cell.processes)
    environment = strategy.environment() | (RARELY if members.servers else {})
    world = starting.init(threads=1, environment=environment, members=members)
    sys.exit(strategy.take_part(world, _Timing(cell, rate, strategy)))


def _strategy(cell: Cell) -> Any:
    """The cell's strategy, of a run that is never begun."""
    from trainer import config as configuration
    from trainer.strategies import registry

    tree = {
        "name": "scaling",
        "data": {"shards": "none"},
        "model": {"name": cell.model},
        "train": {
            "global_batch": cell.global_batch,
            "strategy": section(cell.strategy, cell.options, cell.servers),
        },
    }
    return registry.of(configuration.parse(json.dumps(tree), []))


@dataclasses.dataclass(frozen=True)
class _Timing:
    """What ranks do, while servers serve: `trainer.strategies.base.Story`."""

    cell: Cell
    rate: float | None
    strategy: Any

    def together(self, world: Any) -> int:
        """Time steps of all ranks."""
        from trainer.strategies.learner import Setup
        from trainer.telemetry import parts, records
        from trainer.telemetry.timeline import Timeline

        cell, strategy, timeline = self.cell, self.strategy, Timeline()
        strategy.check(world)
        model, optimizer, judged = _network(cell)
        strategy.calibrate(model, world, None)
        optimizer = strategy.divided(optimizer, world)
        optimizer.build(model.trainable_variables)
        plan = strategy.plan(model, optimizer, world.size)
        learner = strategy.build(plan, Setup(model, optimizer, world, timeline=timeline, **judged))
        step = _stepping(learner, _batch(cell, world.rank))
        compute_s = _computing(cell, world)
        for _ in range(WARM_UP):
            step()
        everyones = world.allgather_object(compute_s)
        if world.is_main:
            mean_s = statistics.mean(everyones)
            sizes = [math.prod(v.shape) * v.value.dtype.size for v in model.trainable_variables]
            predicted = predict(cell, plan.exchange().rounds, mean_s, self.rate)
            _say("ready", {"gradient_bytes": sum(sizes), "compute_s": mean_s, "predicted": predicted})
            sys.stdin.readline()
        world.barrier()
        timeline.close_step(0, 0.0)  # the warm-up does not count
        timeline.take()
        seconds = _timed(step, cell.steps, timeline.close_step)
        # A server that is done first still serves the others.
        world.barrier()
        if world.is_main:
            _say("timed", {})
        mine = {"host": world.host, "seconds": seconds, "parts": records.mean(parts.steps(timeline.take()))}
        found = world.allgather_object(mine)
        if world.is_main:
            found[0]["servers"] = [rows[-cell.steps :] for rows in learner.server_steps()]
            _say("found", found)
        learner.close()
        return 0


def _say(word: str, value: Any) -> None:
    sys.stdout.write(f"{word} {json.dumps(value)}\n")
    sys.stdout.flush()


def _timed(
    step: Callable[[], None], count: int, done: Callable[[int, float], None] | None = None
) -> list[float]:
    seconds = []
    for number in range(count):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
        if done is not None:
            done(number, seconds[-1])
    return seconds


def _computing(cell: Cell, world: Any) -> float:
    """Return the seconds of a step without any reduction, while every rank takes one: median of three."""
    from trainer.ranks import world as worlds
    from trainer.strategies import data
    from trainer.strategies.learner import Setup

    model, optimizer, options = _network(cell)
    setup = Setup(model, optimizer, worlds.World(), **options)
    step = _stepping(data.build(setup), _batch(cell, world.rank))
    step()
    world.barrier()
    return statistics.median(_timed(step, 3))


def _stepping(distributed: Any, batch: tuple[Any, ...]) -> Callable[[], None]:
    def step() -> None:
        distributed.train_step(*batch).numpy()

    return step


def _network(cell: Cell) -> tuple[Any, Any, dict[str, Any]]:
    """A new network, the same on every rank, its optimizer, and the loss and score that fit it."""
    import keras

    from trainer import models
    from trainer.tasks import losses

    keras.utils.set_random_seed(1)
    dense = bool(models.describe(cell.model).dense)
    model = models.build(cell.model, _shape(cell), CLASSES, width=cell.width, dense=dense)
    options = {"loss": losses.dice_cross_entropy(), "score": losses.mean_dice} if dense else {}
    return model, keras.optimizers.AdamW(LEARNING_RATE), options


def _shape(cell: Cell) -> tuple[int, int, int, int]:
    from trainer import models

    depth = 1 if models.describe(cell.model).dimensions == 2 else cell.size
    return depth, cell.size, cell.size, 1


def _batch(cell: Cell, rank: int) -> tuple[Any, ...]:
    """Return the volumes float32 `(b, D, H, W, 1)`, labels, and weights of 1; they differ between ranks."""
    import numpy as np
    import tensorflow as tf

    from trainer import models

    rng = np.random.default_rng(rank)
    count, shape = cell.rank_batch, _shape(cell)
    x = rng.normal(size=(count, *shape)).astype(np.float32)
    if models.describe(cell.model).dense:
        y = rng.integers(0, CLASSES, (count, *shape[:3])).astype(np.uint8)
    else:
        y = (np.arange(count) % CLASSES).astype(np.int32)
    return tf.constant(x), tf.constant(y), tf.ones(count, tf.float32)


if __name__ == "__main__":
    main()
