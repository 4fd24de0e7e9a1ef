"""A network with a bit of everything, and layouts of any network that follow no rule."""

from __future__ import annotations

import random
from collections.abc import Callable

import keras
from keras import layers

from trainer.planning.placement import ways
from trainer.planning.placement.boxes import Box, whole
from trainer.planning.placement.layouts import layout
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.ways import Layouts
from trainer.strategies.placed.reading import LOSS


def on_random_ranks(seed: int, ranks: int) -> Callable[[OperationGraph], Layouts]:
    """Boxes split at random, each on a random rank."""

    def layouts(network: OperationGraph) -> Layouts:
        found: Layouts = {}
        for operation in network.operations:
            if not operation.readings:
                continue
            # The same for a network that is trained and one that is only evaluated.
            draw = random.Random(f"{seed} {operation.name}")
            shape = ways.placed_shape(operation)
            parts = [whole(shape)]
            for _ in range(draw.randint(0, 3)):
                box = parts.pop(draw.randrange(len(parts)))
                long = [axis for axis, n in enumerate(box.shape) if n > 1]
                if not long or (operation.name == LOSS):
                    parts.append(box)
                    continue
                axis = draw.choice(long)
                start, stop = box.ranges[axis]
                middle = draw.randint(start + 1, stop - 1)
                parts += [box.with_range(axis, (start, middle)), box.with_range(axis, (middle, stop))]
            held: dict[int, list[Box]] = {}
            for box in parts:
                held.setdefault(draw.randrange(ranks), []).append(box)
            found[operation.name] = layout(shape, held)
        for name in [n for n in found if n.endswith("/moments")]:
            found[name] = found[name.removesuffix("/moments")]
        return found

    return layouts


def mixed_network() -> keras.Model:
    """Skips, concatenations, strides, dilation, groups, up and down, two inputs and two outputs."""
    volume = keras.Input((6, 5, 4, 2), name="volume")
    table = keras.Input((3,), name="table")
    a = layers.Conv3D(4, 3, padding="same", use_bias=False, name="a")(volume)
    a = layers.Activation("relu", name="a_relu")(layers.BatchNormalization(name="a_norm")(a))
    b = layers.Conv3D(4, 3, padding="same", name="b")(a)
    s = layers.Add(name="s")([a, b])
    s = layers.GroupNormalization(2, name="s_norm")(s)
    d = layers.MaxPooling3D(2, padding="same", dtype="float32", name="d")(s)
    e = layers.Conv3D(6, 3, strides=2, padding="same", activation="tanh", name="e")(s)
    f = layers.Concatenate(name="f")([d, e])
    u = layers.Conv3DTranspose(3, 3, strides=2, padding="same", name="u")(f)
    g = layers.AveragePooling3D((2, 2, 1), strides=1, dtype="float32", name="g")(f)
    first = layers.Dense(2, name="first")(
        layers.Concatenate(name="with_table")([layers.GlobalAveragePooling3D(name="pool")(g), table])
    )
    second = layers.Dense(2, name="second")(layers.Flatten(name="flat")(layers.Conv3D(1, 1, name="v")(u)))
    return keras.Model([volume, table], [first, second])
