"""What `cingulum plan` tells of a network divided over more ranks than messages are listed of."""

from __future__ import annotations

import math

import numpy as np

from trainer.planning.hypergraph.groups import groups
from trainer.planning.hypergraph.traffic import Traffic
from trainer.planning.placement.operations import Network
from trainer.planning.placement.ways import Layouts
from trainer.profiling.outlooks import Unlisted
from trainer.strategies.placed.hypergraph_plan import Decided


def outlook(
    label: str, way: str, network: Network, layouts: Layouts, ranks: int, decided: Decided, times: int
) -> Unlisted:
    """Return what a plan over many ranks is.

    Args:
        label: name of the strategy.
        way: how it divides the network.
        network: whose shapes hold the samples of a micro-batch.
        layouts: of its operations.
        ranks: that would train.
        decided: what was found for them.
        times: micro-batches of an update.
    """
    flops, some = np.zeros(ranks), groups(network)
    for operation in network.operations:
        if operation.readings:
            held = layouts[operation.name]
            for piece in held.pieces:
                flops[piece.rank] += times * operation.flops * piece.box.size / math.prod(held.shape)
    variables = np.zeros(ranks, np.int64)
    own = Traffic(network, some).held([layouts[group.names[0]] for group in some])
    variables[: len(own)] = own
    return Unlisted(
        label, way, decided.divided, layouts, tuple(flops.tolist()), tuple(variables.tolist()), decided
    )
