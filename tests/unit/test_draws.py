"""What layers draw at random belongs to samples: the same on any division of a global batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from wording import fails_with

from trainer.errors import ModelError
from trainer.ranks import world
from trainer.strategies import keras_random
from trainer.strategies.draws import NOISE, Draws, SamplesOfPass
from trainer.strategies.placed.reading import read

SHAPE = (4, 3, 5, 7)
BATCH = 16


class DropPath(layers.Layer):
    """A user's layer: one number for each sample, and one that all share."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seeds = keras.random.SeedGenerator()

    def call(self, x: Any, training: bool = False) -> Any:
        each = keras.random.uniform((keras.ops.shape(x)[0], 1, 1, 1, 1), seed=self.seeds)
        return x * each + keras.random.normal((1, *SHAPE), seed=self.seeds)


class Everything(layers.Layer):
    """A user's layer that draws from every distribution that Keras has, without a seed of its own."""

    def call(self, x: Any, training: bool = False) -> Any:
        n = keras.ops.shape(x)[0]
        drawn = [
            keras.random.normal((n,), mean=1.0),
            keras.random.truncated_normal((n,)),
            keras.random.randint((n,), -5, 1000),
            keras.random.gamma((n,), alpha=2.0),
            keras.random.beta((n,), alpha=2.0, beta=1.0),
            keras.random.binomial((n,), counts=100.0, probabilities=0.3),
            keras.random.categorical(keras.ops.zeros((n, 50)), 1)[:, 0],
            keras.random.uniform((n,), seed=4),
            keras.random.uniform(()),
        ]
        drawn = [keras.ops.broadcast_to(keras.ops.cast(one, "float32"), (n,)) for one in drawn]
        return x[..., :1] + keras.ops.reshape(keras.ops.stack(drawn, 1), (n, 1, 1, 1, len(drawn)))


class Mixing(layers.Layer):
    def call(self, x: Any, training: bool = False) -> Any:
        return 0.5 * x + 0.5 * keras.random.shuffle(x)


class ByItsSeed(layers.Layer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seeds = keras.random.SeedGenerator()

    def call(self, x: Any, training: bool = False) -> Any:
        return x * tf.random.stateless_uniform(tf.shape(x), tf.cast(self.seeds.next(), tf.int32))


class Twice(layers.Layer):
    """Two rows of random numbers for each sample."""

    def call(self, x: Any, training: bool = False) -> Any:
        two = keras.ops.concatenate([x, x])
        return sum(keras.ops.split(two * keras.random.uniform((keras.ops.shape(two)[0], 1, 1, 1, 1)), 2))


Layer = Callable[[], layers.Layer]
# And in how many of 16 samples something else is drawn, at least.
LAYERS: dict[str, tuple[Layer, int]] = {
    "dropout": (lambda: layers.Dropout(0.3), 16),
    "dropout of whole planes": (lambda: layers.Dropout(0.3, noise_shape=(None, None, 1, 1, None)), 16),
    "dropout that samples share": (lambda: layers.Dropout(0.3, noise_shape=(1, None, None, None, None)), 1),
    "spatial dropout": (lambda: layers.SpatialDropout3D(0.3), 12),
    "alpha dropout": (lambda: layers.AlphaDropout(0.3), 16),
    "gaussian dropout": (lambda: layers.GaussianDropout(0.3), 16),
    "gaussian noise": (lambda: layers.GaussianNoise(0.3), 16),
    "a user's": (DropPath, 16),
    "every distribution": (Everything, 16),
}


def network(*made: layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input(SHAPE), *made])


def drawn(
    model: keras.Model, parts: Sequence[int] = (BATCH,), *, step: int = 3, seed: int = 1, x: Any = None
) -> np.ndarray:
    """The outputs of a batch, of which each part passes through the network by itself."""
    draws, place, outputs = Draws(model, seed), 0, []
    x = tf.ones((BATCH, *SHAPE), model.compute_dtype) if x is None else x
    for part in parts:
        with draws.of_pass(x[:part], step, SamplesOfPass(((place, part),), whole=len(parts) == 1)):
            outputs.append(model(x[place : place + part], training=True))
        place += part
    return np.asarray(tf.cast(tf.concat(outputs, 0), tf.float64))


def philox(key: int, low: int, high: int) -> list[int]:
    """Philox4x32 of 10 rounds (Salmon et al., SC 2011), of a key of 64 bits and a count of 128."""
    mask = 2**32 - 1
    count, keys = [low & mask, low >> 32, high & mask, high >> 32], [key & mask, key >> 32]
    for _ in range(10):
        left, right = 0xD2511F53 * count[0], 0xCD9E8D57 * count[2]
        count = [
            (right >> 32) ^ count[1] ^ keys[0],
            right & mask,
            (left >> 32) ^ count[3] ^ keys[1],
            left & mask,
        ]
        keys = [(keys[0] + 0x9E3779B9) & mask, (keys[1] + 0xBB67AE85) & mask]
    return count


def test_a_mask_is_philox_of_seed_and_layer_at_the_step_and_the_samples_place() -> None:
    model = network(layers.Dropout(0.5), layers.Dropout(0.3))
    second, numbers = Draws(model, 9).key(model.layers[1].seed_generator, 0), int(np.prod(SHAPE))
    model.layers[0].rate = 0.0
    found = drawn(model, [2, 14], step=2**33 + 5, seed=9) > 0
    each = -(-numbers // 4)  # of a number that 4 does not divide, a sample leaves some of its last count
    for place in (0, 1, 2, 15):
        words = [word for n in range(each) for word in philox(second, place * each + n, 2**33 + 5)]
        expected = [(word & 0x7FFFFF) / 2**23 >= 0.3 for word in words[:numbers]]
        assert found[place].ravel().tolist() == expected


@pytest.mark.parametrize("name", LAYERS)
def test_any_division_of_the_batch_draws_what_one_process_draws(name: str) -> None:
    make, distinct = LAYERS[name]
    model = network(make())
    whole = drawn(model)
    assert len({row.tobytes() for row in whole}) >= distinct
    for parts in ([5, 11], [1] * BATCH)[: 1 if make is Everything else 2]:
        np.testing.assert_array_equal(drawn(model, parts), whole)


def test_a_compiled_step_draws_what_one_that_is_not_compiled_draws() -> None:
    model = network(layers.Dropout(0.3), DropPath())
    draws = Draws(model, 1)

    @tf.function(autograph=False)
    def passed(x: Any, step: Any, place: Any) -> Any:
        with draws.of_pass(x, step, SamplesOfPass(((place, 4),), whole=False)):
            return model(x, training=True)

    at = tf.constant(3, tf.int64), tf.constant(8, tf.int64)
    np.testing.assert_allclose(passed(tf.ones((4, *SHAPE)), *at), drawn(model)[8:12], rtol=1e-6)


def test_random_layers_for_images_draw_for_each_image() -> None:
    made = [layers.RandomFlip(), layers.RandomRotation(0.3), layers.RandomGaussianBlur()]
    model = keras.Sequential([keras.Input((12, 12, 3)), *made])
    images = tf.random.stateless_uniform((BATCH, 12, 12, 3), (1, 2))
    whole = drawn(model, x=images)
    for parts in ([8, 8], [1] * BATCH):
        np.testing.assert_allclose(drawn(model, parts, x=images), whole, atol=1e-4)


@pytest.mark.parametrize("name", ["dropout", "gaussian noise", "a user's"])
def test_another_step_or_seed_draws_other_numbers_and_the_same_ones_again(name: str) -> None:
    model = network(LAYERS[name][0]())
    every = [drawn(model), drawn(model, step=4), drawn(model, seed=2)]
    for one, other in itertools.combinations(every, 2):
        assert (one != other).any()
    np.testing.assert_array_equal(drawn(network(LAYERS[name][0]()), step=4), every[1])


def test_layers_calls_of_a_layer_and_seeds_of_a_user_draw_other_numbers() -> None:
    same = layers.Dropout(0.5)
    for model in (network(layers.Dropout(0.5)), network(layers.Dropout(0.5, seed=3))):
        volume = keras.Input(SHAPE)
        twice = keras.Model(volume, layers.Concatenate()([same(volume), same(volume), model(volume)]))
        parts = np.split(drawn(twice) > 0, 3, axis=-1)
        assert len({part.tobytes() for part in parts}) == 3
    assert (drawn(network(layers.Dropout(0.5))) != drawn(network(layers.Dropout(0.5, seed=3)))).any()


@pytest.mark.parametrize("name", ["dropout", "spatial dropout", "gaussian noise", "alpha dropout"])
def test_what_is_drawn_does_not_depend_on_precision(name: str) -> None:
    found = {}
    for policy in ("float32", "float64", "mixed_bfloat16", "mixed_float16"):
        keras.config.set_dtype_policy(policy)
        try:
            found[policy] = drawn(network(LAYERS[name][0]()))
        finally:
            keras.config.set_dtype_policy("float32")
        np.testing.assert_allclose(found[policy], found["float32"], atol=0.02)
        if "dropout" in name:
            np.testing.assert_array_equal(found[policy] > 0, found["float32"] > 0)


def test_numbers_of_16_bits_stay_below_one() -> None:
    class Uniform(layers.Layer):
        def call(self, x: Any, training: bool = False) -> Any:
            return keras.random.uniform(keras.ops.shape(x), dtype=self.kind)

    for kind in ("float16", "bfloat16"):
        layer = Uniform()
        layer.kind = kind
        found = drawn(network(layer), x=tf.ones((BATCH, *SHAPE)))
        assert 0 <= found.min() < 0.01 and 0.99 < found.max() < 1
        assert abs(found.mean() - 0.5) < 0.01


BOXES = (
    ((0, 4), (0, 4), (0, 3), (0, 5), (0, 7)),
    ((1, 3), (1, 2), (0, 3), (0, 5), (0, 7)),
    ((0, 4), (3, 4), (1, 2), (2, 5), (6, 7)),
    ((2, 4), (0, 4), (0, 3), (0, 5), (3, 5)),
)


@pytest.mark.parametrize("box", BOXES, ids=str)
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("a user's", "every distribution")])
def test_a_part_of_a_volume_draws_that_part_of_what_the_whole_one_draws(name: str, box: Any) -> None:
    model = network(LAYERS[name][0]())
    (layer,), draws = model.layers, Draws(model, 1)
    whole = drawn(model)
    cut = tuple(slice(*ends) for ends in box)
    # Of two replicas with places 4 to 7 and 12 to 15 in the global batch.
    places = [4, 5, 12, 13][cut[0]]
    samples = SamplesOfPass(tuple((place, 1) for place in places), whole=False)
    with draws.of_box(layer, 3, samples, (4, *SHAPE), box):
        found = layer.call(tf.ones([stop - start for start, stop in box]), training=True)
    np.testing.assert_array_equal(found, whole[places][(slice(None), *cut[1:])])


def test_noise_is_linear_in_its_input_as_the_backward_pass_of_a_divided_network_takes_it_to_be() -> None:
    for kind in NOISE:
        model = network(kind(0.3))
        zero, one, two = (drawn(model, x=n * tf.ones((BATCH, *SHAPE))) for n in (0, 1, 2))
        np.testing.assert_allclose(two - one, one - zero, atol=1e-5)


def test_a_layer_that_is_computed_again_for_its_gradient_draws_the_same() -> None:
    layer = layers.Dropout(0.5)
    model = network(layer, layers.Activation("linear"))
    draws, x = Draws(model, 1), tf.ones((2, *SHAPE))

    @tf.function(autograph=False)
    def outputs_and_gradients(x: Any) -> Any:
        with draws.of_pass(x, 0, SamplesOfPass(((0, 2),), whole=True)) as passing, tf.GradientTape() as tape:
            tape.watch(x)
            first = tf.recompute_grad(lambda x: layer(x, training=True))(x)
            y = tf.recompute_grad(lambda x: layer(x, training=True))(first)
        with passing.backward():
            return y, tape.gradient(y, x)

    y, gradient = outputs_and_gradients(x)
    np.testing.assert_array_equal(gradient, y)  # of ones: where it is kept, the gradient is what comes out


@pytest.mark.parametrize(
    "make, said",
    [
        (Mixing, "mixes the samples of a batch"),
        (Twice, "rows of random numbers for"),
        (ByItsSeed, "draws past Keras' random functions"),
    ],
)
def test_what_cannot_be_a_samples_own_is_refused_by_name_but_in_one_process(make: Layer, said: str) -> None:
    assert np.isfinite(drawn(network(make(name="mine")))).all()
    model = network(make(name="mine"))
    for refused in (lambda: drawn(model, [8, 8]), Draws(model, 1).check):  # the latter before the first step
        with pytest.raises(ModelError, match=said) as error:
            refused()
        assert "one row for each sample" in str(error.value.cure)
    assert "Layer mine" in error.value.message


def test_a_layer_that_draws_past_keras_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(world, "report", lines.append)
    monkeypatch.setattr(world, "current", world.World)
    model = network(layers.Lambda(lambda x: x * tf.random.uniform(tf.shape(x)), name="own_noise"))
    drawn(model)
    assert not lines
    drawn(model, [8, 8])
    assert len(lines) == 1 and "own_noise" in lines[0] and "keras.random" in lines[0]


def test_a_divided_network_refuses_a_users_own_kind_of_dropout_by_name() -> None:
    class DropBlock(layers.Dropout):
        pass

    volume = keras.Input((8, 8, 8, 1))
    with fails_with(ModelError):
        read(keras.Model(volume, DropBlock(0.3, name="block")(volume)), 2)


def test_outside_a_step_keras_draws_as_it_always_has() -> None:
    layer = layers.Dropout(0.5, seed=3)
    first, second = (layer(np.ones((2, 50), np.float32), training=True).numpy() for _ in range(2))
    assert (first != second).any()
    expected = tf.nn.experimental.stateless_dropout(tf.ones((2, 50)), 0.5, seed=[3, 0])
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(layer.seed_generator.state, [3, 2])
    drawn(network(layer))
    np.testing.assert_array_equal(layer.seed_generator.state, [3, 2])  # a step leaves it as it is


def test_layers_of_own_scripts_draw_apart_on_each_rank_and_shuffles_do_not() -> None:
    def of_rank(rank: int) -> tuple[bytes, bytes, list[int]]:
        keras_random.apart(rank)
        try:
            keras.utils.set_random_seed(4)
            layer, seeds = layers.Dropout(0.5), keras.random.SeedGenerator(1)
            x = tf.ones((2, 50))
            eager = layer(x, training=True).numpy().tobytes()
            compiled = tf.function(lambda x: layer(x, training=True))(x).numpy().tobytes()
            return eager, compiled, keras.random.shuffle(tf.range(50), seed=seeds).numpy().tolist()
        finally:
            keras_random.apart(0)

    ranks = [of_rank(rank) for rank in range(4)]
    assert len({mask for eager, compiled, _ in ranks for mask in (eager, compiled)}) == 8
    assert all(order == ranks[0][2] for *_, order in ranks)
    assert of_rank(2) == ranks[2]
