"""Seconds of every operation of a network on this rank's device, as the strategies compute it."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.errors import InputError
from trainer.planning.placement.boxes import whole
from trainer.planning.placement.layouts import layout
from trainer.planning.placement.operations import Operation, OperationGraph
from trainer.planning.placement.units import Unit, place
from trainer.strategies.draws import Draws, SamplesOfPass
from trainer.strategies.placed import computing
from trainer.strategies.placed.profiling import timing
from trainer.strategies.placed.profiling.timing import Spread, Stopwatch
from trainer.strategies.placed.reading import LOSS

# From the outputs of the network to a loss.
Loss = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class OperationCost:
    """What an operation costs: see `ProfiledOperation`."""

    measured: str
    output_bytes: int
    forward: Spread
    backward: Spread


def measure(
    network: OperationGraph, model: Any, loss: Loss, show: Callable[[int, int], None]
) -> dict[str, OperationCost]:
    """Time one of each equal operation, forwards and backwards, on its whole box.

    What an operation computes is `computing.compute`, which the runtime calls, too. Backwards is what a
    forward pass with the gradients of inputs and weights takes more than the forward pass alone, both
    measured in turn. The loop's own operations are subtracted. No gradient of the network's inputs is
    computed: nothing needs it.

    Args:
        network: `reading.read` of the model.
        model: with its weights.
        loss: of the network's outputs.
        show: takes how many of how many operations are done.

    Returns:
        The cost of each operation, by its name.

    Raises:
        InputError: an operation needs more memory than the device has.
    """
    layers = {layer.name: layer for layer in model.layers}
    values, draws = {variable.path: variable.value for variable in model.weights}, Draws(model, 0)
    units = {unit.operation: unit for unit in _on_one_rank(network)}
    dtypes: dict[str, str] = {}
    equals: dict[str, str] = {}  # key of equal operations -> the first of them
    firsts: dict[str, str] = {}  # every operation -> the first that is equal
    watches: dict[str, _Watch] = {}
    empty: dict[tuple[int, int], Stopwatch] = {}
    for operation in network.operations:
        layer = layers.get(operation.layer)
        if not operation.readings:
            dtypes[operation.name] = layers[operation.layer].dtype
            continue
        read = [network[one.tensor] for one in operation.readings]
        of_inputs = [dtypes[one.name] for one in read]
        differentiated = [bool(one.readings) for one in read]
        first = equals.setdefault(key(operation, layer, of_inputs, differentiated), operation.name)
        firsts[operation.name] = first
        if first == operation.name:
            unit = units[operation.name]
            work = _of_loss(loss) if operation.name == LOSS else _of_layer(operation, layer, unit, draws)
            arguments = _arguments(unit, read, of_inputs, [values[one.path] for one in operation.weights])
            with _enough_memory(operation):
                output = work(*arguments())
            dtypes[first] = output.dtype.name
            needs = [False, *differentiated, *(one.trainable for one in operation.weights)]
            watches[first] = _watch(work, needs, arguments, output.shape, output.dtype, empty)
        dtypes[operation.name] = dtypes[first]
    for number in range(timing.ROUNDS):
        for done, (name, watch) in enumerate(watches.items()):
            show(number * len(watches) + done, timing.ROUNDS * len(watches))
            with _enough_memory(network[name]), timing.as_in_a_step():
                watch.passes.round()
        for nothing in empty.values():
            nothing.round()
    show(timing.ROUNDS * len(watches), timing.ROUNDS * len(watches))
    return {
        one.name: _cost(one, firsts.get(one.name, ""), dtypes[one.name], watches)
        for one in network.operations
    }


def parameter_bytes(network: OperationGraph, model: Any) -> dict[str, int]:
    """Return bytes of each operation's variables; one that several use counts at the last of them."""
    sizes = {one.path: math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in model.weights}
    found: dict[str, int] = {}
    for operation in reversed(network.operations):
        found[operation.name] = sum(sizes.pop(one.path, 0) for one in operation.weights)
    return found


def _on_one_rank(network: OperationGraph) -> Sequence[Unit]:
    """Every operation whole, as a placement on one rank has it."""
    shapes: Mapping[str, tuple[int, ...]] = {
        one.name: one.readings[0].shape if one.sums else one.shape
        for one in network.operations
        if one.readings
    }
    return place(network, {name: layout(s, {0: [whole(s)]}) for name, s in shapes.items()}).units


# From a step, the inputs and the weights to the output.
Work = Callable[..., Any]


def _of_layer(operation: Operation, layer: Any, unit: Unit, draws: Draws) -> Work:
    count, samples = len(operation.readings), SamplesOfPass(((0, operation.shape[0]),), whole=True)

    def work(step: Any, *tensors: Any) -> Any:
        def drawing(layer: Any, shape: Any, ranges: Any) -> Any:
            return draws.of_box(layer, step, samples, shape, ranges)

        return computing.compute(operation, layer, unit, tensors[:count], tensors[count:], drawing)

    return work


def _of_loss(loss: Loss) -> Work:
    return lambda step, *outputs: loss(outputs)


def _arguments(
    unit: Unit, read: Sequence[Operation], dtypes: Sequence[str], weights: list[Any]
) -> Callable[[], list[Any]]:
    def made() -> list[Any]:
        inputs = [
            _made(box.shape, dtype, is_moments=one.kind.endswith("_moments"))
            for box, dtype, one in zip(unit.reads, dtypes, read, strict=True)
            if box is not None
        ]
        # The step is an argument: a mask that never changes would be computed once.
        return [tf.constant(1, tf.int64), *inputs, *weights]

    return made


def _made(shape: tuple[int, ...], dtype: str, *, is_moments: bool) -> Any:
    """Return random values; moments that have a variance, 0.5 - 0.5^2."""
    if is_moments:
        return tf.fill(shape, tf.constant(0.5, dtype))
    return tf.cast(tf.random.stateless_normal(shape, (1, 2)), dtype)


@dataclass(frozen=True)
class _Watch:
    """What times an operation.

    Attributes:
        passes: of the forward pass, and, where a gradient is needed, of both passes.
        empty: of each of these, a loop with as many inputs and outputs that computes nothing. On a GPU
            handing over its operations may take longer than what is timed.
    """

    passes: Stopwatch
    empty: Sequence[Stopwatch]

    def times(self) -> list[list[float]]:
        """Return seconds of each pass without the loop's own, for each repeat."""
        own = [timing.spread([each for (each,) in one.found]).median for one in self.empty]
        return [[s - n for s, n in zip(each, own, strict=True)] for each in self.passes.found]


def _watch(
    work: Work,
    needs: Sequence[bool],
    arguments: Callable[[], list[Any]],
    shape: Any,
    dtype: Any,
    empty: dict[tuple[int, int], Stopwatch],
) -> _Watch:
    """What times an operation; loops that compute nothing are shared, by inputs and outputs: `empty`."""

    def forward(back: Any, *tensors: Any) -> list[Any]:
        return [work(*tensors)]

    def both(back: Any, *tensors: Any) -> list[Any]:
        sources = [x for x, is_needed in zip(tensors, needs, strict=True) if is_needed]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            y = work(*tensors)
        gradients = tape.gradient(y, sources, output_gradients=back)
        return [y, *(one for one in gradients if one is not None)]

    passes = [forward, both] if any(needs) else [forward]
    stopwatch = Stopwatch([timing.loop(one) for one in passes], lambda: [tf.ones(shape, dtype), *arguments()])
    counts = [(1 + len(needs), outputs) for outputs in (1, 1 + sum(needs))[: len(passes)]]
    return _Watch(stopwatch, [empty.setdefault(one, _empty(*one)) for one in counts])


def _empty(inputs: int, outputs: int) -> Stopwatch:
    def arguments() -> list[Any]:
        return [tf.constant(float(number)) for number in range(inputs)]

    return Stopwatch([timing.loop(lambda *given: given[:outputs])], arguments)


def _cost(operation: Operation, first: str, dtype: str, watches: Mapping[str, _Watch]) -> OperationCost:
    size = math.prod(operation.shape) * int(tf.as_dtype(dtype).size)
    if not first:
        return OperationCost("", size, Spread(0.0, 0.0), Spread(0.0, 0.0))
    times = watches[first].times()
    backwards = [each[-1] - each[0] for each in times]  # of one pass alone, 0
    return OperationCost(first, size, timing.spread([each[0] for each in times]), timing.spread(backwards))


@contextlib.contextmanager
def _enough_memory(operation: Operation) -> Iterator[None]:
    try:
        yield
    except tf.errors.ResourceExhaustedError:
        raise InputError(
            f"{operation.name}: its inputs and outputs do not fit into the memory of the device.",
            cure="Take fewer samples: --batch 1.",
        ) from None


# Which operations are equal: they compute the same on tensors of the same shapes, so one is measured.


# Decide initial values, which layer it is, or what is added to the loss; not what is computed.
_NO_MATTER = ("name", "seed", "trainable")
_NO_MATTER_ENDINGS = ("_initializer", "_regularizer", "_constraint")


def key(operation: Operation, layer: Any, dtypes: Sequence[str], differentiated: Sequence[bool]) -> str:
    """Return a text that is the same for operations that take the same time.

    Args:
        operation: of the network.
        layer: its Keras layer; None for the loss.
        dtypes: of its inputs.
        differentiated: for each input, whether its gradient is computed.
    """
    options = {} if layer is None else layer.get_config()
    return json.dumps(
        [
            operation.kind,
            operation.shape,
            [(one.shape, repr(one.axes)) for one in operation.readings],
            list(dtypes),
            list(differentiated),
            [(one.shape, one.cuts, one.trainable) for one in operation.weights],
            {
                name: value
                for name, value in options.items()
                if name not in _NO_MATTER and not name.endswith(_NO_MATTER_ENDINGS)
            },
        ],
        sort_keys=True,
        default=repr,
    )
