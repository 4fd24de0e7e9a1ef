"""Who holds what of a placed network, and what crosses for it: figures that a run keeps for people. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainer.planning.placement import drawing
from trainer.planning.placement.layouts import TensorLayout
from trainer.planning.placement.memory import memory
from trainer.planning.placement.plan_file import layouts_of
from trainer.planning.placement.tasks import Message, Send, TaskLists
from trainer.planning.placement.units import Placement

# Shares that differ by less are drawn alike: borders that are computed twice shift them.
ALIKE = 1 / 16


@dataclass
class _Row:
    """Operations that are divided alike: neighbours, or those that take turns with those of the next row."""

    names: list[str]
    axes: tuple[str, ...]
    parts: list[tuple[int, float]]
    turns: int = 1
    turns_with: int = 0

    def is_like(self, other: _Row) -> bool:
        """Return whether both are cut along the same axes, for the same ranks, about as far."""
        return (
            self.axes == other.axes
            and len(self.parts) == len(other.parts)
            and all(
                rank == its_rank and abs(share - its_share) < ALIKE
                for (rank, share), (its_rank, its_share) in zip(self.parts, other.parts, strict=True)
            )
        )


def figures(placement: Placement, lists: TaskLists, ranks: int, times: int) -> dict[str, Any]:
    """Return the figures as a JSON object.

    `rows`: operations that are divided alike: neighbours, or those that take turns with the row above
    (`turns_with` -1) or below (1; else 0). Of each the `first` and the `last` operation and their `count`;
    `axes` along which they are cut; `parts`, rank and share of the first one, in the order of boxes; `twice`,
    the part of all that is computed twice, at borders; `copies`, how many ranks hold the same weights, at
    most; bytes that an update sends of their `features` (outputs and gradients of these) and `weights`
    (gradients and new values). `pairs`: source, target and bytes of an update. `variables`, `working`: bytes
    on each rank, as `memory` estimates them, without the optimizer's state.

    Args:
        placement: of a network.
        lists: the tasks of every rank.
        ranks: that train.
        times: how often an update plays the lists: micro-batches.
    """
    layouts = layouts_of(placement)
    of_operation = {weight.path: one.name for one in placement.network.operations for weight in one.weights}
    crossing: Counter[tuple[str, str]] = Counter()
    pairs: Counter[tuple[int, int]] = Counter()
    for message in _messages(lists):
        is_feature = message.content in ("output", "gradient")
        name = message.name if is_feature else of_operation[message.name]
        crossing["features" if is_feature else "weights", name] += times * message.bytes
        pairs[message.source, message.target] += times * message.bytes
    copies: Counter[str] = Counter()
    for path, held in placement.holders.items():
        most = math.ceil(_elements(held) / math.prod(held.shape))
        copies[of_operation[path]] = max(copies[of_operation[path]], most)
    rows = [
        {
            "first": row.names[0],
            "last": row.names[-1],
            "count": len(row.names),
            "turns_with": row.turns_with,
            "axes": list(row.axes),
            "parts": [[rank, round(share, 6)] for rank, share in row.parts],
            "twice": round(_twice([layouts[name] for name in row.names]), 6),
            "copies": max(copies[name] for name in row.names),
            **{kind: sum(crossing[kind, name] for name in row.names) for kind in ("features", "weights")},
        }
        for row in _in_turn(_neighbours(layouts))
    ]
    estimated = memory(placement, lists, ranks, slots=0)
    return {
        "rows": rows,
        "pairs": [[*pair, size] for pair, size in sorted(pairs.items())],
        "variables": [one.variables for one in estimated],
        "working": [one.working for one in estimated],
    }


def _neighbours(layouts: Mapping[str, TensorLayout]) -> list[_Row]:
    rows: list[_Row] = []
    for name, held in layouts.items():
        row = _Row([name], drawing.cut_axes(held), drawing.parts(held))
        if rows and rows[-1].is_like(row):
            rows[-1].names.append(name)
        else:
            rows.append(row)
    return rows


def _in_turn(rows: list[_Row]) -> list[_Row]:
    """Return the rows, those that take turns (A, B, A, B) merged into one of each kind."""
    merged: list[_Row] = []
    for row in rows:
        if len(merged) > 1 and merged[-2].is_like(row) and merged[-2].turns == merged[-1].turns:
            merged[-2].names += row.names
            merged[-2].turns += 1
            merged[-2].turns_with, merged[-1].turns_with = 1, -1
        elif len(merged) > 1 and merged[-1].is_like(row) and merged[-2].turns == merged[-1].turns + 1:
            merged[-1].names += row.names
            merged[-1].turns += 1
        else:
            merged.append(row)
    return merged


def _twice(held: list[TensorLayout]) -> float:
    return sum(map(_elements, held)) / sum(math.prod(one.shape) for one in held) - 1


def _elements(held: TensorLayout) -> int:
    return sum(piece.box.size for piece in held.pieces)


def _messages(lists: TaskLists) -> Iterator[Message]:
    for tasks in lists.values():
        for task in tasks:
            if isinstance(task, Send):
                yield from task.messages
