"""Which rank works on which micro-batch when, where stages pass them on: from plan.json and telemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.report import charts_pipeline
from trainer.report.charts_pipeline import Panel, percent
from trainer.report.figure import Figure
from trainer.report.story import Story, number, read_json
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


def of(story: Story) -> Figure | None:
    """Return the chart of a run; None where no stages pass on micro-batches. What is damaged is a note."""
    plan = read_json(story, _PLAN)
    predicted = _read(story, f"{_PLAN}: division.played", lambda: _predicted(plan))
    name = str(pipeline.file(story.folder).relative_to(story.folder))
    told = read_json(story, name)
    measured = _read(story, name, lambda: _measured(told))
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
    return charts_pipeline.chart(
        panels, story.facts.hosts, layout.replicas, _words(predicted, measured, layout)
    )


def _read(story: Story, what: str, read: Any) -> Panel | None:
    try:
        found: Panel | None = read()
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        story.notes.append(f"{what} is damaged and left out of the pipeline's chart.")
        return None
    return found


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


def _measured(told: Mapping[str, Any]) -> Panel | None:
    if not told:
        return None
    if told["version"] != pipeline.VERSION:
        raise ValueError(told["version"])
    ranks = [[_segment(one) for one in of_rank] for of_rank in told["ranks"]]
    return _panel("measured", f"Measured, step {int(told['step'])}", told["seconds"], ranks)


def _panel(name: str, title: str, seconds: Any, ranks: Sequence[Sequence[Segment]]) -> Panel:
    took = number(seconds)
    if took is None or took <= 0 or not ranks:
        raise ValueError(seconds)
    return Panel(name, title, took, tuple(tuple(own) for own in ranks))


def _segment(told: Sequence[Any]) -> Segment:
    kind, micro, start, end = told
    begins, ends = number(start), number(end)
    if kind not in _KINDS or begins is None or ends is None or ends < begins or _count(micro + 1) is None:
        raise ValueError(told)
    return Segment(kind, micro, begins, ends)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _words(predicted: Panel | None, measured: Panel | None, layout: _Layout) -> str:
    """The numbers of the chart in a sentence."""
    known = [f"{percent(panel.idle)} as {panel.name}" for panel in (predicted, measured) if panel is not None]
    stages, micro_batches = layout.stages or 1, layout.micro_batches
    if stages > 1 and micro_batches is not None:
        ideal = (stages - 1) / (micro_batches + stages - 1)
        known.append(
            f"(S - 1) / (M + S - 1) = {percent(ideal)} for S = {stages} equal stages on as many ranks and "
            f"M = {micro_batches} micro-batches"
        )
    bubbles = ", ".join(known[:-1]) + f" and {known[-1]}" if len(known) > 1 else known[0]
    said = f"{_steps(predicted, measured, layout)}; bubbles take {bubbles}."
    if layout.batch_norm_samples and layout.global_batch:
        said += (
            f" Batch norm takes its statistics over {layout.batch_norm_samples} of the {layout.global_batch} "
            "samples of an update."
        )
    return said


def _steps(predicted: Panel | None, measured: Panel | None, layout: _Layout) -> str:
    took = None if measured is None else f"took {measured.ms} ms"
    if predicted is None:
        return f"The step {took}"
    if layout.parts > 1:
        said = f"One of {layout.parts} accumulated parts of a step was predicted to take {predicted.ms} ms"
        return f"{said}; the step {took}" if took else said
    said = f"The step was predicted to take {predicted.ms} ms"
    if measured is None:
        return said
    return f"{said} and {took} (predicted / measured: {predicted.seconds / measured.seconds:.2f})"
