"""The gradients of a bucket travel as one tensor, and come back as they were."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from trainer.ranks import world as worlds
from trainer.strategies import reduction

# Less than a row of 64 bytes, a row exactly, several and a part of one, a scalar, nothing.
SHAPES = ((3,), (16,), (3, 3, 3, 1, 8), (5, 7), (), (0,), (1,))


class Three(worlds.World):
    """Rank 0 of three that have the same gradients; it remembers what was sent."""

    size = 3

    def __init__(self) -> None:
        self.sent: list[list[tf.Tensor]] = []

    def grouped_allreduce(self, tensors, op, *, name):
        assert op == "sum"
        self.sent.append(list(tensors))
        return [tensor * self.size for tensor in tensors]

    def alltoall(self, tensor, *, name, splits=None):
        """As rank 0 receives it."""
        return tf.tile(tensor[: splits[0]], [self.size])


def gradients(*dtypes: str) -> list[tf.Tensor]:
    rng = np.random.default_rng(0)
    return [
        tf.constant(rng.normal(size=shape), dtypes[number % len(dtypes)])
        for number, shape in enumerate(SHAPES)
    ]


def reduced(world: worlds.World, given, **options) -> list[tf.Tensor]:
    wanted = {"kind": "grouped", "bucket_mb": 4.0, "wire": "none", **options}
    return reduction.make(world, "gradients", **wanted)(given)


@pytest.mark.parametrize(
    "dtypes", [("float32",), ("float64",), ("float16",), ("float16", "float32", "float64")]
)
@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_each_gradient_comes_back_in_its_shape_type_and_value(dtypes, gather, compiled):
    world, given = Three(), gradients(*dtypes)

    def reduce(tensors):
        return reduced(world, tensors, gather=gather)

    found = tf.function(reduce)(given) if compiled else reduce(given)
    for before, after in zip(given, found, strict=True):
        assert (after.shape, after.dtype) == (before.shape, before.dtype)
        # Three times a float16 and a third of that: two roundings.
        np.testing.assert_allclose(after, before, rtol=2 * np.finfo(after.dtype.as_numpy_dtype).eps)


@pytest.mark.parametrize("dtypes", [("float32",), ("float32", "float64")])
def test_compressed_gradients_come_back_in_their_own_types(dtypes):
    given = gradients(*dtypes)
    for before, after in zip(given, reduced(Three(), given, wire="float16"), strict=True):
        assert (after.shape, after.dtype) == (before.shape, before.dtype)
        np.testing.assert_allclose(after, before, rtol=2.0**-9, atol=1e-6)


def test_a_bucket_is_one_tensor_and_little_longer_than_its_gradients():
    world, given = Three(), gradients("float32")
    reduced(world, given)
    (message,) = world.sent
    (flat,) = message
    values = sum(int(tf.size(t)) for t in given)
    assert flat.shape.rank == 1 and values <= flat.shape[0] < values + 16 * len(given)


def test_a_gradient_alone_is_sent_as_it_is():
    world, given = Three(), gradients("float32")
    reduced(world, given, kind="per_tensor")
    assert sorted(flat.shape[0] for (flat,) in world.sent) == sorted(int(tf.size(t)) for t in given)


def test_what_has_no_gradient_stays_without_one():
    given = gradients("float32")
    found = reduced(Three(), [None, *given, None])
    assert found[0] is None and found[-1] is None and len(found) == len(given) + 2
