"""The least connectivity of a small hypergraph, by a mixed-integer program. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, sparse

from trainer.planning.hypergraph.nets import Hypergraph

# Larger programs are not begun: tiles, and tiles in nets, times parts; and parts, which are alike.
MOST_VARIABLES, MOST_PARTS = 1_500, 4


@dataclass(frozen=True)
class ExactPartition:
    """What the solver found within its time.

    Attributes:
        parts: of each vertex; None where it found none within the imbalance.
        connectivity: of these.
        bound: that no partition within the imbalance is below.
    """

    parts: tuple[int, ...] | None
    connectivity: int | None
    bound: float


def is_small(graph: Hypergraph, parts: int) -> bool:
    """Return whether the program is solved in seconds, as a rule."""
    size = (len(graph.weights) + sum(map(len, graph.nets))) * parts
    return parts <= MOST_PARTS and size <= MOST_VARIABLES


def solve(
    graph: Hypergraph, shares: Sequence[float], *, imbalance: float, time_limit_s: float = 20.0
) -> ExactPartition:
    """Return the partition of least connectivity within the imbalance, as far as time allows.

    A vertex is in one part; a net is spread over a part where one of its vertices is; a part has no more than
    its share and the imbalance allow.

    Args:
        graph: to be divided; sums over parts count with the costs of their nets.
        shares: how much of all weights each part is to have, positive.
        imbalance: by how much a part may exceed its share.
        time_limit_s: of the solver.
    """
    vertices, nets, parts = len(graph.weights), len(graph.nets), len(shares)
    at, spread = np.arange(vertices * parts), vertices * parts + np.arange(nets * parts)
    # Each vertex in one part.
    once = sparse.kron(sparse.eye(vertices), np.ones((1, parts)))
    # A net is spread wherever one of its vertices is: spread - at >= 0.
    pins = [(net, vertex) for net, some in enumerate(graph.nets) for vertex in some]
    rows = np.arange(len(pins) * parts)
    of_net = np.repeat([net for net, _ in pins], parts) * parts + np.tile(np.arange(parts), len(pins))
    of_vertex = np.repeat([v for _, v in pins], parts) * parts + np.tile(np.arange(parts), len(pins))
    ones = np.ones(len(rows))
    reaches = sparse.coo_matrix(
        (np.concatenate([ones, -ones]), (np.tile(rows, 2), np.concatenate([spread[of_net], at[of_vertex]]))),
        shape=(len(rows), len(at) + len(spread)),
    )
    weights = sparse.kron(graph.weights[None, :], sparse.eye(parts))
    limits = (1 + imbalance) * graph.weights.sum() * np.asarray(shares) / math.fsum(shares)
    nothing = sparse.coo_matrix((vertices, len(spread))), sparse.coo_matrix((parts, len(spread)))
    lower, upper = np.zeros(len(at) + len(spread)), np.ones(len(at) + len(spread))
    if len(set(shares)) == 1:
        # Parts are alike: the heaviest tile is in the first.
        heaviest = int(graph.weights.argmax())
        upper[heaviest * parts + 1 : (heaviest + 1) * parts] = 0
    solution = optimize.milp(
        np.concatenate([np.zeros(len(at)), np.repeat(graph.costs, parts)]),
        integrality=np.concatenate([np.ones(len(at)), np.zeros(len(spread))]),
        bounds=optimize.Bounds(lower, upper),
        constraints=[
            optimize.LinearConstraint(sparse.hstack([once, nothing[0]]), 1, 1),
            optimize.LinearConstraint(reaches.tocsr(), 0, np.inf),
            optimize.LinearConstraint(sparse.hstack([weights, nothing[1]]), -np.inf, limits),
        ],
        options={"time_limit": time_limit_s},
    )
    # All nets are spread over one part at least.
    least = int(graph.costs.sum())
    bound = max(0.0, float(solution.mip_dual_bound) - least) if solution.mip_dual_bound is not None else 0.0
    if solution.x is None:
        return ExactPartition(None, None, bound)
    chosen = tuple(int(one) for one in solution.x[at].reshape(vertices, parts).argmax(axis=1))
    return ExactPartition(chosen, graph.connectivity(chosen, counted=False), bound)
