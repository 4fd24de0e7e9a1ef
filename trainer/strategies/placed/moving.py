"""The moving statistics of a rank's batch norms during an update, one micro-batch after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.planning.placement import boxes
from trainer.planning.placement.operations import Operation
from trainer.planning.placement.units import Unit
from trainer.strategies.placed import normalising, pieces
from trainer.strategies.placed.pieces import Part


class MovingStatistics:
    """New moving means and variances; see the top of this file.

    All micro-batches are normalised with the statistics of their own samples, added up about the moving mean
    that there was before the update, so that backward passes compute the same again.

    Args:
        layers: of the Keras model, by name.
    """

    def __init__(self, layers: Mapping[str, Any]) -> None:
        self._layers = layers
        self._after: dict[int, dict[str, list[Part]]] = defaultdict(lambda: defaultdict(list))

    def move(
        self, operation: Operation, unit: Unit, micro: int, moments: Any, weights: Sequence[Any]
    ) -> None:
        """Move the statistics of the unit's channels, which several of its units may share.

        Args:
            operation: a batch norm.
            unit: of it.
            micro: number of the micro-batch; those before it have been there.
            moments: of its samples, `(2, c)`.
            weights: blocks of the unit, as they were before the update.
        """
        before = [
            pieces.assembled(block, self._after[micro - 1][weight.path])
            if micro and weight.path in self._after[micro - 1]
            else values
            for weight, block, values in zip(operation.weights, unit.blocks, weights, strict=True)
        ]
        layer = self._layers[operation.layer]
        fresh = normalising.moved_statistics(operation, layer, moments, weights, before)
        for weight, block in zip(operation.weights, unit.blocks, strict=True):
            if weight.path in fresh:
                known = self._after[micro][weight.path]
                for part in boxes.subtract(block, [box for box, _ in known]):
                    known.append((part, pieces.taken(part, block, fresh[weight.path])))

    def moved(self) -> Mapping[str, list[Part]]:
        """Return the statistics after the last micro-batch, by path."""
        return self._after[max(self._after)] if self._after else {}
