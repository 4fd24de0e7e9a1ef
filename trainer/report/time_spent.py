"""Where the time of a run went: its steps by part and epoch, its ranks, its hosts, and its energy."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.byte_sizes import as_text
from trainer.errors import RunError
from trainer.report.axes import Axes
from trainer.report.figure import Figure, table
from trainer.report.story import ReportMaterial, number
from trainer.telemetry import records
from trainer.telemetry.prediction import RunPrediction, compare
from trainer.telemetry.records import PARTS, HostEpoch, RunTelemetry

MOST_RANKS = 8
_LEVEL = 1.1

PART_WORDS = {
    "input_wait": "waiting for input",
    "forward": "forward",
    "backward": "backward",
    "exposed": "exposed communication",
    "update": "update",
    "other": "other",
}
# Which of the page's colours; the one that warns goes to communication.
_KINDS = {
    "forward": "s1",
    "exposed": "s2",
    "backward": "s3",
    "input_wait": "s4",
    "update": "s5",
    "other": "s6",
}


@dataclass(frozen=True)
class TimeSpent:
    """What the section shows.

    Attributes:
        figures: seconds per step of each epoch and of each rank, by part.
        ranks: rank, host, and in milliseconds per step its own time and the parts; the slowest first.
        ranks_left_out: how many ranks are not in that table.
        slowest: a sentence on the slowest rank; empty with one rank.
        hosts: host, ranks, processor, memory, bytes sent and received per step, GPUs.
        energy: a sentence; empty without any figure.
        predictions: figure, predicted, measured, and predicted over measured; empty without a prediction.
        bounds: a sentence on how the step was predicted; empty without.
    """

    figures: tuple[Figure, ...]
    ranks: tuple[tuple[str, ...], ...]
    ranks_left_out: int
    slowest: str
    hosts: tuple[tuple[str, ...], ...]
    energy: str
    predictions: tuple[tuple[str, ...], ...] = ()
    bounds: str = ""


PREDICTION_HEADER = ("Per step", "Predicted", "Measured", "Ratio")
_PREDICTED = {
    "counted_bytes": "Payload of a rank",
    "crossing_bytes": "Sent by the busiest host",
    "communication_s": "Gradients under way",
    "exposed_s": "Exposed communication",
    "step_s": "Whole step",
    "memory_bytes": "Memory of a rank, at most",
}
RANK_HEADER = (
    "Rank",
    "Host",
    "Own time",
    *(words.capitalize() for words in PART_WORDS.values()),
    "Overlapped",
)
HOST_HEADER = ("Host", "Ranks", "Processor", "Memory", "Sent a step", "Received a step", "GPUs")


def of(story: ReportMaterial) -> TimeSpent | None:
    """Return the section of a run; None where there is nothing to show. What is damaged is a note."""
    try:
        telemetry = records.read(story.folder)
        ranks = {rank: records.mean(steps) for rank, steps in telemetry.steps.items()}
        ranks = {rank: means for rank, means in ranks.items() if means}
        hosts = tuple(_host_row(host, epochs) for host, epochs in telemetry.hosts.items())
        rank_rows = _rank_rows(ranks, telemetry)
        slowest, energy = _slowest(ranks, telemetry), _energy(story)
        prediction = _known(story)
        predictions = _prediction_rows(prediction, telemetry, story.result.get("memory_bytes", ()))
    except (RunError, TypeError, ValueError, KeyError, AttributeError) as error:
        story.notes.append(f"The telemetry is damaged and left out ({error}).")
        return None
    figures = tuple(figure for figure in (by_epoch(story.epochs), by_rank(ranks)) if figure is not None)
    if not figures and not rank_rows and not hosts:
        return None
    return TimeSpent(
        figures,
        rank_rows[:MOST_RANKS],
        len(rank_rows[MOST_RANKS:]),
        slowest,
        hosts,
        energy,
        predictions,
        _bounds(prediction, predictions) if prediction is not None and predictions else "",
    )


def by_epoch(epochs: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Return milliseconds per step in each epoch, the parts on top of each other."""
    bars = {}
    for row in epochs:
        epoch, parts = number(row.get("epoch")), row.get("timeline")
        if epoch is not None and isinstance(parts, dict):
            bars[int(epoch)] = {part: number(parts.get(part)) or 0.0 for part in PARTS}
    caption = "Means over steps and ranks; the first step of a session is left out."
    return _stacked("time-by-epoch", "A step, by epoch", "epoch", bars, caption)


def by_rank(ranks: Mapping[int, Mapping[str, float]]) -> Figure | None:
    """Return milliseconds per step of each rank, the parts on top of each other."""
    caption = "Means over all steps. The others wait for the rank with the least exposed communication."
    return _stacked("time-by-rank", "A step, by rank", "rank", ranks, caption) if len(ranks) > 1 else None


def _stacked(
    name: str, heading: str, of: str, seconds: Mapping[int, Mapping[str, float]], caption: str
) -> Figure | None:
    if not seconds:
        return None
    bars = {place: {part: 1000 * parts[part] for part in PARTS} for place, parts in sorted(seconds.items())}
    first, last = min(bars), max(bars)
    apart = max(1, (last - first + 9) // 10)
    axes = Axes(
        (first - 0.6, last + 0.6),
        (0, max(sum(parts.values()) for parts in bars.values()) * 1.08 or 1),
        x_label=of,
        y_label="ms per step",
        title=f"Milliseconds per step of each {of}, by part",
        x_ticks=range(first, last + 1, apart),
    )
    for place, parts in bars.items():
        bottom = 0.0
        for part, ms in parts.items():
            tip = f"{of} {place}, {PART_WORDS[part]}: {ms:.2f} ms"
            axes.box((place - 0.36, bottom), (place + 0.36, bottom + ms), _KINDS[part], tip)
            bottom += ms
    numbers = table(
        [of, *(f"{part}_ms" for part in PARTS)], [[p, *parts.values()] for p, parts in bars.items()]
    )
    legend = tuple((_KINDS[part], words) for part, words in PART_WORDS.items())
    return Figure(name, heading, axes, numbers, legend, caption)


def _rank_rows(
    ranks: Mapping[int, Mapping[str, float]], telemetry: RunTelemetry
) -> tuple[tuple[str, ...], ...]:
    places = {rank: host for host, epochs in telemetry.hosts.items() for rank in epochs[-1].ranks}
    own = {rank: means["seconds"] - means["exposed"] for rank, means in ranks.items()}
    return tuple(
        (
            str(rank),
            places.get(rank, ""),
            *(_ms(value) for value in (own[rank], *(ranks[rank][part] for part in PARTS))),
            _ms(ranks[rank]["overlapped"]),
        )
        for rank in sorted(ranks, key=lambda rank: -own[rank])
    )


def _slowest(ranks: Mapping[int, Mapping[str, float]], telemetry: RunTelemetry) -> str:
    slowest = records.slowest(ranks)
    if slowest is None or len(ranks) == 1:
        return ""
    worst = [row for row in telemetry.rows if (number(row.get("slowest_ratio")) or 0.0) >= 1.25]
    if slowest.ratio < _LEVEL and not worst:
        return (
            f"No significant straggler: the slowest rank needs {slowest.ratio:.2f} times as long as others."
        )
    sentence = (
        f"Rank {slowest.rank} is the slowest: its own work takes {slowest.ratio:.2f} times that of the "
        f"others, most of the difference in: {PART_WORDS[slowest.part]}."
    )
    if worst:
        sentence += f" In {len(worst)} of {len(telemetry.rows)} epochs a rank was 1.25 times slower or more."
    return sentence


def _host_row(host: str, epochs: Sequence[HostEpoch]) -> tuple[str, ...]:
    last = epochs[-1]
    steps = last.step  # a host that joined later did fewer
    moved = [
        sum(of_one[way] for epoch in epochs for name, of_one in epoch.interfaces.items() if name != "lo")
        for way in ("sent", "received")
    ]
    return (
        host,
        str(len(last.ranks)),
        f"{statistics.fmean(epoch.cpu_percent for epoch in epochs):.0f} % of {100 * last.cores} %",
        f"{as_text(max(epoch.rss_bytes for epoch in epochs))} of {as_text(last.memory_bytes)}",
        *(as_text(round(size / max(steps, 1))) for size in moved),
        ", ".join(_gpu(gpu) for gpu in last.gpus) or "none",
    )


def _known(story: ReportMaterial) -> RunPrediction | None:
    try:
        return RunPrediction.read(story.folder)
    except RunError as error:
        story.notes.append(f"What was predicted is left out: {error.message}")
        return None


def _prediction_rows(
    known: RunPrediction | None, telemetry: RunTelemetry, memory: Sequence[int | None]
) -> tuple[tuple[str, ...], ...]:
    found = {} if known is None else compare(known, telemetry, memory)
    return tuple(
        (words, *(_told(name, pair[which]) for which in ("predicted", "measured")), f"{pair['ratio']:.2f}")
        for name, words in _PREDICTED.items()
        if (pair := found.get(name)) is not None
    )


def _told(name: str, value: float) -> str:
    return f"{_ms(value)} ms" if name.endswith("_s") else f"{round(value):,} B"


def _bounds(prediction: RunPrediction, rows: Sequence[Sequence[str]]) -> str:
    """Sentences on how the step was predicted, and on figures that are off."""
    seconds = [words for name, words in _PREDICTED.items() if name.endswith("_s")]
    off = any(row[0] in seconds and not 0.5 <= float(row[-1]) <= 2 for row in rows)
    caution = (
        " Links were timed once, by a few reductions before the first step: what hosts do besides, then or "
        "later, and ranks that share cores are not in it, so that short times are off by a multiple."
    )
    return _how(prediction) + caution * off


def _how(prediction: RunPrediction) -> str:
    if prediction.step_s is None or prediction.step_at_least_s is None or prediction.step_at_most_s is None:
        return ""
    return (
        f"Computing is the median of steps {prediction.began + 2} to {prediction.step}, on the slowest rank; "
        "measured are medians of later steps. A step was expected to take "
        f"{_ms(prediction.step_at_least_s)} to {_ms(prediction.step_at_most_s)} ms: with all communication "
        "hidden that the backward pass can hide, and with none."
    )


def _gpu(gpu: Mapping[str, Any]) -> str:
    used, power = number(gpu.get("utilisation")), number(gpu.get("power_w"))
    said = [f"{used:.0f} % busy"] if used is not None else []
    return " ".join([str(gpu.get("name", "GPU")), *said, *([f"{power:.0f} W"] if power is not None else [])])


def _energy(story: ReportMaterial) -> str:
    drawn = records.energy(story.folder)
    if drawn is None:
        return ""
    joules, source = drawn
    return f"Energy of the training steps: {joules / 3600:.3g} Wh ({joules:,.0f} J); {source}."


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"
