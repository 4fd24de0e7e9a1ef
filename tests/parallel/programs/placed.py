"""Cases of `placed_cases.py` on several ranks, and in plain Keras.

    python placed.py FOLDER PLAIN CASE[,CASE ...] [LEG:LEG]

Writes FOLDER/<case>.npz, the state after the last step, and FOLDER/found.json, what crossed between ranks and
what should have; and PLAIN/<case>.npz where that is not there yet: each rank trains some of these alone.

LEG:LEG are legs of the case "moved", each under another strategy (`placed_cases.LEGS`): each goes on from the
checkpoint of the one before, which another launch may have written to FOLDER/checkpoints.
"""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import dataclasses
import faulthandler
import json
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import keras
import numpy as np
import placed_cases
import tensorflow as tf
from divided_networks import on_random_ranks
from placed_cases import CASES, LEGS, LOSSES, STEPS_OF_LEG, Case

from trainer import transfer
from trainer.planning.placement.tasks import Send
from trainer.ranks import launch, starting
from trainer.ranks.members import Members
from trainer.ranks.world import World
from trainer.run_folder import checkpoint
from trainer.strategies import optimizers, registry
from trainer.strategies.compiled_update import set_compiled
from trainer.strategies.draws import Draws, SamplesOfPass
from trainer.strategies.learner import Setup
from trainer.strategies.placed.strategy import PlacedStrategy

STEPS_PER_EPOCH = 4
SEED = 5  # of what layers draw
HANGING_S = 240


class AtRandom(PlacedStrategy):
    """Boxes of every operation on ranks drawn at random."""

    seed = 0

    def layouts(self, network: Any, ranks: int) -> Any:
        return on_random_ranks(self.seed, ranks)(network)

    def way(self, ranks: int) -> str:
        return "at random"


def made(case: Case, ranks: int, seed: int) -> tuple[Any, keras.Model, keras.Optimizer]:
    """Strategy, network and optimizer."""
    config = case.config(ranks)
    keras.utils.set_random_seed(seed)
    model = case.network()
    transfer.freeze(model, config.train.transfer)
    strategy = registry.of(config)
    if case.seed is not None:
        strategy = AtRandom(config)
        strategy.seed = case.seed
    optimizer = optimizers.build(config.train, STEPS_PER_EPOCH, model)
    optimizer.build(model.trainable_variables)
    return strategy, model, optimizer


def taken(share: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """This rank's samples, and of volumes its box."""
    found = []
    for array in arrays:
        size = len(array) // share.parts
        array = array[share.part * size :][:size]
        if share.space is not None and array.ndim == 5:
            array = array[(slice(None), *(slice(*one) for one in share.space))]
        found.append(array)
    return found


def one_or_all(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else list(arrays)


def divided(case: Case, world: World, ranks: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Train with the strategy; returns the state, whole on rank 0, and what crossed."""
    # Only rank 0 starts like the reference.
    strategy, model, optimizer = made(case, ranks, case.start + world.rank)
    plan = strategy.plan(model, optimizer, world.size)
    loss, score = LOSSES[case.loss]
    learner = strategy.build(plan, Setup(model, optimizer, world, loss, score, seed=SEED))
    for one in learner.updated().optimizers:
        set_compiled(one, case.compiled)
    plans = cycle(plans_of(case, plan, model, optimizer, world))
    counts = Counted(learner)
    losses: list[Any] = []
    for x, y, w in placed_cases.batches(case, model):
        if losses and case.anew is not None and len(losses) % case.accumulation == 0:
            plan, counts = divided_anew(learner, next(plans)), Counted(learner, len(losses))
        share = plan.share(world.rank)
        (y, w), x = (
            [one[share.part * len(one) // share.parts :][: len(one) // share.parts] for one in (y, w)],
            taken(share, x),
        )
        losses.append(learner.train_step(one_or_all(x), y, w))
    losses = [float(one) for one in losses]
    crossed = counts.since(world, plan, len(losses), plan.accumulation)
    seen = plan.evaluation_share(world.rank)
    learner.check()
    whole = np.sum(world.allgather_object(losses), axis=0)
    sums = learner.take_sums()
    with learner.averaged_weights():
        outputs = learner.predict(one_or_all(taken(seen, placed_cases.evaluated(model))))
    found = placed_cases.state(learner.gather(), optimizer)
    learner.close()
    found |= {"losses": whole, "mean loss": np.array(sums.mean_loss)}
    if len(model.outputs) == 1:
        found["outputs"] = np.asarray(outputs)
    return found, crossed


def plans_of(
    case: Case, plan: Any, model: keras.Model, optimizer: keras.Optimizer, world: World
) -> Iterator[Any]:
    """The plans of the updates from the second one on: the other one, and the first one again."""
    if case.anew is not None:
        other = registry.of(dataclasses.replace(case, strategy=case.anew).config(world.size))
        yield other.plan(model, optimizer, world.size)
    yield plan


def divided_anew(learner: Any, plan: Any) -> Any:
    """Let a learner follow another plan, and see that the memory of what it held before is free."""
    held = [weakref.ref(one.value.handle) for one in learner.holdings.owned.values()]
    learner.divide(plan)
    assert all(one() is None for one in held), "blocks of the old plan are still there"
    return plan


def move(folder: Path, legs: range, world: World) -> None:
    """Train the legs; writes FOLDER/moved on.npz after each."""
    for leg in legs:
        watch()
        strategy, alone = LEGS[leg]
        case = dataclasses.replace(CASES["moved"], strategy=strategy)
        if world.is_main or not alone:
            leg_of(case, leg, folder, World() if alone else world)
        world.barrier()


def leg_of(case: Case, leg: int, folder: Path, world: World) -> None:
    strategy, model, optimizer = made(case, world.size, 3 + 10 * leg + world.rank)
    checkpoints = folder / "checkpoints"
    if world.is_main and leg:
        path = checkpoint.find(checkpoints).path
        assert path is not None
        assert checkpoint.restore(path, model, optimizer).step == leg * STEPS_OF_LEG
    plan = strategy.plan(model, optimizer, world.size)
    learner = strategy.build(plan, Setup(model, optimizer, world, *LOSSES[case.loss]))
    for x, y, w in placed_cases.batches(case, model)[leg * STEPS_OF_LEG :][:STEPS_OF_LEG]:
        learner.train_step(one_or_all(taken(plan.share(world.rank), x)), y, w)
    learner.gather()
    learner.close()
    if world.is_main:
        cursor = checkpoint.Cursor((leg + 1) * STEPS_OF_LEG, STEPS_PER_EPOCH)
        checkpoint.save(checkpoints, cursor, model, optimizer)
        np.savez(folder / "moved on.npz", **placed_cases.state(model, optimizer))


class Counted:
    """What a learner sends and receives, by rank, from now on; some steps are done."""

    def __init__(self, learner: Any, steps: int = 0) -> None:
        self.exchange, self.world, self.steps = learner.exchange, learner.world, steps
        self.before = self.now()
        if self.exchange is not None:
            self.exchange.arrivals()

    def now(self) -> list[list[int]]:
        if self.exchange is None:
            return []
        ranks = range(self.world.size)
        both = [*map(self.exchange.sent, ranks)], [*map(self.exchange.received, ranks)]
        return [[one[kind] for one in way] for kind in (0, 1) for way in both]

    def since(self, world: World, plan: Any, steps: int, accumulation: int) -> dict[str, Any]:
        """Bytes and messages from rank to rank, as each end counted them and as the plan has them."""
        steps -= self.steps
        expected: Counter[tuple[int, int, str]] = Counter()
        for tasks in plan.lists.values():
            for task in tasks:
                if isinstance(task, Send):
                    pair = task.messages[0].source, task.messages[0].target
                    expected[(*pair, "bytes")] += steps * sum(one.bytes for one in task.messages)
                    expected[(*pair, "messages")] += steps
        each = [steps // accumulation * bytes_ for bytes_ in plan.sent_per_update]
        world.barrier()  # every message has been received: each step waits for all of its own
        names = ("sent bytes", "received bytes", "sent messages", "received messages")
        counted = [
            [n - m for n, m in zip(*two, strict=True)] for two in zip(self.now(), self.before, strict=True)
        ]
        mine = dict(zip(names, counted, strict=bool(counted)))
        if self.exchange is not None:
            rows = self.exchange.arrivals()
            assert (rows[:, 0] <= rows[:, 1]).all()
            sums = [rows[rows[:, 2] == rank, 3] for rank in range(world.size)]
            mine |= {"arrived bytes": [int(one.sum()) for one in sums], "arrived messages": [*map(len, sums)]}
        return {
            "plan": [[*key, count] for key, count in sorted(expected.items())],
            "per rank": each,
            "ranks": world.allgather_object(mine),
        }


def plain(case: Case) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Train with Keras alone; returns the state before and after."""
    _, model, optimizer = made(case, 1, case.start)
    loss, _ = LOSSES[case.loss]
    start = placed_cases.state(model, optimizer)

    def differentiated(x: Any, y: Any, w: Any, of: Any) -> tuple[Any, Any, Any]:
        with tf.GradientTape() as tape:
            each = loss(y, model(x, training=True))
            mean = tf.reduce_sum(each * w) / of
            scaled = optimizer.scale_loss(mean)
        return each, mean, tape.gradient(scaled, model.trainable_variables)

    if case.in_graph:
        differentiated = tf.function(differentiated, autograph=False)
    losses, means, samples = [], 0.0, 0.0
    draws = Draws(model, SEED)
    for number, (x, y, w) in enumerate(placed_cases.batches(case, model)):
        whole, summed = 0.0, None
        step, micro = divmod(number, case.accumulation)
        for rows in case.micro_batches():
            places = SamplesOfPass(tuple((micro * case.batch + int(row), 1) for row in rows), whole=False)
            with draws.of_pass(x, step, places):
                each, mean, gradients = differentiated(
                    one_or_all([one[rows] for one in x]), y[rows], w[rows], len(w)
                )
            summed = gradients if summed is None else [a + b for a, b in zip(summed, gradients, strict=True)]
            whole += float(mean)
            means += float(tf.reduce_sum(each * (w[rows] > 0)))
        optimizer.apply(summed, model.trainable_variables)
        losses.append(whole)
        samples += np.sum(w > 0)
    found = placed_cases.state(model, optimizer)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner.use_ema:
        for variable, average in zip(
            model.trainable_variables, inner._model_variables_moving_average, strict=True
        ):
            variable.assign(average.value)
    outputs = model(one_or_all(placed_cases.evaluated(model)), training=False)
    found |= {"losses": np.array(losses), "mean loss": np.array(means / samples)}
    if len(model.outputs) == 1:
        found["outputs"] = np.asarray(outputs, np.float32)
    return start, found


def watch() -> None:
    """Let a rank that waits for ever from now on say where, and end."""
    faulthandler.dump_traceback_later(HANGING_S, exit=True)


def main() -> None:
    folder, reference = Path(sys.argv[1]), Path(sys.argv[2])
    names = [name for name in sys.argv[3].split(",") if name]
    assert CASES.keys() >= {*names}, names
    world = starting.init(threads=1, members=Members(messages=launch.expected_size() > 1))
    crossed = {}
    for name in names:
        watch()
        case = CASES[name]
        placed_cases.use(case.policy)
        began = time.monotonic()
        found, crossed[name] = divided(case, world, world.size)
        crossed[name]["seconds"] = time.monotonic() - began
        if world.is_main:
            np.savez(folder / f"{name}.npz", **found)
    if world.is_main:
        (folder / "found.json").write_text(json.dumps(crossed))
    if len(sys.argv) > 4:
        placed_cases.use(CASES["moved"].policy)
        move(folder, range(*map(int, sys.argv[4].split(":"))), world)
    missing = [name for name in names if not (reference / f"{name}.npz").exists()]
    for name in missing[world.rank :: world.size]:
        watch()
        case = CASES[name]
        placed_cases.use(case.policy)
        start, found = plain(case)
        np.savez(reference / f"{name}.start.npz", **start)
        np.savez(reference / f"{name}.npz", **found)
    watch()  # the others may have more to do alone
    world.barrier()
    world.shutdown()


main()
