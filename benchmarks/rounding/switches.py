"""Which inputs of ReLUs have another sign in float32 than in float64: each lets a gradient pass, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def inputs_of_relus(model: Any, world: Any) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """A function that asks, for a batch in training, which inputs of each ReLU are above zero.

    It takes volumes (N, D, H, W, 1), of each rank its part, and returns bool (samples of all ranks, ...) by
    the name of the ReLU's layer. It changes the moving statistics. A collective.
    """
    import keras
    import tensorflow as tf

    relus = {layer.name: layer.input for layer in model.layers if is_relu(layer)}
    inner = keras.Model(model.input, relus) if relus else None

    @tf.function
    def above_zero(x: Any) -> dict[str, Any]:
        return {name: value > 0 for name, value in inner(x, training=True).items()}

    def asked(x: np.ndarray) -> dict[str, np.ndarray]:
        found = {} if inner is None else above_zero(x)
        if world is None:
            return {name: value.numpy() for name, value in found.items()}
        return {
            name: world.allgather(value.numpy().astype(np.uint8), name=name).numpy().astype(bool)
            for name, value in found.items()
        }

    return asked


def is_relu(layer: Any) -> bool:
    """Whether a layer is a ReLU and nothing else, as in the registered networks."""
    import keras

    return isinstance(layer, keras.layers.Activation) and layer.get_config()["activation"] == "relu"


def switched(found: dict[str, np.ndarray], start: str, ways: list[str], one: str) -> dict[str, Any]:
    """For each way in float32 the inputs of another sign than one process in float64 has, by layer.

    Args:
        found: the results of all ways; see `training.results`.
        start: of their keys: network and seed.
        ways: that are compared.
        one: the way they are compared with, in float64.
    """
    counts: dict[str, Any] = {way: {} for way in ways}
    for key, right in found.items():
        network_and_seed, _, rest = key.partition("|signs|")
        if network_and_seed != start or not rest.startswith(f"{one}|float64|"):
            continue
        layer = rest.rpartition("|")[2]
        for way in ways:
            other = found[f"{start}|signs|{way}|float32|{layer}"]
            counts[way][layer] = int(np.count_nonzero(other != right))
    return counts


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """For each network, rate and seed a line of Markdown: distance from float64 after a step, switches."""
    ways = list(rows[0]["switched"])
    yield "| network | rate | seed | " + " | ".join(ways) + " |"
    yield "| --- | --- | --- |" + " --- |" * len(ways)
    for row in rows:
        cells = []
        for way in ways:
            layers = {layer: n for layer, n in row["switched"][way].items() if n}
            told = f": {sum(layers.values())} ({', '.join(layers)})" if layers else ""
            cells.append(f"{row['to float64'][way][0]:.1g}{told}")
        yield f"| {row['network']} | {row['rate']:g} | {row['seed']} | " + " | ".join(cells) + " |"
