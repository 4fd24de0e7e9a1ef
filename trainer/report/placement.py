"""Who holds what of a network that is divided over ranks, and what they send each other: from plan.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.byte_sizes import as_text
from trainer.report import reasons
from trainer.report.reasons import Reasons

# Rows, ranks and pairs that are shown; all are in figures/placement.csv and plan.json.
MOST_ROWS = 40
MOST_RANKS = 16
MOST_PAIRS = 12
# Ranks whose pairs are a matrix.
MOST_IN_MATRIX = 8
COLOURS = 6
# Of a strip: a part with less has no room for a digit.
_LEAST_SHARE = 0.03
_WORTH_SAYING = 0.005
# What a damaged plan raises.
DAMAGED = (KeyError, TypeError, ValueError, IndexError, AttributeError)
_SPACE = frozenset({"depth", "height", "width"})

TABLE_HEADER = (
    *("first", "last", "operations", "turns_with", "axes"),
    *("rank", "share", "features_bytes", "weights_bytes"),
)
RANK_HEADER = (
    *("Rank", "Host", "Arithmetic", "Parameters", "Updates", "Variables", "Activations", "Sent", "Messages"),
)


@dataclass(frozen=True)
class Part:
    """A part of a strip.

    Attributes:
        rank: that computes it.
        share: of the strip, 0 to 1.
    """

    rank: int
    share: float

    @property
    def kind(self) -> str:
        """The page's classes for the rank's colour; after six ranks they are striped."""
        return f"s{self.rank % COLOURS + 1}{' again' if self.rank >= COLOURS else ''}"

    @property
    def words(self) -> str:
        """What is written in it; nothing where there is no room."""
        return str(self.rank) if self.share >= _LEAST_SHARE * len(str(self.rank)) else ""

    @property
    def tip(self) -> str:
        """What shows when it is pointed at."""
        return f"rank {self.rank}: {_percent(self.share)}"


@dataclass(frozen=True)
class OperationRow:
    """Operations that are divided alike: their names, their parts, and how they are divided."""

    first: str
    last: str
    parts: tuple[Part, ...]
    how: str


@dataclass(frozen=True)
class PlacementSection:
    """What the section shows.

    Attributes:
        way: how the network is divided, for people.
        rows: operations and who computes them.
        rows_left_out: how many rows are not shown.
        ranks: cells of `RANK_HEADER` for each rank.
        ranks_left_out: how many ranks are not in that table.
        matrix: for each source, for each target, bytes in words and their part of the largest, 0 to 1; empty
            for many ranks.
        pairs: for many ranks, source, target and bytes of those that send most.
        pairs_left_out: how many pairs are not in that table.
        reasons: why it is divided so; None where a rule or a person did it.
    """

    way: str
    rows: tuple[OperationRow, ...]
    rows_left_out: int
    ranks: tuple[tuple[str, ...], ...]
    ranks_left_out: int
    matrix: tuple[tuple[tuple[str, float], ...], ...]
    pairs: tuple[tuple[str, ...], ...]
    pairs_left_out: int
    reasons: Reasons | None = None


def of(plan: Mapping[str, Any], hosts: Sequence[str]) -> PlacementSection | None:
    """Return the section of a run's plan; None where its network is not divided.

    Args:
        plan: what plan.json holds.
        hosts: name of each rank's host, as far as they are known.

    Raises:
        DAMAGED: the plan is damaged.
    """
    drawing = plan.get("drawing")
    if drawing is None:
        return None
    rows, ranks = drawing["rows"], int(plan["world_size"])
    pairs = sorted(drawing["pairs"], key=lambda pair: -pair[2])
    are_few = ranks <= MOST_IN_MATRIX
    return PlacementSection(
        way=str(plan["way"]),
        rows=tuple(_row(row) for row in rows[:MOST_ROWS]),
        rows_left_out=len(rows[MOST_ROWS:]),
        ranks=tuple(_rank(rank, plan, drawing, hosts) for rank in range(min(ranks, MOST_RANKS))),
        ranks_left_out=max(0, ranks - MOST_RANKS),
        matrix=_matrix(pairs, ranks) if are_few and pairs else (),
        pairs=() if are_few else tuple((str(a), str(b), as_text(n)) for a, b, n in pairs[:MOST_PAIRS]),
        pairs_left_out=0 if are_few else len(pairs[MOST_PAIRS:]),
        reasons=reasons.of(plan),
    )


def cells(plan: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Return cells of `TABLE_HEADER` for each part of each row, of a plan that `of` can show."""
    for row in plan["drawing"]["rows"]:
        of_row = (row["first"], row["last"], row["count"], row["turns_with"], "+".join(row["axes"]))
        for rank, share in row["parts"]:
            yield (*of_row, rank, share, row["features"], row["weights"])


def _row(row: Mapping[str, Any]) -> OperationRow:
    parts = tuple(Part(int(rank), float(share)) for rank, share in row["parts"])
    return OperationRow(str(row["first"]), str(row["last"]), parts, "; ".join(_how(row)))


def _how(row: Mapping[str, Any]) -> Iterator[str]:
    count, axes = row["count"], row["axes"]
    said = f"{count} operation{'s' if count > 1 else ''}"
    if row["turns_with"]:
        said += f" in turn with those {'above' if row['turns_with'] < 0 else 'below'}"
    yield f"{said}, cut along {', '.join(axes)}" if axes else f"{said}, on rank {row['parts'][0][0]} alone"
    if row["features"]:
        yield f"{'halos' if _SPACE & set(axes) else 'feature maps'} {as_text(row['features'])}"
    if row["copies"] > 1:
        yield f"weights on {row['copies']} ranks, {as_text(row['weights'])}"
    if row["twice"] >= _WORTH_SAYING:
        yield f"{_percent(row['twice'])} computed twice, at borders"


def _rank(
    rank: int, plan: Mapping[str, Any], drawing: Mapping[str, Any], hosts: Sequence[str]
) -> tuple[str, ...]:
    flops = plan["flops"]
    return (
        str(rank),
        hosts[rank] if rank < len(hosts) else "",
        _percent(flops[rank] / sum(flops)) if sum(flops) else "",
        f"{plan['held'][rank]:,}",
        f"{plan['owned'][rank]:,}",
        as_text(drawing["variables"][rank]),
        as_text(drawing["working"][rank]),
        as_text(plan["sent_per_update"][rank]),
        f"{plan['messages_per_update'][rank]:,}",
    )


def _matrix(pairs: Sequence[Sequence[int]], ranks: int) -> tuple[tuple[tuple[str, float], ...], ...]:
    sizes = {(source, target): size for source, target, size in pairs}
    most = max(sizes.values()) or 1

    def cell(size: int) -> tuple[str, float]:
        return as_text(size) if size else "", size / most

    return tuple(
        tuple(cell(sizes.get((source, target), 0)) for target in range(ranks)) for source in range(ranks)
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\N{NO-BREAK SPACE}%"
