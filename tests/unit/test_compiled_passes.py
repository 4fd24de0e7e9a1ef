"""Passes that XLA compiles: as uncompiled ones in every way, or left as they are, and said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from trainer.errors import ConfigError
from trainer.ranks.agreement import Agreed
from trainer.ranks.world import World
from trainer.run_folder.run_record import PassesOfRun
from trainer.strategies import compiled_passes, data
from trainer.strategies.compiled_passes import Passes
from trainer.strategies.compiled_update import Devices
from trainer.strategies.learner import Setup

# MiB: every layer with weights is a bucket of its own.
SMALL = 1e-6


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


class OutOfReach(layers.Layer):
    """Computes in Python, which XLA cannot compile."""

    def call(self, x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda one: one, [x], x.dtype), x.shape)


class DrawsAgain(layers.Layer):
    """Drops out, and computes that again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = layers.Dropout(0.5)

    def call(self, x: Any, training: bool = False) -> Any:
        return tf.recompute_grad(lambda one: self.drop(one, training=training))(x)


class OfItsOwn(keras.Model):
    """A network that is no graph of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers.Conv3D(2, 3), layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.last(tf.reduce_mean(self.first(x), [1, 2, 3]))


def small(*more: layers.Layer) -> keras.Model:
    """A convolution, statistics that move, and `more` layers."""
    return keras.Sequential(
        [
            keras.Input((6, 6, 6, 1)),
            *(layers.Conv3D(2, 3), layers.BatchNormalization(), *more),
            *(layers.GlobalAveragePooling3D(), layers.Dense(3)),
        ]
    )


def residual() -> keras.Model:
    """Branches that meet, statistics that move, and draws."""
    given = keras.Input((6, 6, 6, 1), name="volume")
    x = way = layers.Conv3D(4, 3, padding="same")(given)
    for width in (4, 4):
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.7)(layers.Conv3D(width, 3, padding="same")(x)))
    x = layers.Dropout(0.3)(layers.add([x, way]))
    return keras.Model(given, layers.Dense(3)(layers.GlobalAveragePooling3D()(x)))


def with_covariates() -> keras.Model:
    given, ages = keras.Input((6, 6, 6, 1)), keras.Input((2,))
    x = layers.GlobalAveragePooling3D()(layers.Conv3D(4, 3)(given))
    return keras.Model([given, ages], layers.Dense(3)(layers.concatenate([x, ages])))


def learner(model: keras.Model) -> data.DistributedModel:
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    return data.build(Setup(model, optimizer, World(), seed=1), bucket_mb=SMALL)


def of(model: keras.Model) -> Passes:
    passes = learner(model).passes()
    assert passes is not None
    return passes


def trained(make: Callable[[], keras.Model], way: Any) -> list[np.ndarray]:
    """Weights after three steps."""
    keras.utils.set_random_seed(2)
    made = learner(make())
    made.passes().take(way)
    rng = np.random.default_rng(3)
    for _ in range(3):
        x = rng.standard_normal((2, 6, 6, 6, 1))
        inputs = [x, rng.standard_normal((2, 2))] if len(made.model.inputs) == 2 else x
        made.train_step(inputs, np.array([0, 2]), np.ones(2))
    return [v.numpy() for v in made.model.weights]


@pytest.mark.parametrize("make", [residual, with_covariates])
@pytest.mark.parametrize("way", ["whole", "buckets"])
def test_compiled_passes_end_with_the_weights_of_uncompiled_ones(make: Any, way: str) -> None:
    for mine, plain in zip(trained(make, way), trained(make, "none"), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=0, atol=1e-12)


def test_gradients_of_each_bucket_leave_by_themselves() -> None:
    network = compiled_passes.network(residual(), "buckets", ranks=1, bucket_mb=SMALL)
    assert len(network.segments) == 6  # three convolutions, two norms and the last layer
    assert all(segment.is_compiled for segment in network.segments)


def test_layers_that_exchange_something_are_not_compiled() -> None:
    from trainer import SyncBatchNormalization

    model = small(SyncBatchNormalization())
    segments = compiled_passes.network(model, "whole", ranks=2, bucket_mb=4).segments
    assert [one.is_compiled for one in segments] == [True, False, True]
    assert len(compiled_passes.network(model, "whole", ranks=1, bucket_mb=4).segments) == 1


def test_passes_are_one_compiled_function_each() -> None:
    run = compiled_passes.network(small(), "whole", ranks=1, bucket_mb=4)

    @tf.function(autograph=False)
    def both(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(run(x))
        return tape.gradient(loss, x)

    graph = both.get_concrete_function(tf.zeros((2, 6, 6, 6, 1), tf.float64)).graph.as_graph_def()
    called = {node.attr["f"].func.name for node in graph.node if "PartitionedCall" in node.op}
    compiled = [
        one.signature.name
        for one in graph.library.function
        if one.signature.name in called and one.attr["_XlaMustCompile"].b
    ]
    assert len(compiled) == len(called) == 2


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mock: the processors of this machine count as GPUs of one kind."""
    monkeypatch.setattr(Devices, "of", classmethod(lambda cls, world: cls(are_gpus=True)))


def test_on_processors_passes_are_not_compiled() -> None:
    for wanted in ("auto", "xla"):
        chosen = compiled_passes.choose(wanted, of(small()), 2, World())
        assert chosen == PassesOfRun(why="on processors they are faster uncompiled")


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    "layer, why",
    [
        (OutOfReach, "XLA"),
        (lambda: layers.GaussianNoise(0.1), "it draws normal numbers"),
        (DrawsAgain, "it draws at random in what the backward pass computes again"),
        (lambda: layers.ActivityRegularization(0.1), "out of scope"),
    ],
)
def test_what_cannot_be_compiled_is_left_and_said(layer: Callable[[], layers.Layer], why: str) -> None:
    passes = of(small(layer()))
    chosen = compiled_passes.choose("auto", passes, 2, World())
    assert chosen.way == "none"
    assert "XLA cannot compile the network (rank 0: " in chosen.why
    assert why in chosen.why
    with pytest.raises(Agreed) as failed:
        compiled_passes.choose("xla", passes, 2, World())
    assert isinstance(failed.value.error, ConfigError)


@pytest.mark.usefixtures("gpus")
def test_the_fastest_way_is_taken_and_nothing_moves_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = of(small())
    before = [v.numpy() for v in passes.model.weights]
    chosen = compiled_passes.choose("auto", passes, 2, World())
    assert set(chosen.ms) == {"none", "whole"}
    assert all(ms > 0 for ms in chosen.ms.values())
    for mine, was in zip(passes.model.weights, before, strict=True):
        np.testing.assert_array_equal(mine.numpy(), was)
    seconds = {"none": 1.0, "whole": 0.95}
    monkeypatch.setattr(compiled_passes, "_seconds", lambda passes, way, samples: seconds[way])
    assert compiled_passes.choose("auto", passes, 2, World()).way == "none"
    assert compiled_passes.choose("xla", passes, 2, World()).way == "whole"
    seconds["whole"] = 0.5
    assert compiled_passes.choose("auto", passes, 2, World()) == PassesOfRun(
        way="whole", why="it is the fastest way", ms={"none": 1000.0, "whole": 500.0}
    )


@pytest.mark.usefixtures("gpus")
def test_a_run_goes_on_as_it_did_and_few_updates_are_not_worth_a_trial() -> None:
    passes = of(small())
    kept = PassesOfRun(way="whole", why="as this run has computed them so far")
    assert compiled_passes.choose("auto", passes, 2, World(), before="whole") == kept
    assert compiled_passes.choose("auto", passes, 2, World(), before="none").way == "none"
    assert compiled_passes.choose("none", passes, 2, World(), before="whole").way == "none"
    assert compiled_passes.choose("xla", passes, 2, World(), before="none").way == "whole"
    assert "fewer than 500" in compiled_passes.choose("auto", passes, 2, World(), updates=499).why
    assert compiled_passes.choose("auto", passes, 2, World(), by_time=False).way == "whole"


@pytest.mark.usefixtures("gpus")
def test_a_network_of_a_class_of_its_own_is_compiled_as_one() -> None:
    model = OfItsOwn()
    model(np.zeros((1, 6, 6, 6, 1)))
    run = compiled_passes.network(model, "whole", ranks=1, bucket_mb=4)
    x = tf.constant(np.random.default_rng(0).standard_normal((2, 6, 6, 6, 1)))
    np.testing.assert_allclose(tf.function(run, autograph=False)(x), model(x), rtol=0, atol=1e-12)
    assert "not known" in compiled_passes.choose("auto", of(model), 2, World()).why
