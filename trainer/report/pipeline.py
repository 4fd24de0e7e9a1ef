"""Which rank works on which micro-batch when, where stages pass them on: from plan.json and telemetry."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.report.axes import BOTTOM, TOP, Axes
from trainer.report.figure import Figure, table
from trainer.report.story import ReportMaterial, number, read_json
from trainer.telemetry import pipeline
from trainer.telemetry.pipeline import Segment

_PLAN = "plan.json"
_KINDS = frozenset({"forward", "backward"})


@dataclass(frozen=True)
class _Layout:
    """What plan.json has of a pipeline; None where it is not known.

    Attributes:
        stages: of the network.
        micro_batches: that the stages pass on, in each of `parts`.
        parts: accumulated micro-batches of an update, of which `division` predicts one.
        replicas: of all stages.
        batch_norm_samples: over how many samples batch norm takes its statistics.
        global_batch: samples of an update.
    """

    stages: int | None
    micro_batches: int | None
    parts: int
    replicas: int
    batch_norm_samples: int | None
    global_batch: int | None


def of(story: ReportMaterial) -> Figure | None:
    """Return the chart of a run; None where no stages pass on micro-batches. What is damaged is a note."""
    plan = read_json(story, _PLAN)
    predicted = _read(story, f"{_PLAN}: division.played", lambda: _predicted(plan))
    name = str(pipeline.file(story.folder).relative_to(story.folder))
    measurement = read_json(story, name)
    measured = _read(story, name, lambda: _measured(measurement))
    panels = [panel for panel in (predicted, measured) if panel is not None]
    if not panels:
        return None
    layout = _Layout(
        _count(plan.get("stages")),
        _count(plan.get("micro_batches")),
        _count(plan.get("accumulation")) or 1,
        _count(plan.get("replicas")) or 1,
        _count(plan.get("batch_norm_samples")),
        _count(plan.get("global_batch")),
    )
    return chart(panels, story.facts.hosts, layout.replicas, _words(predicted, measured, layout))


def _read(story: ReportMaterial, what: str, read: Any) -> Panel | None:
    try:
        panel: Panel | None = read()
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        story.notes.append(f"{what} is damaged and left out of the pipeline's chart.")
        return None
    return panel


def _predicted(plan: Mapping[str, Any]) -> Panel | None:
    division = plan.get("division")
    if not division or not division.get("played"):
        return None
    ranks: list[list[Segment]] = [[] for _ in range(int(plan["world_size"]))]
    for rank, *of_rank in division["played"]:
        if not 0 <= rank < len(ranks):
            raise ValueError(rank)
        ranks[rank].append(_segment(of_rank))
    return _panel("predicted", "Predicted", division["step_s"], ranks)


def _measured(measurement: Mapping[str, Any]) -> Panel | None:
    if not measurement:
        return None
    if measurement["version"] != pipeline.VERSION:
        raise ValueError(measurement["version"])
    ranks = [[_segment(one) for one in of_rank] for of_rank in measurement["ranks"]]
    return _panel("measured", f"Measured, step {int(measurement['step'])}", measurement["seconds"], ranks)


def _panel(name: str, title: str, seconds: Any, ranks: Sequence[Sequence[Segment]]) -> Panel:
    took = number(seconds)
    if took is None or took <= 0 or not ranks:
        raise ValueError(seconds)
    return Panel(name, title, took, tuple(tuple(own) for own in ranks))


def _segment(fields: Sequence[Any]) -> Segment:
    kind, micro, start, end = fields
    begins, ends = number(start), number(end)
    if kind not in _KINDS or begins is None or ends is None or ends < begins or _count(micro + 1) is None:
        raise ValueError(fields)
    return Segment(kind, micro, begins, ends)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _words(predicted: Panel | None, measured: Panel | None, layout: _Layout) -> str:
    """The numbers of the chart in a sentence."""
    shares = [
        f"{percent(panel.idle)} as {panel.name}" for panel in (predicted, measured) if panel is not None
    ]
    stages, micro_batches = layout.stages or 1, layout.micro_batches
    if stages > 1 and micro_batches is not None:
        ideal = (stages - 1) / (micro_batches + stages - 1)
        shares.append(
            f"(S - 1) / (M + S - 1) = {percent(ideal)} for S = {stages} equal stages on as many ranks and "
            f"M = {micro_batches} micro-batches"
        )
    bubbles = ", ".join(shares[:-1]) + f" and {shares[-1]}" if len(shares) > 1 else shares[0]
    sentence = f"{_steps(predicted, measured, layout)}; bubbles take {bubbles}."
    if layout.batch_norm_samples and layout.global_batch:
        sentence += (
            f" Batch norm takes its statistics over {layout.batch_norm_samples} of the {layout.global_batch} "
            "samples of an update."
        )
    return sentence


def _steps(predicted: Panel | None, measured: Panel | None, layout: _Layout) -> str:
    took = None if measured is None else f"took {measured.ms} ms"
    if predicted is None:
        return f"The step {took}"
    if layout.parts > 1:
        sentence = (
            f"One of {layout.parts} accumulated parts of a step was predicted to take {predicted.ms} ms"
        )
        return f"{sentence}; the step {took}" if took else sentence
    sentence = f"The step was predicted to take {predicted.ms} ms"
    if measured is None:
        return sentence
    return f"{sentence} and {took} (predicted / measured: {predicted.seconds / measured.seconds:.2f})"


# The chart of a pipeline: a row for each rank, a block for each pass over a micro-batch.


# Rows and transfers that are drawn; all passes are in figures/pipeline.csv.
MOST_RANKS = 16
MOST_TRANSFERS = 240
KINDS = {"forward": "s1", "backward": "s3"}
HEADER = ("panel", "rank", "pass", "micro_batch", "start_ms", "end_ms")

_WIDTH = 920
# In units of the view box, which are those of the vertical axis, too.
_TITLE, _ROW, _BLOCK, _BETWEEN = 24, 24, 17, 14
_CHARACTER = 6.4
_MOST_CHARACTERS = 20


@dataclass(frozen=True)
class Panel:
    """One of the parts of the chart, which are above each other.

    Attributes:
        name: for the table.
        title: for people.
        seconds: of the step.
        ranks: what each rank works on, in seconds from the start of the step.
    """

    name: str
    title: str
    seconds: float
    ranks: tuple[tuple[Segment, ...], ...]

    @property
    def idle(self) -> float:
        """Share of the step in which a rank works on no micro-batch, mean over ranks."""
        busy = sum(one.end - one.start for own in self.ranks for one in own)
        return max(0.0, 1 - busy / len(self.ranks) / self.seconds)

    @property
    def ms(self) -> str:
        """Milliseconds of the step."""
        return f"{1000 * self.seconds:.1f}"


def chart(panels: Sequence[Panel], hosts: Sequence[str], replicas: int, caption: str) -> Figure:
    """Return the chart of some panels on one axis of time.

    Args:
        panels: in order from above.
        hosts: of each rank; empty where they are not known.
        replicas: of the pipeline, each on as many ranks that follow each other.
        caption: a sentence on the numbers.
    """
    shown = [panel.ranks[:MOST_RANKS] for panel in panels]
    heights = [_TITLE + _ROW * len(ranks) for ranks in shown]
    height = sum(heights) + _BETWEEN * (len(panels) - 1)
    tops = [height - sum(heights[:place]) - _BETWEEN * place - _TITLE for place in range(len(panels))]
    rows = [
        (top - _ROW * (rank + 0.5), _named(rank, hosts))
        for top, ranks in zip(tops, shown, strict=True)
        for rank in range(len(ranks))
    ]
    longest = max(len(name) for _, name in rows)
    axes = Axes(
        (0.0, 1000 * max(panel.seconds for panel in panels)),
        (0.0, height),
        x_label="ms from the start of the step",
        y_label="",
        title="Passes over micro-batches by rank. " + ". ".join(_said(panel) for panel in panels),
        width=_WIDTH,
        height=height + TOP + BOTTOM,
        y_ticks=[y for y, _ in rows],
        y_names=[name for _, name in rows],
        left=round(16 + 7 * longest),
    )
    words = [caption]
    for panel, ranks, top in zip(panels, shown, tops, strict=True):
        axes.text(0, top + 7, _said(panel), "label")
        for rank, own in enumerate(ranks):
            _draw_rank(axes, panel, rank, own, top - _ROW * (rank + 0.5))
    first, top = panels[0], tops[0]
    if first.name == "predicted":
        moves = list(transfers(first.ranks[:MOST_RANKS], len(first.ranks) // replicas))
        if len(moves) <= MOST_TRANSFERS:
            for source, leaves, target, begins in moves:
                away = _BLOCK / 2 if target > source else -_BLOCK / 2
                points = [(1000 * leaves, source, -away), (1000 * begins, target, away)]
                axes.line([(x, top - _ROW * (rank + 0.5) + y) for x, rank, y in points], "move")
            words += ["Lines are transfers as predicted."] if moves else []
        else:
            words.append(f"{len(moves)} transfers are not drawn.")
    most = max(len(panel.ranks) for panel in panels)
    if most > MOST_RANKS:
        words.append(f"The first {MOST_RANKS} of {most} ranks are drawn, all are in figures/pipeline.csv.")
    numbers = (
        (panel.name, rank, one.kind, one.micro, 1000 * one.start, 1000 * one.end)
        for panel in panels
        for rank, own in enumerate(panel.ranks)
        for one in own
    )
    legend = ((KINDS["forward"], "forward"), (KINDS["backward"], "backward"), ("idle pale", "bubble"))
    return Figure(
        "pipeline", "A step, by micro-batch", axes, table(HEADER, numbers), legend, " ".join(words), wide=True
    )


def transfers(ranks: Sequence[Sequence[Segment]], of_replica: int) -> Iterator[tuple[int, float, int, float]]:
    """Yield which pass hands its micro-batch to the next rank: rank, when, next rank, when that begins.

    A rank may send in the midst of a pass: gradients of its inputs, before it computes those of its weights.
    When exactly is not known then; not later than the next rank begins.

    Args:
        ranks: what each rank works on.
        of_replica: ranks of a replica; micro-batches of the same number differ between replicas.
    """
    chains: dict[tuple[int, str, int], list[tuple[float, float, int]]] = {}
    for rank, own in enumerate(ranks):
        for one in own:
            key = (rank // max(of_replica, 1), one.kind, one.micro)
            chains.setdefault(key, []).append((one.start, one.end, rank))
    for chain in chains.values():
        for (_, ends, source), (begins, _, target) in itertools.pairwise(sorted(chain)):
            if source != target:
                yield source, min(ends, begins), target, begins


def _said(panel: Panel) -> str:
    return f"{panel.title}: {panel.ms} ms, {percent(panel.idle)} bubbles"


def percent(share: float) -> str:
    """Return a share as a whole number of percent."""
    return f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def _named(rank: int, hosts: Sequence[str]) -> str:
    name = f"rank {rank}, {hosts[rank]}" if rank < len(hosts) else f"rank {rank}"
    return name if len(name) <= _MOST_CHARACTERS else f"{name[: _MOST_CHARACTERS - 1]}…"


def _draw_rank(axes: Axes, panel: Panel, rank: int, own: Sequence[Segment], y: float) -> None:
    low, high = y - _BLOCK / 2, y + _BLOCK / 2
    axes.box((0, low), (1000 * panel.seconds, high), "idle pale")
    longest: dict[tuple[str, int], Segment] = {}
    for segment in own:
        start, end = 1000 * segment.start, 1000 * segment.end
        tip = f"rank {rank}, {segment.kind} of micro-batch {segment.micro}: {start:.2f} to {end:.2f} ms"
        axes.box((start, low), (end, high), f"pass {KINDS[segment.kind]}", tip)
        before = longest.get((segment.kind, segment.micro))
        if before is None or segment.end - segment.start > before.end - before.start:
            longest[segment.kind, segment.micro] = segment
    digits = max((len(str(micro)) for _, micro in longest), default=0)
    for (kind, micro), segment in longest.items():
        left, right = (axes.at(1000 * moment, y)[0] for moment in (segment.start, segment.end))
        if right - left >= _CHARACTER * digits + 2:
            axes.text(
                500 * (segment.start + segment.end), y - 4, str(micro), f"inside {KINDS[kind]}", "middle"
            )
