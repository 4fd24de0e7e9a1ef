"""What a plan says that an update moves, and what of it a backward pass hides."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import keras
import pytest

from trainer import models
from trainer.config import DataConfig, RingConfig, RunConfig, ServerConfig, TrainConfig
from trainer.planning import communication as costs
from trainer.planning.exchange import exposed
from trainer.strategies import data_plan, registry
from trainer.strategies.async_servers.async_training import AsyncPlan
from trainer.strategies.servers import layout
from trainer.strategies.servers import strategy as servers

SIZES = (1000, 600, 48)
ELEMENTS = sum(SIZES)


@pytest.mark.parametrize("algorithm", costs.ALGORITHMS)
@pytest.mark.parametrize("compression", ["none", "float16"])
def test_data_parallelism_moves_each_gradient_once_over_its_route(algorithm, compression):
    ring = RingConfig(algorithm=algorithm, compression=compression, reduction="per_tensor")
    found = data_plan.exchange(ring, SIZES, 4)
    size = ELEMENTS * (4 if compression == "none" else 2)
    assert (found.parts, found.counted) == (3, size)
    for one, other in zip(found.payload, costs.payload(costs.reduction(algorithm, size, 4), 4), strict=True):
        assert one == pytest.approx(other)


def test_buckets_leave_one_after_the_other_and_a_group_at_once():
    for reduction, parts in (("buckets", 2), ("grouped", 1), ("per_tensor", 3)):
        ring = RingConfig(reduction=reduction, bucket_mb=3000 / 2**20)
        assert data_plan.exchange(ring, SIZES, 2).parts == parts


def test_wider_numbers_and_a_mixed_bucket_travel_in_the_widest_type():
    ring = RingConfig()
    assert data_plan.exchange(ring, SIZES, 2, [8, 8, 8]).counted == 8 * ELEMENTS
    assert data_plan.exchange(ring, SIZES, 2, [4, 4, 8]).counted == 8 * ELEMENTS
    half = RingConfig(compression="bfloat16")
    assert data_plan.exchange(half, SIZES, 2, [8, 8, 8]).counted == 2 * ELEMENTS


def test_accumulation_moves_nothing_more_and_one_rank_nothing():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    once, twice = (
        data_plan.plan(model, world_size=2, global_batch=8, accumulation=n).exchange() for n in (1, 2)
    )
    assert once == twice and once.counted == 4 * 6
    assert data_plan.plan(model, world_size=1, global_batch=8).exchange().counted == 0


@pytest.mark.parametrize(("placement", "count"), [("separate", 1), ("separate", 3), ("colocated", 2)])
def test_servers_move_what_their_plan_says_of_workers_and_servers(placement, count):
    model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(50), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    server = ServerConfig(count=count, placement=placement, piece_mb=0.001)
    plan = servers.plan(model, world_size=4, global_batch=4, server=server, optimizer=optimizer)
    found = plan.exchange()
    sent = list(plan.worker_sent)
    if placement == "colocated":
        for rank, more in enumerate(plan.server_sent):
            sent[rank] += more
    else:
        sent += plan.server_sent
    assert [one.sent for one in found.payload] == sent == [one.received for one in found.payload]
    assert found.counted == 2 * 4 * plan.parameters
    sizes = [int(keras.ops.size(v)) for v in model.trainable_variables]
    assert layout.exchange_of(server, sizes, 4, one_host=False).rounds == found.rounds


@pytest.mark.parametrize(("one_host", "messages"), [(True, 1), (False, 12)])
def test_servers_on_the_host_of_their_workers_send_larger_messages(one_host, messages):
    train = TrainConfig(global_batch=4, strategy={"name": "parameter-server", "count": 1})
    way = registry.of(RunConfig(name="run", data=DataConfig(shards=Path("nowhere")), train=train))
    model = keras.Sequential(
        [keras.Input((4,)), *(keras.layers.Dense(128, use_bias=False) for _ in range(12))]
    )
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    # Stands in for a world of processes on one host, or on several: only their links are asked.
    world = SimpleNamespace(links=SimpleNamespace(one_host=one_host))
    way.calibrate(model, cast("Any", world), None)
    plan = cast(servers.ServerPlan, way.plan(model, optimizer, 2))
    assert plan.messages == messages
    sizes = [int(keras.ops.size(v)) for v in model.trainable_variables]
    server = cast(ServerConfig, train.strategy)
    assert layout.exchange_of(server, sizes, 2, one_host=one_host).rounds == plan.exchange().rounds


def test_an_asynchronous_worker_takes_all_weights_and_sends_all_gradients():
    plan = AsyncPlan(
        2, 8, 1, 8, 300, "parameter-server", servers=2, bytes_per_server=(700, 500), staleness=None
    )
    found = plan.exchange()
    assert found.payload == ((1200, 1200), (0, 0), (700, 700), (500, 500))
    assert found.counted == 1200 and found.allreduce is None and not found.of_all


@pytest.mark.parametrize("strategy", [{"name": "spatial"}, {"name": "filters", "mode": "master"}])
def test_a_divided_network_moves_the_messages_of_its_tasks(strategy):
    train = TrainConfig(global_batch=4, accumulation=2, strategy=strategy)
    config = RunConfig(name="run", data=DataConfig(shards=Path("nowhere")), train=train)
    model = models.build("tiny", (16, 16, 16, 1), 2, dense=False, covariates=0, width=2)
    optimizer = keras.optimizers.SGD()
    plan = registry.of(config).plan(model, optimizer, 3)
    found = plan.exchange()
    assert tuple(one.sent for one in found.payload) == plan.sent_per_update
    assert sum(one.received for one in found.payload) == sum(plan.sent_per_update) > 0
    assert found.counted == max(one.received for one in found.payload)
    assert found.messages == plan.messages_per_update and found.allreduce is None and found.of_all
    assert registry.of(config).plan(model, optimizer, 1).exchange().counted == 0


@pytest.mark.parametrize(
    ("communication", "backward", "parts", "expected"),
    [
        (4.0, 10.0, 1, (4, 0, 4)),  # nothing leaves before the end
        (4.0, 10.0, 4, (1, 0, 4)),  # each part is through before the next is complete
        (4.0, 2.0, 4, (2.5, 2, 4)),  # the link is busy from a quarter of the backward pass on
        (0.0, 2.0, 4, (0, 0, 0)),
    ],
)
def test_what_a_backward_pass_does_not_hide(communication, backward, parts, expected):
    found = exposed(communication, backward, parts)
    assert found == pytest.approx(expected)
    assert found.at_least <= found.seconds <= found.at_most
