"""What a plan does with each layer, and what another way of cutting it would cost: for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.planning.hypergraph import choices
from trainer.planning.hypergraph.groups import groups
from trainer.planning.hypergraph.traffic import CAUSES, Cause, Traffic
from trainer.planning.placement import drawing
from trainer.planning.placement.layouts import TensorLayout
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.ways import Layouts


@dataclass(frozen=True)
class LayoutRow:
    """Groups of operations, one after the other, that are divided alike.

    Attributes:
        first: operation of the first group that decides how it is divided.
        count: groups.
        cut: how they are divided.
        bytes: that an update sends of their tensors and weights, by cause.
        instead: the other way to cut all of them that would send least.
        more_bytes: that it would send.
    """

    first: str
    count: int
    cut: str
    bytes: dict[Cause, int]
    instead: str
    more_bytes: int


def rows(network: OperationGraph, layouts: Layouts, ranks: int, micro_batches: int = 1) -> list[LayoutRow]:
    """Return the rows of a plan, in the order of the network.

    Borders that are computed twice are left out: bytes are those of the placement without them.

    Args:
        network: whose shapes hold the samples of a micro-batch.
        layouts: of its operations.
        ranks: that train.
        micro_batches: of an update.
    """
    some = groups(network)
    traffic = Traffic(network, some, micro_batches)
    divided = [layouts[group.names[0]] for group in some]
    # Groups of one shape share layouts, whose bytes are counted once.
    cuts = {
        shape: {one.label: one.layout for one in choices.cuts(shape, [1.0] * ranks)}
        for shape in {group.shape for group in some}
    }
    table = []
    for start, stop in _runs(divided):
        own: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
        for term in traffic.terms:
            if start <= term.groups[0] < stop:
                for cause, size in traffic.crossing(term, divided).bytes.items():
                    own[cause] += size
        offered = [cuts[group.shape] for group in some[start:stop]]
        instead, more = _instead(traffic, divided, range(start, stop), offered)
        cut = described(divided[start])
        table.append(LayoutRow(some[start].names[0], stop - start, cut, own, instead, more))
    return table


def described(held: TensorLayout) -> str:
    """Return how a tensor is divided: `whole on rank 1`, or the axes that are cut."""
    if len(held.ranks) == 1:
        return f"whole on rank {held.ranks[0]}"
    return ", ".join(drawing.cut_axes(held)) or "the same on all ranks"


def _runs(divided: Sequence[TensorLayout]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number, held in enumerate(divided):
        last = divided[number - 1]
        if runs and (described(held), held.ranks) == (described(last), last.ranks):
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def _instead(
    traffic: Traffic, divided: list[TensorLayout], run: range, offered: Sequence[Mapping[str, TensorLayout]]
) -> tuple[str, int]:
    """The other way to cut a run of groups that sends least, and how much more that is."""
    now = sum(traffic.total(divided).values())
    best: tuple[str, int] | None = None
    for label in {label: None for each in offered for label in each}:
        changed = list(divided)
        for number, each in zip(run, offered, strict=True):
            changed[number] = each.get(label, divided[number])
        if changed == divided or label.split(" / ")[0] == described(divided[run.start]):
            continue
        more = sum(traffic.total(changed).values()) - now
        if best is None or more < best[1]:
            best = label, more
    return best or ("", 0)
