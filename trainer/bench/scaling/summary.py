"""From rows to what a paper would say: medians over repeats, speed-up, efficiency. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from statistics import median

from trainer.bench.scaling.cells import PARTS, Cell, MeasuredCell, key
from trainer.bench.scaling.study import StudyLine


@dataclasses.dataclass(frozen=True)
class LinePoint:
    """One world size of a line, over all its repeats.

    Attributes:
        cell: of the first repeat.
        rows: those that succeeded, at least one.
        base: samples per second of one process that the speed-up refers to; None: not measured.
    """

    cell: Cell
    rows: tuple[MeasuredCell, ...]
    base: float | None = None

    @property
    def ranks(self) -> int:
        """World size."""
        return self.cell.ranks

    @property
    def samples_per_second(self) -> float:
        """Median over repeats."""
        return median(row.samples_per_second for row in self.rows)

    @property
    def step_s(self) -> tuple[float, float, float] | None:
        """Seconds per step: median of the repeats' medians, and the fastest and slowest step of all."""
        steps = [row.step_s for row in self.rows if row.step_s]
        if not steps:
            return None
        return median(s["median"] for s in steps), min(s["min"] for s in steps), max(s["max"] for s in steps)

    @property
    def speed_up(self) -> float | None:
        """Samples per second over those of one process; ideally the number of ranks, for both scalings."""
        return self.samples_per_second / self.base if self.base else None

    @property
    def efficiency(self) -> float | None:
        """Speed-up per rank; servers do not count."""
        return None if self.speed_up is None else self.speed_up / self.ranks

    @property
    def timeline(self) -> dict[str, float]:
        """Seconds per step of each part that was measured: medians over repeats."""
        every = [row.timeline for row in self.rows]
        return {
            part: median(t[part] for t in every) for part in PARTS if every and all(part in t for t in every)
        }

    def busiest(self, way: str) -> float | None:
        """Return the bytes per step, `sent` or `received`, of the busiest host: median over repeats."""
        return _median([_most(row.interfaces, way) for row in self.rows])

    def predicted(self, way: str) -> float | None:
        """Return the cost model's prediction of `busiest`."""
        return _median([_most(row.predicted.get("interfaces") or {}, way) for row in self.rows])

    @property
    def predicted_s(self) -> float | None:
        """Seconds per step, by the cost model."""
        return _median([row.predicted.get("step_s") for row in self.rows])


@dataclasses.dataclass(frozen=True)
class Curve:
    """A line with what was measured of it.

    Attributes:
        line: which one.
        points: world sizes that succeeded, the smallest first.
    """

    line: StudyLine
    points: tuple[LinePoint, ...]

    def at(self, ranks: int) -> LinePoint | None:
        """Return the point of `ranks` ranks."""
        return next((point for point in self.points if point.ranks == ranks), None)


@dataclasses.dataclass(frozen=True)
class TrainingCurve:
    """Accuracy against time of one training.

    Attributes:
        line: which one.
        row: its row, with a curve.
    """

    line: StudyLine
    row: MeasuredCell

    def seconds_to(self, column: str, target: float) -> float | None:
        """Return the seconds of training until a score is first as high as a target; None: never."""
        return next((p["seconds"] for p in self.row.curve if p.get(column, -1.0) >= target), None)


def curves(lines: Sequence[StudyLine], rows: Mapping[str, MeasuredCell]) -> list[Curve]:
    """Return the lines that are not trainings with their points; lines without a point are left out.

    The speed-up of our strategies refers to one process of `data` in the same place, that of a peer to one
    process of itself; where `data` was not measured with one process, to the line's own one rank.
    """
    bare = [_points(line, rows) for line in lines if not line.first.train]
    found = [curve for curve in bare if curve.points]
    ones = {_place(curve.line): one for curve in reversed(found) if _is_data(curve) if (one := curve.at(1))}
    based = []
    for curve in found:
        own = curve.at(1)
        is_peer = curve.line.first.strategy.startswith("peer:")
        one = own if is_peer else ones.get(_place(curve.line), own)
        base = one.samples_per_second if one else None
        points = tuple(dataclasses.replace(point, base=base) for point in curve.points)
        based.append(dataclasses.replace(curve, points=points))
    return based


def trainings(lines: Sequence[StudyLine], rows: Mapping[str, MeasuredCell]) -> list[TrainingCurve]:
    """Return the trainings that were measured, each once."""
    trained: dict[str, TrainingCurve] = {}
    for line in lines:
        for cell in line.cells if line.first.train else ():
            row = rows.get(key(cell))
            if row is not None and row.error is None and row.curve:
                trained.setdefault(key(cell), TrainingCurve(line, row))
    return list(trained.values())


def failures(lines: Sequence[StudyLine], rows: Mapping[str, MeasuredCell]) -> list[MeasuredCell]:
    """Return the rows with an error, each once."""
    asked = {key(cell): None for line in lines for cell in line.cells}
    return [rows[name] for name in asked if name in rows and rows[name].error is not None]


def _points(line: StudyLine, rows: Mapping[str, MeasuredCell]) -> Curve:
    by_ranks: dict[int, list[MeasuredCell]] = {}
    for cell in line.cells:
        row = rows.get(key(cell))
        if row is not None and row.error is None:
            by_ranks.setdefault(cell.ranks, []).append(row)
    return Curve(line, tuple(LinePoint(found[0].cell, tuple(found)) for _, found in sorted(by_ranks.items())))


def _place(line: StudyLine) -> tuple[object, ...]:
    cell = line.first
    return cell.model, cell.size, cell.width, cell.batch, cell.scaling, line.place


def _is_data(curve: Curve) -> bool:
    return curve.line.first.strategy == "data"


def _most(interfaces: Mapping[str, Mapping[str, float]], way: str) -> float | None:
    return max((host[way] for host in interfaces.values()), default=None)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
