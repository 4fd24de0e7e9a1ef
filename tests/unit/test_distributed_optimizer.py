"""The distributed optimizer and its parts that need no second rank."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from wording import fails_with

from trainer.config import OptimizerConfig, TrainConfig
from trainer.errors import ConfigError, LaunchError, WorldError
from trainer.ranks import launch
from trainer.ranks import world as worlds
from trainer.strategies import data, data_plan, optimizers, reduction
from trainer.strategies.distributed_optimizer import DistributedOptimizer, is_distributed
from trainer.strategies.learner import Setup


class TwoRanks(worlds.World):
    """Rank 1 of two, the other of which always has gradients of zero."""

    rank = 1
    size = 2

    def grouped_allreduce(self, tensors, op, *, name):
        return [tensor / 2 if op == "mean" else tensor for tensor in tensors]

    def allreduce(self, tensor, op="mean", *, name=None):
        return tensor

    def allgather(self, array, *, name=None):
        return tf.concat([tf.zeros_like(array), array], 0)


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[worlds.World]:
    world = TwoRanks()
    monkeypatch.setattr(worlds, "_world", world)
    yield world


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[worlds.World]:
    world = worlds.World()
    monkeypatch.setattr(worlds, "_world", world)
    yield world


def updated(optimizer: keras.Optimizer, gradients: list[float]) -> list[float]:
    """A variable of 1.0 after each of these gradients."""
    variable = keras.Variable(1.0)
    values = []
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        values.append(float(variable.value))
    return values


class Gathering(worlds.World):
    """Rank 0 of two; the other one's gradients are three times its own."""

    size = 2

    def alltoall(self, tensor, *, name, splits=None):
        assert tuple(splits) == (tensor.shape[0], 0)
        theirs = tf.bitcast(tensor, tf.bfloat16) if tensor.dtype == tf.uint16 else tensor
        theirs = 3 * theirs
        return tf.concat([tensor, tf.bitcast(theirs, tensor.dtype)], 0)


@pytest.mark.parametrize("wire", ["none", "float16", "bfloat16"])
def test_a_gather_gives_the_mean_of_all_ranks_in_every_type(wire: reduction.Wire) -> None:
    reduce = reduction.make(Gathering(), "test", kind="buckets", bucket_mb=1, wire=wire, gather=True)
    gradients = [
        tf.constant([[1.0, 2.0]]),
        None,
        tf.constant(0.5, tf.float64),
        tf.constant([4.0], tf.float16),
    ]
    means = reduce(gradients)
    assert means[1] is None
    for mean, gradient in zip(means, gradients, strict=True):
        if gradient is not None:
            assert mean.dtype == gradient.dtype
            np.testing.assert_array_equal(mean, 2 * gradient)


def test_buckets_fill_from_the_last_layer_on() -> None:
    assert reduction.buckets([4, 4, 4, 4], 8) == [[3, 2], [1, 0]]
    assert reduction.buckets([1, 9, 1, 1], 4) == [[3, 2], [1], [0]]


def test_every_tensor_is_in_exactly_one_bucket() -> None:
    sizes = list(np.random.default_rng(0).integers(1, 50, 200))
    for limit in (0, 10, 60, float("inf")):
        groups = reduction.buckets(sizes, limit)
        assert sorted(i for group in groups for i in group) == list(range(200))
    assert len(reduction.buckets(sizes, 0)) == 200
    assert len(reduction.buckets(sizes, float("inf"))) == 1
    assert reduction.buckets([], 10) == []


def test_gradients_are_reduced_before_they_are_clipped(two_ranks: worlds.World) -> None:
    # Mean over both ranks: 0.5, clipped to 0.3. Clipped first it would be 0.15.
    assert updated(DistributedOptimizer(keras.optimizers.SGD(1.0, clipvalue=0.3)), [1.0]) == pytest.approx(
        [0.7]
    )


def test_accumulated_gradients_are_reduced_once_per_update(
    two_ranks: worlds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2))
    # (0.4 + 0.8) / 2, halved by the reduction.
    assert updated(optimizer, [0.4, 0.8]) == pytest.approx([1.0, 0.7])


def test_loss_scaling_reduces_before_it_looks_for_overflow(two_ranks: worlds.World) -> None:
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=4.0)
    optimizer = DistributedOptimizer(scaled)
    assert is_distributed(optimizer)
    assert updated(optimizer, [4.0, float("inf")]) == pytest.approx([0.5, 0.5])
    assert float(optimizer.dynamic_scale.value) == 2.0


def test_under_mixed_float16_the_loss_is_scaled_where_all_ranks_see_it(two_ranks: worlds.World) -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    assert is_distributed(optimizer)


def test_a_saved_model_names_keras_own_class(two_ranks: worlds.World) -> None:
    optimizer = DistributedOptimizer(keras.optimizers.Adam(0.1))
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is keras.optimizers.Adam


def test_one_rank_keeps_keras_own_optimizer(one_rank: worlds.World) -> None:
    optimizer = keras.optimizers.Adam()
    assert DistributedOptimizer(optimizer) is optimizer
    assert type(optimizer) is keras.optimizers.Adam


def test_wrapping_twice_or_wrapping_something_else_is_refused(two_ranks: worlds.World) -> None:
    with fails_with(ConfigError):
        DistributedOptimizer(DistributedOptimizer(keras.optimizers.SGD()))
    with fails_with(ConfigError):
        DistributedOptimizer("adam")
    with fails_with(ConfigError):
        DistributedOptimizer(keras.optimizers.SGD(), compression="int8")


def test_an_optimizer_that_reduces_nothing_is_refused_by_the_strategy(two_ranks: worlds.World) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    with fails_with(ConfigError):
        data.build(Setup(model, keras.optimizers.SGD(), two_ranks))


def test_the_configuration_becomes_the_optimizer() -> None:
    config = TrainConfig(
        accumulation=2,
        precision="mixed_float16",
        optimizer=OptimizerConfig(name="sgd", momentum=0.5, weight_decay=0.1, clip_value=2.0, ema=0.9),
    )
    optimizer = optimizers.build(config, 3)
    inner = optimizer.inner_optimizer
    assert isinstance(inner, keras.optimizers.SGD)
    assert (inner.momentum, inner.weight_decay, inner.clipvalue) == (0.5, 0.1, 2.0)
    assert (inner.use_ema, inner.ema_momentum, inner.gradient_accumulation_steps) == (True, 0.9, 2)


def test_a_global_batch_that_cannot_be_shared_is_refused_with_one_that_can() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    with fails_with(ConfigError) as refused:
        data_plan.plan(model, world_size=3, global_batch=8)
    assert "train.global_batch=9" in str(refused.value)
    plan = data_plan.plan(model, world_size=4, global_batch=16, accumulation=2)
    assert (plan.micro_batch, plan.parameters, plan.bytes_per_update) == (2, 6, 36)


def test_what_needs_the_world_says_so_before_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "_world", None)
    with fails_with(WorldError):
        worlds.current()


def test_srun_without_pmix_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with fails_with(LaunchError) as refused:
        launch.expected_size()
    assert "--mpi=pmix" in str(refused.value)
    monkeypatch.setenv("PMIX_RANK", "0")
    assert launch.expected_size() == 2
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    assert launch.expected_size() == 3


@pytest.mark.parametrize(
    ("size", "here", "threads", "gpus", "starting"),
    [
        (2, 2, 1, [], 1),  # one host, no GPU: the cores are needed for computing
        (4, 2, 1, [], 2),
        (4, 2, 6, [], 6),
        (2, 2, 1, ["a GPU"], 2),
        (1, 1, 1, [], 1),
    ],
)
def test_reductions_get_a_thread_that_starts_them_where_the_way_is_long(
    monkeypatch: pytest.MonkeyPatch, size: int, here: int, threads: int, gpus: list[str], starting: int
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", str(size))
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", str(here))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    assert launch.starting_threads(tf, threads) == starting
