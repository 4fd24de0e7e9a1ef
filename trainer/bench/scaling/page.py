"""The page of a scaling study: one HTML file that needs no other, and the table beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.atomic import write_text
from trainer.bench.scaling import charts, paper_table
from trainer.bench.scaling.cells import MeasuredCell, key
from trainer.bench.scaling.charts import MB
from trainer.bench.scaling.study import Study, merged
from trainer.bench.scaling.summary import Curve, LinePoint, TrainingCurve, curves, failures, trainings
from trainer.report.figure import Figure
from trainer.report.page import ReportPage, template

PAGE, CSV, LATEX = "scaling.html", "table.csv", "table.tex"


@dataclass(frozen=True)
class ChartSection:
    """The charts of one network in one place."""

    heading: str
    figures: tuple[Figure, ...]


def save(
    studies: Sequence[Study], rows: Mapping[str, MeasuredCell], folder: Path, *, pictures: bool = True
) -> Path:
    """Write the page and the table, and with `pictures` every figure as PNG and CSV; return the page's path.

    Raises:
        OSError: a file cannot be written.
    """
    page = render(studies, rows)
    for name, text in page.tables.items():
        write_text(folder / name, text)
    if pictures:
        from trainer.report import figure

        figure.save(page.figures, folder / "figures")
    write_text(folder / PAGE, page.html)
    return folder / PAGE


def render(studies: Sequence[Study], rows: Mapping[str, MeasuredCell]) -> ReportPage:
    """Return the page of what was measured so far; `tables` has the CSV and the LaTeX by file name."""
    lines = merged(list(studies))
    measured = curves(lines, rows)
    trained = trainings(lines, rows)
    networks = list(dict.fromkeys(line.first.model for line in lines))
    compared = _compared(measured, networks)
    sections = {name: _sections(name, measured, trained) for name in networks}
    cells = {key(cell) for line in lines for cell in line.cells}
    table = paper_table.table(measured)
    html = template("scaling.html.j2").render(
        networks=networks,
        done=len(cells & rows.keys()),
        asked=len(cells),
        overview=overview(measured, networks),
        places=list(dict.fromkeys(curve.line.place for curve in measured)),
        races=races(measured),
        compared=compared,
        sections=sections,
        rows=[_words(curve, point) for curve in measured for point in curve.points],
        failures=[(row.cell.describe(), row.error) for row in failures(lines, rows)],
        latex=paper_table.latex(measured),
        machines=_machines(rows.values()),
        emulated=any(line.first.emulated for line in lines),
    )
    figures = (*compared, *(f for mine in sections.values() for one in mine for f in one.figures))
    return ReportPage(html, figures, {CSV: table.csv(), LATEX: paper_table.latex(measured)}, {})


def overview(measured: Sequence[Curve], networks: Sequence[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the highest number of ranks of the first strategy, for each network and place, in words.

    Weak scaling where it was measured, for it keeps the work of a rank the same.
    """
    places = list(dict.fromkeys(curve.line.place for curve in measured))
    table = []
    for name in networks:
        cells = []
        one_rank = ""
        for place in places:
            here = [c for c in measured if c.line.first.model == name and c.line.place == place]
            here = [c for c in here if c.line.first.scaling == "weak"] or here
            if not here:
                cells.append(("–", ""))
                continue
            last, first = here[0].points[-1], here[0].at(1)
            one_rank = one_rank or (f"{first.samples_per_second:.2f}" if first else "")
            share = "" if last.efficiency is None else f", {last.efficiency:.0%}"
            cells.append((f"{last.samples_per_second:.2f}", f"{last.ranks} ranks{share}"))
        table.append((name, [(one_rank or "–", "1 rank"), *cells]))
    return table


@dataclass(frozen=True)
class Race:
    """Strategies side by side, in one place, with one scaling.

    Attributes:
        heading: where, and on how many ranks.
        strategies: the columns.
        rows: each network with the samples per second of each strategy, and its share of the fastest.
    """

    heading: str
    strategies: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


def races(measured: Sequence[Curve]) -> list[Race]:
    """Return the strategies side by side at the highest number of ranks of each place and scaling."""
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in measured:
        groups.setdefault((curve.line.place, curve.line.first.scaling), []).append(curve)
    made = []
    for (place, scaling), group in groups.items():
        ranks = max(point.ranks for curve in group for point in curve.points)
        strategies = tuple(dict.fromkeys(curve.line.strategy for curve in group))
        if len(strategies) < 2:
            continue
        rates: dict[str, dict[str, float]] = {}
        for curve in group:
            if (point := curve.at(ranks)) is not None:
                network = rates.setdefault(curve.line.first.model, {})
                network[curve.line.strategy] = point.samples_per_second
        rows = tuple(
            (network, tuple(_share(speeds.get(s), max(speeds.values())) for s in strategies))
            for network, speeds in rates.items()
        )
        heading = f"{scaling.capitalize()} scaling, {ranks} rank{'s' if ranks > 1 else ''}, {place}"
        made.append(Race(heading, strategies, rows))
    return made


def _share(speed: float | None, best: float) -> tuple[str, str]:
    return ("–", "") if speed is None else (f"{speed:.2f}", f"{speed / best:.0%}" if best else "")


def _compared(measured: Sequence[Curve], networks: Sequence[str]) -> list[Figure]:
    """Draw networks side by side: the efficiency of the first strategy, for each place and scaling."""
    if len(networks) < 2:
        return []
    figures = []
    groups: dict[tuple[str, str, str], list[Curve]] = {}
    first = measured[0].line.strategy if measured else ""
    for curve in measured:
        line = curve.line
        if line.strategy == first:
            groups.setdefault((line.place, line.first.scaling, line.strategy), []).append(curve)
    for (place, scaling, strategy), group in groups.items():
        named = [
            (curve.line.first.model, charts.colour(networks.index(curve.line.first.model)), curve)
            for curve in group
        ]
        name = charts.file_name("networks", place, scaling)
        figures.append(
            charts.efficiency(name, f"{scaling.capitalize()} scaling of {strategy}, {place}", named)
        )
    return [figure for figure in figures if figure is not None]


def _sections(model: str, found: Sequence[Curve], trained: Sequence[TrainingCurve]) -> list[ChartSection]:
    mine = [curve for curve in found if curve.line.first.model == model]
    learned = [training for training in trained if training.line.first.model == model]
    lines = [curve.line for curve in mine] + [training.line for training in learned]
    kinds = {s: charts.colour(n) for n, s in enumerate(dict.fromkeys(line.strategy for line in lines))}
    sections = []
    for place in dict.fromkeys(line.place for line in lines):
        figures: list[Figure | None] = []
        for scaling in ("strong", "weak"):
            named = [
                (curve.line.strategy, kinds[curve.line.strategy], curve)
                for curve in mine
                if (curve.line.place, curve.line.first.scaling) == (place, scaling)
            ]
            if any(len(curve.points) > 1 for _, _, curve in named):
                makers = [charts.throughput, charts.efficiency, charts.traffic, charts.breakdown]
                if scaling == "strong":
                    makers.insert(0, charts.speed_up)
            else:  # a line needs two points
                makers = [charts.breakdown]
            for make in makers:
                name = charts.file_name(model, place, scaling, make.__name__)
                heading = f"{_HEADINGS[make.__name__]}, {scaling} scaling"
                figures.append(make(name, heading, named))
        here = [t for t in learned if t.line.place == place]
        chosen = _chosen(here, kinds)
        figures += charts.accuracy(charts.file_name(model, place), "Learning", chosen)
        figures.append(
            charts.staleness(charts.file_name(model, place, "staleness"), "Staleness of updates", chosen)
        )
        kept = tuple(figure for figure in figures if figure is not None)
        if kept:
            sections.append(ChartSection(f"{model} on {place}", kept))
    return sections


_HEADINGS = {
    "speed_up": "Speed-up",
    "efficiency": "Efficiency",
    "throughput": "Throughput",
    "traffic": "Bytes on the busiest host's interface",
    "breakdown": "What a step is made of",
}


def _chosen(
    trained: Sequence[TrainingCurve], kinds: Mapping[str, str]
) -> list[tuple[str, str, TrainingCurve]]:
    """Return one process once, and every strategy at its highest number of ranks."""
    last: dict[str, int] = {}
    for training in trained:
        strategy = training.line.strategy
        last[strategy] = max(last.get(strategy, 0), training.row.cell.ranks)
    chosen = []
    ones = [t for t in trained if t.row.cell.ranks == 1 and t.row.cell.strategy == "data"]
    if ones and last[ones[0].line.strategy] > 1:
        chosen.append(("one process", "chance", ones[0]))
    for training in trained:
        strategy, ranks = training.line.strategy, training.row.cell.ranks
        if ranks == last[strategy]:
            chosen.append((f"{strategy}, {ranks} ranks", kinds[strategy], training))
    return chosen


def _words(curve: Curve, point: LinePoint) -> list[str]:
    """A row of the page's table."""

    def number(value: float | None, form: str = ".3f") -> str:
        return "–" if value is None else format(value, form)

    def mega(value: float | None) -> str:
        return "–" if value is None else f"{value / MB:.2f}"

    step, cell = point.step_s, point.cell
    seconds = "–" if step is None else f"{step[0]:.3f} ({step[1]:.3f}–{step[2]:.3f})"
    return [
        cell.model,
        curve.line.place,
        cell.scaling,
        curve.line.strategy,
        str(point.ranks),
        number(point.samples_per_second, ".2f"),
        seconds,
        number(point.speed_up, ".2f"),
        number(point.efficiency, ".2f"),
        number(point.predicted_s),
        number(point.timeline.get("exposed")),
        mega(point.busiest("sent")),
        mega(point.predicted("sent")),
        mega(point.busiest("received")),
        mega(point.predicted("received")),
    ]


def _machines(rows: Iterable[MeasuredCell]) -> list[tuple[str, int]]:
    """Return the machines that were measured on, with the number of cells."""
    counted: Counter[str] = Counter()
    for row in rows:
        if row.error is None and row.machine:
            facts = row.machine
            counted[f"{facts.get('cpu', 'unknown')}, {facts.get('cores', '?')} cores"] += 1
    return counted.most_common()
