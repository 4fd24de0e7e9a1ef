"""What asynchronous servers compute: the update of one process, whatever they are divided among."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from wording import fails_with

from trainer.errors import ConfigError
from trainer.ranks.world import World
from trainer.strategies.async_servers import async_state as state
from trainer.strategies.async_servers.async_server import Held, Shard
from trainer.strategies.async_servers.async_state import VariableShares
from trainer.strategies.async_servers.async_worker import Gradients
from trainer.strategies.compiled_update import compilable
from trainer.strategies.data import DistributedModel
from trainer.strategies.learner import Setup
from trainer.strategies.schedule import RunSchedule, schedule_of
from trainer.tasks.losses import cross_entropy, hits
from trainer.telemetry.timeline import Timeline


def network() -> keras.Model:
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    y = keras.layers.BatchNormalization()(keras.layers.Dense(5, activation="relu")(x))
    return keras.Model(x, keras.layers.Dense(2)(y))


def untimed() -> Timeline:
    return Timeline(enabled=False)


def optimizer(model: keras.Model, accumulation: int | None) -> keras.Optimizer:
    made = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(0.1, 20),
        weight_decay=0.1,
        use_ema=True,
        ema_momentum=0.5,
        gradient_accumulation_steps=accumulation,
    )
    made.build(model.trainable_variables)
    return made


def batches(count: int) -> list:
    draw = np.random.default_rng(0)
    return [
        (draw.normal(size=(3, 4)).astype("float32"), draw.integers(0, 2, 3), np.ones(3, "float32"))
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("servers", "accumulation", "compiled"),
    [(1, None, False), (3, None, False), (2, 2, False), (2, None, True)],
)
def test_one_worker_and_its_servers_do_what_one_process_does(servers, accumulation, compiled):
    micro = accumulation or 1
    alone = network()
    plain = DistributedModel(Setup(alone, optimizer(alone, accumulation), World(), cross_entropy(), hits))
    worker = network()
    shares = VariableShares(worker, servers)
    parts = []
    for server in range(servers):
        model = network()
        own = compilable(optimizer(model, accumulation))
        shard = Shard(model, own, shares, server)
        shard.updated().compile(compiled)
        parts.append((shard, model, own))
    gradients = Gradients(worker, cross_entropy(), hits, None, untimed())
    taken = batches(4 * micro)
    untrained = list(worker.non_trainable_weights)
    for step in range(4):
        for server, (shard, *_) in enumerate(parts):
            own_variables = [*shares.variables(worker, server), *(untrained if server == 0 else [])]
            state.assign(own_variables, shard.weights())
        before = state.flat(untrained)
        mine = taken[step * micro : (step + 1) * micro]
        found, _, sums = gradients.of(mine)
        assert sums[-1] == 3 * micro
        for server, (shard, *_) in enumerate(parts):
            pushed = [found[i].ravel() for i in shares.trained[server]]
            if server == 0:
                pushed.append(state.flat(untrained) - before)
            shard.update(np.concatenate(pushed))
        for batch in mine:
            plain.train_step(*batch)
    _, model, own = parts[0]
    for server in range(1, servers):  # what server 0 does before it saves
        Held(model, own, shares, server).restore(parts[server][0].save())
    for ours, theirs in zip(
        [*model.weights, *own.variables], [*alone.weights, *plain.optimizer.variables], strict=True
    ):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), atol=2e-6, err_msg=ours.path)


def test_a_global_norm_is_clipped_where_the_whole_gradient_is():
    model = network()
    (batch,) = batches(1)
    whole, *_ = Gradients(model, cross_entropy(), hits, None, untimed()).of([batch])
    norm = np.sqrt(sum(np.sum(g**2) for g in whole))
    clipped, *_ = Gradients(network(), cross_entropy(), hits, float(norm) / 4, untimed()).of([batch])
    for small, large in zip(clipped, whole, strict=True):
        np.testing.assert_allclose(4 * small, large, rtol=1e-4, atol=1e-7)


def test_a_further_server_learns_from_server_0_by_which_cycles_the_rate_goes():
    """It reads the configuration alone, and that of a run that was made longer does not tell them."""

    def held(cycles):
        model = network()
        rule = RunSchedule("cosine", 0.1, steps_per_epoch=2, cycles=cycles)
        own = keras.optimizers.SGD(rule, momentum=0.9)
        own.build(model.trainable_variables)
        return Held(model, own, VariableShares(model, 2), 1), own

    main, first = held([(0, 3), (3, 2)])
    further, second = held([(0, 5)])
    first.variables[0].assign(6)
    further.restore(main.save())
    assert schedule_of(second).cycles == [(0, 3), (3, 2)]
    assert float(second.learning_rate) == float(first.learning_rate) == pytest.approx(0.1)
    np.testing.assert_array_equal(further.save(), main.save())


def test_more_servers_than_variables_are_refused():
    with fails_with(ConfigError):
        VariableShares(network(), 20)


def test_messages_keep_header_and_values():
    message = state.message([7, 2.5], np.arange(3, dtype=np.float32))
    assert state.header(message)[:3].tolist() == [7.0, 2.5, -1.0]
    assert state.values(message).tolist() == [0.0, 1.0, 2.0]
