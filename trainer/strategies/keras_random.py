"""Keras' random functions, answered by whoever draws for the samples of a global batch.

All layers of Keras draw by the functions of one module of its backend, and so do a user's, by `keras.random`.
These are replaced in this process: within `drawn_by` they take their numbers from a `DrawSource`; elsewhere
they do what they did, but for `apart`. The layers and what is saved of them stay Keras' own.

Numbers are drawn in float32 and cast, so that a mask is the same at any precision.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf
from keras.src import backend  # the functions that layers call; keras.random is a layer above them
from keras.src.backend.common import global_state

# Keeps the seeds of ranks apart: a prime that does not divide 2^31 - 2, modulo which Keras takes seeds.
_APART = 2654435761
# Numbers from 0 to below 1 that a type of 16 bits holds exactly: 1 over this many.
_GRID = {"float16": 2**11, "bfloat16": 2**8}


class DrawStream(Protocol):
    """Random numbers of one draw."""

    @property
    def is_of_samples(self) -> bool:
        """Whether each row of what is drawn is one sample's; else all samples share what is drawn."""

    def uniform(self, shape: Sequence[Any]) -> Any:
        """Return float32 of this shape, from 0 to below 1."""

    def normal(self, shape: Sequence[Any]) -> Any:
        """Return float32 of this shape, of mean 0 and deviation 1."""

    def words(self, shape: Sequence[Any]) -> Any:
        """Return uint32 of this shape, of 32 random bits each."""

    def seeds(self) -> list[Any]:
        """Return a seed, int32 `(2,)`, for each sample, or one for all."""


class DrawSource(Protocol):
    """Draws for the samples of a batch."""

    def open(self, seed: Any, first: Any) -> DrawStream:
        """Return the stream of the next draw by `seed`, a SeedGenerator, int or None, of `first` rows."""

    def whole_seed(self, seed: Any, why: str) -> Any:
        """Return a seed, int32 `(2,)`, for a draw that is no sample's own.

        Args:
            seed: as of `open`.
            why: what a layer does, for the error where this process has a part of the samples only.
        """


_now = threading.local()


@contextlib.contextmanager
def drawn_by(source: DrawSource) -> Iterator[None]:
    """Return a context in which Keras' random functions of this thread take their numbers from `source`."""
    before = getattr(_now, "source", None)
    _now.source = source
    try:
        yield
    finally:
        _now.source = before


_rank = 0


def apart(rank: int) -> None:
    """Let layers of this process draw other numbers than those of other ranks with the same seed.

    For scripts of a user's own. What is drawn in a layer's call or a compiled step differs from rank to rank;
    rank 0 draws as Keras does. What a script draws by itself, such as a shuffle, is the same on all ranks.
    """
    global _rank
    _rank = rank


class _Fixed(keras.random.SeedGenerator):
    """A seed that is there already, for the functions that take generators only."""

    def __init__(self, seed: Any) -> None:
        self._seed = seed

    def next(self, ordered: bool = True) -> Any:
        return self._seed


def _uniform(
    source: DrawSource, shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None
) -> Any:
    dtype = keras.backend.standardize_dtype(dtype)
    share = _open(source, seed, shape).uniform(shape)
    if dtype in _GRID:  # rounded to the nearest, a number could become 1
        share = tf.floor(share * _GRID[dtype]) / _GRID[dtype]
    low, high = tf.cast(minval, dtype), tf.cast(maxval, dtype)
    return low + (high - low) * tf.cast(share, dtype)


def _normal(
    source: DrawSource, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> Any:
    dtype = keras.backend.standardize_dtype(dtype)
    drawn = tf.cast(_open(source, seed, shape).normal(shape), dtype)
    return drawn * tf.cast(stddev, dtype) + tf.cast(mean, dtype)


def _truncated_normal(
    source: DrawSource, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> Any:
    """Draw by the inverse of the distribution: to reject numbers takes no fixed count of them."""
    dtype = keras.backend.standardize_dtype(dtype)
    inside = math.erf(2 / math.sqrt(2))  # within two deviations, as Keras says
    # In float32 the last digit would depend on how many numbers there are.
    share = tf.cast(_open(source, seed, shape).uniform(shape), tf.float64)
    drawn = math.sqrt(2) * tf.math.erfinv(inside * (2 * share - 1))
    return tf.cast(drawn, dtype) * tf.cast(stddev, dtype) + tf.cast(mean, dtype)


def _randint(
    source: DrawSource, shape: Any, minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None
) -> Any:
    low, high = tf.cast(minval, tf.int64), tf.cast(maxval, tf.int64)
    words = tf.cast(_open(source, seed, shape).words(shape), tf.int64)
    return tf.cast(low + tf.bitwise.right_shift(words * (high - low), tf.constant(32, tf.int64)), dtype)


def _dropout(source: DrawSource, inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
    if rate == 1.0:
        return tf.zeros_like(inputs)
    if rate == 0.0:
        return inputs
    shape = list(backend.core.shape(inputs))
    if noise_shape is not None:
        shape = [own if fixed is None else fixed for own, fixed in zip(shape, noise_shape, strict=True)]
    keeps = _open(source, seed, shape).uniform(shape) >= rate
    return tf.where(keeps, inputs * tf.cast(1 / (1 - rate), inputs.dtype), tf.zeros((), inputs.dtype))


def _shuffle(source: DrawSource, x: Any, axis: int = 0, seed: Any = None) -> Any:
    if axis == 0:
        own = source.whole_seed(seed, "mixes the samples of a batch")
    else:
        own = source.open(seed, None).seeds()[0]
    return _original("shuffle")(x, axis, seed=_Fixed(own))


def _categorical(
    source: DrawSource, logits: Any, num_samples: Any, dtype: Any = "int64", seed: Any = None
) -> Any:
    stream = source.open(seed, logits.shape[0])
    parts = [logits] if not stream.is_of_samples else tf.split(logits, len(stream.seeds()))
    drawn = [
        _original("categorical")(part, num_samples, dtype, seed=_Fixed(own))
        for part, own in zip(parts, stream.seeds(), strict=True)
    ]
    return tf.concat(drawn, 0)


def _each(name: str) -> Callable[..., Any]:
    """A distribution that takes as many numbers as it happens to need: drawn sample by sample."""

    def draw(
        source: DrawSource, shape: Any, *parameters: Any, dtype: Any = None, seed: Any = None, **more: Any
    ) -> Any:
        stream = _open(source, seed, shape)
        if not stream.is_of_samples:
            return _original(name)(shape, *parameters, dtype=dtype, seed=_Fixed(stream.seeds()[0]), **more)
        seeds, rank = stream.seeds(), len(shape)

        def of(value: Any, row: int) -> Any:
            value = tf.convert_to_tensor(value)
            return value[row] if value.shape.rank == rank and value.shape[0] == len(seeds) else value

        return tf.stack(
            [
                _original(name)(
                    shape[1:],
                    *(of(value, row) for value in parameters),
                    dtype=dtype,
                    seed=_Fixed(own),
                    **{key: of(value, row) for key, value in more.items()},
                )
                for row, own in enumerate(seeds)
            ]
        )

    return draw


def _open(source: DrawSource, seed: Any, shape: Any) -> DrawStream:
    return source.open(seed, shape[0] if len(shape) else None)


_OURS: dict[str, Callable[..., Any]] = {
    "uniform": _uniform,
    "normal": _normal,
    "truncated_normal": _truncated_normal,
    "randint": _randint,
    "dropout": _dropout,
    "shuffle": _shuffle,
    "categorical": _categorical,
    "gamma": _each("gamma"),
    "binomial": _each("binomial"),
    "beta": _each("beta"),
}


def _original(name: str) -> Callable[..., Any]:
    return getattr(backend.random, name).__wrapped__


def _replaced(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def draw(*arguments: Any, **named: Any) -> Any:
        source = getattr(_now, "source", None)
        return original(*arguments, **named) if source is None else ours(source, *arguments, **named)

    return draw


def _next(original: Callable[..., Any]) -> Callable[..., Any]:
    """A generator's own next seed: outside of steps, and for what draws past Keras' random functions."""

    @functools.wraps(original)
    def following(generator: keras.random.SeedGenerator, ordered: bool = True) -> Any:
        source = getattr(_now, "source", None)
        if source is not None:
            own = source.whole_seed(
                generator, "draws past Keras' random functions, by a seed of its generator"
            )
            return tf.cast(own, backend.random_seed_dtype())
        drawn = original(generator, ordered)
        in_step = global_state.get_global_attribute("current_call_ctx") is not None or tf.inside_function()
        return drawn + tf.constant([_rank * _APART, 0], drawn.dtype) if _rank and in_step else drawn

    return following


def _install() -> None:
    for name, ours in _OURS.items():
        setattr(backend.random, name, _replaced(getattr(backend.random, name), ours))
    keras.random.SeedGenerator.next = _next(keras.random.SeedGenerator.next)


_install()
