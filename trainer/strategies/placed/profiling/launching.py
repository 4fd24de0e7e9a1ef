"""What a rank takes for each task that computes, besides the seconds of its operation.

Two networks of tiny tensors, a short and a long one of the same blocks, are played on this rank alone, as
the runtime plays task lists, forwards and backwards. What a block takes more than its operations do, each
measured by itself, is shared by its tasks. An operation is measured again and again, with all that it uses at
hand; in a step others come between, and tensors are handed on.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.planning.placement import ways
from trainer.planning.placement.boxes import whole
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.tasks import Compute, Differentiate
from trainer.planning.placement.units import place
from trainer.strategies.placed import custom_gradients
from trainer.strategies.placed.player import Player
from trainer.strategies.placed.profiling import operations, timing
from trainer.strategies.placed.reading import read
from trainer.strategies.placed.wire import Wire

# So small that computing takes next to nothing.
_EDGE, _CHANNELS = 4, 4
# Blocks of both networks; a step takes many tasks.
_SHORT, _LONG = 2, 16
# Of both, in turn: single calls, so that a moment in which the machine is busy spoils few of them.
_REPEATS = 31


def measure() -> float:
    """Return the seconds of a task besides its operation's, 0 at least, of this process's device.

    No collective; no random number is drawn. It is measured once in a process for each precision.
    """
    return _measured(keras.config.dtype_policy().name)


@functools.cache
def _measured(precision: str) -> float:
    short, long = _model(_SHORT), _model(_LONG)
    less, more = _Passes(short), _Passes(long)
    arguments = _arguments(long)
    with timing.as_in_a_step():
        for one in (less, more, less, more):
            one.play(1, arguments)
    pairs = [[timing.seconds(one.play, 1, arguments) for one in (less, more)] for _ in range(_REPEATS)]
    blocks = _LONG - _SHORT
    together = statistics.median(b - a for a, b in pairs) / blocks
    return max(0.0, together - _alone(short)) * blocks / (more.tasks - less.tasks)


def _alone(model: keras.Model) -> float:
    """Seconds of the operations of the last block, both passes, each measured by itself."""
    network = read(model, 1)
    costs = operations.measure(network, model, _loss, lambda done, total: None)
    own = [one.name for one in network.operations if one.layer.startswith(f"block{_SHORT - 1}_")]
    return math.fsum(costs[name].forward.median + costs[name].backward.median for name in own)


def _model(blocks: int) -> keras.Model:
    """Blocks of a convolution, batch norm and an activation, one after the other."""
    layers = keras.layers
    # All have names: Keras counts those that it gives itself, and networks of the run come after these.
    x = first = keras.Input((_EDGE,) * 3 + (_CHANNELS,), name="volume")
    for number in range(blocks):
        name = f"block{number}"
        x = layers.Conv3D(
            _CHANNELS, 3, padding="same", use_bias=False, kernel_initializer="ones", name=f"{name}_conv"
        )(x)
        x = layers.BatchNormalization(name=f"{name}_norm")(x)
        x = layers.ReLU(name=f"{name}_relu")(x)
    return keras.Model(first, layers.GlobalAveragePooling3D(name="mean")(x), name=f"blocks{blocks}")


def _arguments(model: keras.Model) -> list[Any]:
    """A volume, and weights: those of a shorter network come first."""
    return [tf.fill((1, *model.input_shape[1:]), 0.5), *(variable.value for variable in model.weights)]


def _loss(outputs: Any) -> Any:
    return tf.reduce_mean(tf.square(tf.cast(outputs[0], tf.float32)))


class _Passes:
    """Both passes of a network on one rank, with all that its tasks do and no update.

    Args:
        model: whose operations are played; its weights are arguments.

    Attributes:
        tasks: that compute.
    """

    def __init__(self, model: keras.Model) -> None:
        network = read(model, 1)
        self._placement = place(network, ways.alone(network))
        self._lists = task_lists(self._placement)
        self.tasks = sum(isinstance(one, Compute | Differentiate) for one in self._lists[0])
        self._layers = {layer.name: layer for layer in model.layers}
        self._blocks = [(variable.path, whole(variable.shape)) for variable in model.weights]
        self._both = tf.function(self._played, autograph=False, jit_compile=False)

    def play(self, count: int, arguments: Sequence[Any]) -> object:
        """Compute both passes `count` times, as steps are: not in a loop within the graph."""
        given = arguments[: 1 + len(self._blocks)]
        found = [self._both(*given) for _ in range(count)][-1]
        return found[1].numpy()  # of the first kernel: its gradient is there last

    def _played(self, x: Any, *weights: Any) -> list[Any]:
        blocks = {path: {box: one} for (path, box), one in zip(self._blocks, weights, strict=True)}
        player = Player(self._placement, 0, self._layers, blocks, Wire(None, self._lists, 0))
        inputs = {one.name: lambda box, micro: x for one in self._placement.network.inputs}
        with custom_gradients.forgotten():
            # Gradients take the place of new values.
            for _ in player.play(self._lists[0], inputs, lambda box, outputs, micro: _loss(outputs), dict):
                raise RuntimeError("one rank waits for no other")
        return [*player.losses, *(one for held in player.blocks.values() for one in held.values())]
