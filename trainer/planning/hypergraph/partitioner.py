"""Mt-KaHyPar behind one function: a hypergraph in parts of given weights, with the least connectivity.

Gottesbüren, Heuer, Maas, Sanders, Schlag: Scalable High-Quality Hypergraph Partitioning
(doi 10.1145/3626527). One thread and a seed, so that the same input gives the same parts. It does not check
its input; this does.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.errors import InputError
from trainer.planning.hypergraph.nets import Hypergraph

# Weights and costs are whole numbers of 32 bits there, also all together; the heaviest tile has so many.
_HEAVIEST = 10**6
_ALL = 2**30
# Farther is as far: costs times distances must stay small, too.
_FARTHEST = 100


def partition(
    graph: Hypergraph,
    shares: Sequence[float],
    *,
    imbalance: float,
    seed: int,
    distances: Sequence[Sequence[float]] | None = None,
) -> tuple[int, ...]:
    """Return the part of each vertex.

    With distances, each net costs its bytes times the least tree that joins the parts that it is spread over.

    Args:
        graph: to be divided.
        shares: how much of all weights each part is to have, positive; two or more.
        imbalance: by how much a part may exceed its share, at least 0.
        seed: of the random choices.
        distances: from each part to each other one, positive; None: all alike.

    Raises:
        ValueError: shares, distances or imbalance are not as said, there are fewer vertices than parts, or
            the hypergraph is not one.
        InputError: Mt-KaHyPar is not installed.
    """
    _check(graph, shares, imbalance)
    _check_distances(distances, len(shares))
    library, machine = _library()
    library.set_seed(seed)
    context = machine.context_from_preset(library.PresetType.QUALITY)
    parts = len(shares)
    # With distances the trees are minimised, whatever is said here.
    context.set_partitioning_parameters(parts, imbalance, library.Objective.KM1)
    context.logging = False
    heaviest, all_weights = float(graph.weights.max()), float(graph.weights.sum())
    scale = min(_HEAVIEST / heaviest, _ALL / all_weights) if heaviest > 0 else 1.0
    weights = _whole(graph.weights, scale)
    most = _ALL if distances is None else _ALL // _FARTHEST
    costs = _whole(graph.costs, min(1.0, most / max(1, int(graph.costs.sum()))), least=1)
    if len(set(shares)) > 1:
        total = sum(weights)
        limits = [math.ceil((1 + imbalance) * total * share / math.fsum(shares)) for share in shares]
        context.set_individual_target_block_weights(limits)
    nets = [list(net) for net in graph.nets]
    built = machine.create_hypergraph(context, len(weights), len(nets), nets, weights, costs)
    if distances is None:
        found = built.partition(context)
    else:
        found = built.map_onto_graph(_target(machine, context, distances), context)
    return tuple(int(found.block_id(vertex)) for vertex in range(len(weights)))


def _target(machine: Any, context: Any, distances: Sequence[Sequence[float]]) -> Any:
    """All parts, each joined with each other one; the least distance is 1."""
    edges = list(itertools.combinations(range(len(distances)), 2))
    # A graph has no directions.
    lengths = [max(distances[a][b], distances[b][a]) for a, b in edges]
    whole = [min(_FARTHEST, max(1, round(length / min(lengths)))) for length in lengths]
    return machine.create_target_graph(context, len(distances), len(edges), edges, whole)


def _check_distances(distances: Sequence[Sequence[float]] | None, parts: int) -> None:
    if distances is None:
        return
    if len(distances) != parts or any(len(row) != parts for row in distances):
        raise ValueError(f"distances must be a row for each of {parts} parts, each of as many numbers")
    pairs = itertools.permutations(range(parts), 2)
    if not all(distances[a][b] > 0 and math.isfinite(distances[a][b]) for a, b in pairs):
        raise ValueError("distances must be positive and finite")


def _check(graph: Hypergraph, shares: Sequence[float], imbalance: float) -> None:
    vertices = len(graph.weights)
    if len(shares) < 2 or not all(share > 0 and math.isfinite(share) for share in shares):
        raise ValueError(f"shares must be two or more positive numbers, not {list(shares)}")
    if not (imbalance >= 0 and math.isfinite(imbalance)):
        raise ValueError(f"imbalance must be 0 or more, not {imbalance}")
    if vertices < len(shares):
        raise ValueError(f"{vertices} tile(s) cannot be divided into {len(shares)} parts")
    if len(graph.nets) != len(graph.costs):
        raise ValueError(f"{len(graph.nets)} nets have {len(graph.costs)} costs")
    for net in graph.nets:
        if not net or min(net) < 0 or max(net) >= vertices or len(set(net)) != len(net):
            raise ValueError(f"net {net[:10]} is empty, names a tile twice or one that there is not")
    if not (np.isfinite(graph.weights).all() and (graph.weights >= 0).all() and (graph.costs > 0).all()):
        raise ValueError("weights of tiles must be finite and not negative, and costs of nets positive")


def _whole(values: Any, scale: float, *, least: int = 0) -> list[int]:
    return [max(least, round(float(one) * scale)) for one in values]


@functools.cache
def _library() -> tuple[Any, Any]:
    """The module, and its one thread: it can be started once in a process."""
    try:
        import mtkahypar
    except ImportError as error:
        raise InputError(
            f"Mt-KaHyPar cannot be loaded: {error}.", cure="Install it: pip install 'mtkahypar==1.7.*'"
        ) from None
    return mtkahypar, mtkahypar.initialize(1)
