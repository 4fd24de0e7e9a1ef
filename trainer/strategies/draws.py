"""Random numbers of a network's layers, such as dropout: drawn for each sample of a global batch.

What a layer draws for a sample depends on the run's seed, the step, the layer and the sample's place in the
global batch, and on nothing else: any number of ranks and micro-batches and every placement draw what one
process draws, and a rank draws for its own samples alone. docs/decisions/0040-equality.md has the reasons.

The generator is Philox (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011), as TensorFlow
has it: four words of 32 bits from a key and a count of 128 bits. The key says seed, layer and call; the upper
half of the count is the step; the lower half counts on through the samples in the order of their places.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import keras
import tensorflow as tf
from keras import layers

from trainer.errors import ModelError
from trainer.ranks import world as worlds
from trainer.strategies import keras_random

# Words that Philox makes of one count.
WORDS = 4
_PHILOX = 1
# Layers that draw numbers for each element of their input, and are linear in it.
NOISE = (layers.Dropout, layers.AlphaDropout, layers.GaussianDropout, layers.GaussianNoise)
# Operations of TensorFlow that draw by a state of their own.
_STATEFUL = (
    *("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt", "RandomShuffle"),
    *("RandomGamma", "RandomPoissonV2", "Multinomial", "StatefulUniform", "StatefulStandardNormalV2"),
)

# From a first sample's place to consecutive samples: (place, samples).
Run = tuple[Any, Any]


@dataclass(frozen=True)
class SamplesOfPass:
    """The samples that a draw is for: those of one pass of this process through the network.

    Attributes:
        runs: places in the global batch, as runs of consecutive ones, in the order of the rows.
        whole: whether they are all of the global batch.
    """

    runs: tuple[Run, ...]
    whole: bool

    @property
    def count(self) -> Any:
        """Number of samples."""
        return sum(count for _, count in self.runs)


@dataclass(frozen=True)
class PhiloxStream:
    """The numbers of one draw; see `keras_random.DrawStream`.

    Attributes:
        key: 64 bits of seed, layer and call.
        step: upper half of the count.
        samples: whose rows are drawn; None: all samples share what is drawn.
        box: where only a part of what is drawn is needed: the whole shape, batch first, and (start, stop)
            along each axis but the first.
    """

    key: int
    step: Any
    samples: SamplesOfPass | None
    box: tuple[tuple[int, ...], tuple[tuple[int, int], ...]] | None = None

    @property
    def is_of_samples(self) -> bool:
        """Whether each row is one sample's."""
        return self.samples is not None

    def uniform(self, shape: Sequence[Any]) -> Any:
        """Return float32 of this shape, or of the box, from 0 to below 1."""
        # TensorFlow's own numbers, of the lower 23 bits of each word. Compiled, they would be other ones.
        mantissas = tf.bitwise.bitwise_and(self.words(shape), 0x7FFFFF)
        return tf.bitcast(tf.bitwise.bitwise_or(mantissas, 0x3F800000), tf.float32) - 1.0

    def normal(self, shape: Sequence[Any]) -> Any:
        """Return float32 of this shape, or of the box, of mean 0 and deviation 1."""
        return self._drawn(tf.raw_ops.StatelessRandomNormalV2, tf.float32, shape)

    def words(self, shape: Sequence[Any]) -> Any:
        """Return uint32 of this shape, or of the box, of 32 random bits each."""
        return self._drawn(tf.raw_ops.StatelessRandomUniformFullIntV2, tf.uint32, shape)

    def seeds(self) -> list[Any]:
        """Return a seed, int32 `(2,)`, for each sample, or one for all."""
        count = 1 if self.samples is None else self.samples.count
        return tf.unstack(tf.bitcast(self.words((count, 2)), tf.int32), num=tf.get_static_value(count))

    def _drawn(self, op: Callable[..., Any], dtype: tf.DType, shape: Sequence[Any]) -> Any:
        def consecutive(count: Any, numbers: Any) -> Any:
            counts = tf.stack([tf.cast(count, tf.uint64), tf.cast(self.step, tf.uint64)])
            key = tf.constant([self.key], tf.uint64)
            return op(shape=[WORDS * _counts(numbers)], key=key, counter=counts, alg=_PHILOX, dtype=dtype)

        if self.box is not None:
            return _cut(consecutive, *self.box, self.samples)
        if self.samples is None:
            numbers = _product(shape)
            return tf.reshape(consecutive(0, numbers)[:numbers], list(shape))
        return _rows(consecutive, self.samples.runs, list(shape[1:]))


def _counts(numbers: Any) -> Any:
    """Return how many counts make `numbers` numbers; some of a sample's last count may be left over."""
    return -(-numbers // WORDS)


def _product(shape: Sequence[Any]) -> Any:
    static = [tf.get_static_value(length) for length in shape]
    return tf.reduce_prod(tf.stack(list(shape))) if None in static else math.prod(map(int, static))


def _rows(consecutive: Callable[[Any, Any], Any], runs: Sequence[Run], shape: list[Any]) -> Any:
    """All that is drawn for the samples of some runs, `(samples, *shape)`."""
    numbers = _product(shape)
    counts = _counts(numbers)
    rows = [
        tf.reshape(
            tf.reshape(
                consecutive(tf.cast(place, tf.int64) * tf.cast(counts, tf.int64), samples * counts * WORDS),
                [samples, counts * WORDS],
            )[:, :numbers],
            [samples, *shape],
        )
        for place, samples in runs
    ]
    return rows[0] if len(rows) == 1 else tf.concat(rows, 0)


def _cut(
    consecutive: Callable[[Any, Any], Any],
    shape: tuple[int, ...],
    ranges: tuple[tuple[int, int], ...],
    samples: SamplesOfPass | None,
) -> Any:
    """A box of what is drawn: of the first axis only what is in it, of the others all, and cut then."""
    runs: Sequence[Run] = [(0, 1)] if samples is None else samples.runs
    (start, stop), *others = ranges
    inner = shape[2:]
    rest = tuple(slice(*one) for one in others)
    if (start, stop) == (0, shape[1]):
        return _rows(consecutive, runs, list(shape[1:]))[(slice(None), slice(None), *rest)]
    row, counts = math.prod(inner), _counts(math.prod(shape[1:]))
    first, skip = divmod(start * row, WORDS)
    numbers = (stop - start) * row

    def of(place: Any) -> Any:
        count = tf.cast(place, tf.int64) * counts + first
        drawn = consecutive(count, skip + numbers)[skip : skip + numbers]
        return tf.reshape(drawn, [stop - start, *inner])[(slice(None), *rest)]

    return tf.stack([of(place + number) for place, count in runs for number in range(count)])


class Draws:
    """What the layers of a network draw, of which each generator has a number.

    Args:
        model: the network.
        seed: of the run.
    """

    def __init__(self, model: keras.Model, seed: int) -> None:
        self._model, self._seed = model, seed
        every = model._flatten_layers()
        generators = {id(one): one for layer in every for one in getattr(layer, "_seed_generators", ())}
        self._numbers = {key: number for number, key in enumerate(generators)}
        self._owners = {
            id(one): layer.name for layer in every for one in getattr(layer, "_seed_generators", ())
        }
        self._names = {layer.name for layer in every}
        self._kept = list(generators.values())  # or another object could get the identity of one
        self._is_open = any(map(_may_share, every))
        self._firsts: dict[int, Mapping[Any, Any]] = {}  # by rows of a pass
        self._has_warned = False

    @contextlib.contextmanager
    def of_pass(self, x: Any, step: Any, samples: SamplesOfPass) -> Iterator[Pass]:
        """Return a context in which the network draws for some samples of a step: those of the rows of `x`.

        Args:
            x: inputs of the network, or a structure of them.
            step: updates done before, an integer.
            samples: whose rows these are.

        Raises:
            ModelError: of a draw it cannot be said which numbers are which sample's.
        """
        rows = tf.get_static_value(samples.count)
        if self._is_open and rows is not None and rows not in self._firsts:
            self._firsts[rows] = self._looked_at(x, rows, samples)
        made = Pass(self, step, samples, self._firsts.get(rows))
        try:
            with keras_random.drawn_by(made):
                yield made
        except Exception:
            if made.refusal is not None:  # Keras wraps it into another error
                raise made.refusal from None
            raise

    @contextlib.contextmanager
    def of_box(
        self,
        layer: Any,
        step: Any,
        samples: SamplesOfPass,
        shape: tuple[int, ...],
        ranges: Sequence[tuple[int, int]],
    ) -> Iterator[None]:
        """Return a context in which a layer of `NOISE` draws for a part of its input.

        Args:
            layer: of the network.
            step: updates done before.
            samples: whose rows the box has.
            shape: of the whole input, batch first.
            ranges: (start, stop) of the box along each axis, batch first.
        """
        shared = _shared_axes(layer, shape)
        whole = tuple(1 if is_shared else n for n, is_shared in zip(shape, shared, strict=True))
        cut = tuple((0, 1) if is_shared else one for one, is_shared in zip(ranges, shared, strict=True))[1:]
        with keras_random.drawn_by(_Box(self, step, None if shared[0] else samples, (whole, cut))):
            yield

    def key(self, seed: Any, call: int) -> int:
        """Return the key of a draw: 64 bits of the run's seed, the generator and the number of its call.

        Args:
            seed: a SeedGenerator; None: Keras' own; an integer: the same numbers whenever it draws.
            call: how often it has drawn in this pass, from 0.
        """
        if isinstance(seed, int):
            text = f"{seed}"
        else:
            own = getattr(seed, "_initial_seed", None)
            text = f"{self._seed} {self._numbers.get(id(seed), -1)} {own} {call}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

    def owner(self, seed: Any) -> str:
        """Return the layer that a generator belongs to, or that is being called, for people."""
        scope = "" if tf.executing_eagerly() else tf.compat.v1.get_default_graph().get_name_scope()
        called = scope.rpartition("/")[2]
        if called not in self._names:  # TensorFlow numbers a scope that it has seen before
            called = re.sub(r"_\d+$", "", called)
        return self._owners.get(id(seed)) or called or self._model.name

    def check(self) -> None:
        """Trace a pass of two samples of many: what cannot be divided is refused before the first step.

        Raises:
            ModelError: see `of_pass`.
        """
        inputs = getattr(self._model, "inputs", None) or []
        if not self._is_open or not inputs or any(tensor.shape[0] is not None for tensor in inputs):
            return

        def passed(*x: Any) -> None:
            given = x[0] if len(x) == 1 else list(x)
            with self.of_pass(given, 0, SamplesOfPass(((0, 2),), whole=False)):
                self._model(given, training=True)

        specs = [tf.TensorSpec([2, *tensor.shape[1:]], tensor.dtype) for tensor in inputs]
        tf.function(passed, autograph=False).get_concrete_function(*specs)

    def _looked_at(self, x: Any, rows: int, samples: SamplesOfPass) -> Mapping[Any, Any]:
        """Trace the network with one sample more: what has a row more then is drawn for each sample."""
        if any(tensor.shape[0] is not None for tensor in getattr(self._model, "inputs", None) or []):
            return {}
        specs = tf.nest.map_structure(lambda t: tf.TensorSpec([rows + 1, *t.shape[1:]], t.dtype), x)
        looked = Pass(self, 0, SamplesOfPass(((0, rows + 1),), whole=True), None)
        with keras_random.drawn_by(looked):
            traced = tf.function(lambda x: self._model(x, training=True), autograph=False)
            graph = traced.get_concrete_function(specs).graph
        drawing = next((one for one in graph.get_operations() if one.type in _STATEFUL), None)
        if drawing is not None and not (samples.whole or self._has_warned) and worlds.current().is_main:
            self._has_warned = True
            worlds.report(
                f"warning: {drawing.name} ({drawing.type}) of {self._model.name} draws by TensorFlow's own "
                "state: what it draws depends on the number of ranks, and ranks may draw the same.\n"
                "  Draw by keras.random with a keras.random.SeedGenerator of the layer."
            )
        return looked.firsts


class Pass:
    """One pass through the network, forward and then backward.

    Attributes:
        firsts: rows of each draw, by generator and call.
        refusal: why the network cannot be trained so; else None.
    """

    def __init__(
        self, draws: Draws, step: Any, samples: SamplesOfPass, looked_at: Mapping[Any, Any] | None
    ) -> None:
        self._draws, self._step, self._samples, self._looked_at = draws, step, samples, looked_at
        self._calls: Counter[int | None] = Counter()
        self._is_forward = True
        self.firsts: dict[Any, Any] = {}
        self.refusal: ModelError | None = None

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """Return a context of the backward pass: a layer that is computed again there draws what it drew."""
        self._is_forward = False  # the last call is the first to be computed again
        with keras_random.drawn_by(self):
            yield

    def open(self, seed: Any, first: Any) -> PhiloxStream:
        """Return the stream of a draw; see `keras_random.DrawSource`."""
        if isinstance(seed, int):  # the same in every step, as Keras has it
            key, step = self._draws.key(seed, 0), 0
            which: Any = (seed, len(self.firsts))
        else:
            call = self._call(None if seed is None else id(seed))
            key, step = self._draws.key(seed, call), self._step
            which = (None if seed is None else id(seed), call)
        first = tf.get_static_value(first) if first is not None else 0
        self.firsts[which] = first
        return PhiloxStream(key, step, self._samples if self._is_of_samples(seed, which, first) else None)

    def whole_seed(self, seed: Any, why: str) -> Any:
        """Return a seed for what is no sample's own; see `keras_random.DrawSource`."""
        if not self._samples.whole:
            self._refuse(seed, why)
        return self.open(seed, None).seeds()[0]

    def _refuse(self, seed: Any, why: str) -> NoReturn:
        self.refusal = _refused(self._draws.owner(seed), why)
        raise self.refusal

    def _call(self, generator: int | None) -> int:
        if self._is_forward:
            self._calls[generator] += 1
            return self._calls[generator] - 1
        self._calls[generator] -= 1
        return max(self._calls[generator], 0)

    def _is_of_samples(self, seed: Any, which: Any, first: Any) -> bool:
        rows = tf.get_static_value(self._samples.count)
        if first is None or rows is None:
            return first is None
        other = self._looked_at.get(which) if self._looked_at else None
        if other == first or (other is None and first in (0, 1) and rows != 1) or first == 0:
            return False
        if first == rows and other in (None, rows + 1):
            return True
        if self._samples.whole:
            return False
        self._refuse(seed, f"draws {first} rows of random numbers for {rows} sample(s)")


@dataclass(frozen=True)
class _Box:
    """A source for one layer, and a part of its input."""

    draws: Draws
    step: Any
    samples: SamplesOfPass | None
    box: tuple[tuple[int, ...], tuple[tuple[int, int], ...]]

    def open(self, seed: Any, first: Any) -> PhiloxStream:
        return PhiloxStream(self.draws.key(seed, 0), self.step, self.samples, self.box)

    def whole_seed(self, seed: Any, why: str) -> Any:
        raise _refused(self.draws.owner(seed), why)


def _refused(layer: str, why: str) -> ModelError:
    return ModelError(
        f"Layer {layer} {why}: it cannot be said what belongs to which sample, so that several ranks or "
        "micro-batches would not draw what one process draws.",
        cure="Draw one row for each sample, in a shape that begins with the batch; or train on one rank with "
        "train.accumulation=1.",
    )


def _may_share(layer: Any) -> bool:
    """Whether a layer may draw numbers that all samples share: not to be seen where there is one sample."""
    is_users = type(layer).__module__.partition(".")[0] not in ("keras", "trainer")
    if is_users or isinstance(layer, layers.Lambda):
        return True
    if isinstance(layer, NOISE):
        noise_shape = getattr(layer, "noise_shape", None)
        return noise_shape is not None and noise_shape[0] is not None
    return bool(layer._seed_generators)  # such as RandomGaussianBlur, one of all images


def _shared_axes(layer: Any, shape: tuple[int, ...]) -> list[bool]:
    """Along which axes of its input a layer of `NOISE` draws one number for all."""
    noise_shape = getattr(layer, "noise_shape", None) or [None for _ in shape]
    if hasattr(layer, "_get_noise_shape"):  # SpatialDropout
        noise_shape = [None, *layer._get_noise_shape(keras.KerasTensor(shape))[1:]]
    return [length == 1 for length in noise_shape]
