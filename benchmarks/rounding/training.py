"""Training in one process or on several ranks: `python -m rounding.training JOB FILE` is one of them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jobs.local import mpirun
from rounding import switches
from rounding.networks import first_weights, network

HELD_OUT = 16  # volumes
PRECISIONS = ("float32", "float64")
ONE, OTHER_ORDER = "one process", "other order"


def batches(job: dict[str, Any], seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Volumes float32 (batch, D, H, W, 1) and classes int32 (batch,), for every step."""
    rng = np.random.default_rng([17, seed])
    count, edge = job["batch"], job["edge"]
    return [
        (
            rng.normal(size=(count, edge, edge, edge, 1)).astype(np.float32),
            rng.integers(0, 2, count).astype(np.int32),
        )
        for _ in range(job["steps"])
    ]


Step = Callable[[np.ndarray, np.ndarray], Any]


def plain_step(model: Any, optimizer: Any, precision: str) -> Step:
    """One update with nothing but Keras."""
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype=precision)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=False)
    return lambda x, y: model.train_on_batch(x, y)


def shared_step(model: Any, optimizer: Any, world: Any) -> Step:
    """One update over all ranks, each with its part of the batch."""
    import trainer
    from trainer.strategies import data
    from trainer.strategies.learner import Setup

    learner = data.build(Setup(model, trainer.DistributedOptimizer(optimizer), world))

    def step(x: np.ndarray, y: np.ndarray) -> None:
        mine = part(len(x), world)
        learner.train_step(x[mine], y[mine], np.ones(len(x[mine]), x.dtype))

    return step


def part(batch: int, world: Any) -> slice:
    """This rank's samples of a batch."""
    share = batch // world.size
    return slice(world.rank * share, (world.rank + 1) * share)


def shuffled(seed: int, number: int, batch: int, way: str) -> np.ndarray:
    """The order in which the samples of a batch are taken, int (batch,)."""
    if not way.startswith(OTHER_ORDER):
        return np.arange(batch)
    which = way[len(OTHER_ORDER) :].split()
    return np.random.default_rng([number, seed, *map(int, which)]).permutation(batch)


def other_orders(count: int) -> list[str]:
    """Names of as many ways to train in one process with the samples of each batch in another order."""
    return [OTHER_ORDER, *(f"{OTHER_ORDER} {number}" for number in range(2, count + 1))]


def seeds(job: dict[str, Any]) -> range:
    """Numbers of the sets of weights and batches."""
    return range(job["first_seed"], job["first_seed"] + job["seeds"])


def results(job: dict[str, Any], world: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Weights (steps + 1, parameters) and the loss of held-out volumes, by 'spec|rate|seed|way|precision'.

    Where the job asks for switches, also bool (samples, D, H, W, C) by 'spec|seed|signs|way|precision|layer':
    whether the inputs of a ReLU are above zero before the first step, in the order of the samples.

    Args:
        job: what is trained; see `study`.
        world: the ranks that share each batch; None for plain Keras.
    """
    import keras

    ways = [ONE, *other_orders(job["orders"])]
    if world is not None:
        ways = [f"{world.size} rank{'s'[: world.size > 1]}"]
    for precision, spec in itertools.product(PRECISIONS, job["networks"]):
        # Layers and collectives have the same names on all ranks, and Keras' losses the type of floatx.
        keras.utils.clear_session()
        keras.config.set_floatx(precision)
        model = network(spec, job["edge"], precision, synchronous=world is not None)
        optimizer = keras.optimizers.SGD(0.0)
        optimizer.build(model.trainable_variables)
        step = (
            plain_step(model, optimizer, precision) if world is None else shared_step(model, optimizer, world)
        )
        above_zero = switches.inputs_of_relus(model, world)
        for seed in seeds(job):
            given = batches(job, seed)
            start = first_weights(spec, job["edge"], seed)
            for way in ways if job["switches"] else ():
                model.set_weights(start)
                order = shuffled(seed, 0, job["batch"], way)
                mine = slice(None) if world is None else part(job["batch"], world)
                signs = above_zero(given[0][0][order][mine].astype(precision))
                for layer, values in signs.items():
                    yield f"{spec}|{seed}|signs|{way}|{precision}|{layer}", values[np.argsort(order)]
            for rate, way in itertools.product(job["rates"], ways):
                model.set_weights(start)
                optimizer.learning_rate = rate
                weights = [flat(model)]
                for number, (x, y) in enumerate(given):
                    order = shuffled(seed, number, len(y), way)
                    step(x[order].astype(precision), y[order])
                    weights.append(flat(model))
                key = f"{spec}|{rate:g}|{seed}|{way}|{precision}"
                yield key, np.stack(weights)
                yield f"{key}|loss", held_out_loss(model, precision)


def flat(model: Any) -> np.ndarray:
    """All trainable weights, float64 (parameters,)."""
    return np.concatenate([np.asarray(v.value, np.float64).ravel() for v in model.trainable_variables])


def held_out_loss(model: Any, precision: str) -> np.ndarray:
    """Mean cross-entropy of volumes that are in no batch."""
    rng = np.random.default_rng(18)
    x = rng.normal(size=(HELD_OUT, *model.input_shape[1:])).astype(precision)
    logits = np.asarray(model(x, training=False), np.float64)
    top = logits.max(axis=1, keepdims=True)
    logarithms = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return np.asarray(-logarithms[np.arange(HELD_OUT), np.arange(HELD_OUT) % 2].mean())


def work(job: dict[str, Any], path: Path) -> None:
    """What one process of the study does: train every network, and keep the weights of every step."""
    from trainer import quiet

    quiet.leave_out_what_keras_can_do_without()
    tf = quiet.import_tensorflow()
    world = None
    if job["ranks"] == 0:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    else:
        import trainer
        from trainer.ranks.world import current

        trainer.init(threads=1)
        world = current()
    tf.config.experimental.enable_op_determinism()
    found = {}
    for key, values in results(job, world):
        found[key] = values
        if (world is None or world.is_main) and not key.endswith("loss") and "|signs|" not in key:
            print(f"  {key.replace('|', ', ')}", file=sys.stderr, flush=True)
    if world is None or world.is_main:
        np.savez(path, **found)


def trained(job: dict[str, Any], worlds: list[int]) -> dict[str, np.ndarray]:
    """The results of plain Keras and of each number of ranks, in processes of their own."""
    found: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (0, *worlds):
            print("plain Keras" if ranks == 0 else f"{ranks} rank(s)", file=sys.stderr, flush=True)
            path = Path(folder) / f"{ranks}.npz"
            line = [sys.executable, "-m", "rounding.training", json.dumps({**job, "ranks": ranks}), str(path)]
            additions: dict[str, str] = {}
            if ranks > 1:
                line, additions = mpirun.command(ranks, line)
            ours = os.pathsep.join(str(folder) for folder in Path(__file__).parents[1:3])
            here = {"PYTHONPATH": ours, "TF_CPP_MIN_LOG_LEVEL": "3"}
            subprocess.run(line, env={**os.environ, **here, **additions}, check=True)
            with np.load(path) as archive:
                found |= dict(archive)
    return found


if __name__ == "__main__":
    work(json.loads(sys.argv[1]), Path(sys.argv[2]))
