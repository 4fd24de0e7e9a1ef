"""From what a run folder tells to one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import functools
from datetime import datetime
from typing import Any

import jinja2
import numpy as np

from trainer.errors import ShardError
from trainer.metrics.classification import auc_difference, classification_metrics
from trainer.report import figures, slices
from trainer.report.story import Predictions, Story, number

Fact = tuple[str, str]


def render(story: Story) -> str:
    """The report as HTML text."""
    split = next((name for name in ("test", "validation") if name in story.predictions), None)
    found = story.predictions.get(split) if split else None
    metrics = classification_metrics(found.true, found.probabilities, found.classes) if found else None
    baseline = _baseline(story, found) if split == "test" else {}
    return _template().render(
        story=story,
        split=split,
        task=_task(story),
        held_out="held-out" if split == "test" else "validation",
        found=found,
        metrics=metrics,
        baseline=story.baseline if baseline else None,
        verdict=_verdict(found, metrics, baseline) if found and metrics else None,
        state=_state(story),
        charts=_charts(story, found, metrics, baseline),
        confusion=_confusion(metrics) if metrics else None,
        examples=_examples(story, found) if found else [],
        subjects=_subjects(found) if found else [],
        cohort=_cohort(story),
        apart=_subjects_apart(story),
        run_facts=_run_facts(story),
        places=_places(story),
        packages=_packages(story),
    )


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trainer.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(share=share, interval=interval)
    return environment.get_template("report.html.j2")


def share(value: Any) -> str:
    """A share with two decimals, or a dash."""
    known = number(value)
    return "–" if known is None else f"{known:.2f}"


def interval(bounds: Any) -> str:
    """An interval as 'a to b', or nothing."""
    pair = _pair(bounds)
    if pair is None:
        return ""
    # All resamples alike, as with no mistake at all: that is no certainty, so no interval.
    return f"{pair[0]:.2f} to {pair[1]:.2f}" if pair[0] < pair[1] else "too few for an interval"


def _pair(bounds: Any) -> tuple[float, float] | None:
    """Two finite numbers, or None for anything else."""
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2:
        return None
    low, high = number(bounds[0]), number(bounds[1])
    return None if low is None or high is None else (low, high)


def _task(story: Story) -> str:
    classes = story.facts.get("classes")
    return " vs ".join(str(name) for name in classes) if classes else "Classification"


def _state(story: Story) -> str | None:
    """What is unusual about the run's state, for the top of the page."""
    if story.result:
        return None
    if story.epochs:
        return f"This run is not finished: it has done {len(story.epochs)} epoch(s) so far."
    return "This run has not finished its first epoch."


def _baseline(story: Story, found: Predictions | None) -> dict[int, list[float]]:
    """The linear model's probabilities by row, if it judged every one of these subjects."""
    stored = story.baseline.get("predictions", {})
    if found is None:
        return {}
    wanted = [stored.get(str(int(row))) for row in found.rows]
    if not all(isinstance(p, list) and len(p) == len(found.classes) for p in wanted):
        return {}
    if any(number(value) is None for p in wanted if p for value in p):
        return {}
    return {int(row): p for row, p in zip(found.rows, wanted, strict=True) if p}


def _verdict(found: Predictions, metrics: dict[str, Any], baseline: dict[int, list[float]]) -> str:
    """What the numbers say, in two sentences that claim no more than they can."""
    if metrics["auc"] is None:
        return "Not every class is among these subjects, so there is no ROC curve to judge by."
    low, high = metrics["auc_interval"]
    if low == high:
        told = (
            "These few subjects are told apart without a single mistake in order, which leaves no interval."
        )
    elif low > 0.5:
        told = "The network tells the classes apart better than chance."
    else:
        told = "These subjects do not show that the network is better than chance."
    if not baseline:
        return told
    other = np.array([baseline[int(row)] for row in found.rows])
    difference = auc_difference(found.true, found.probabilities, other)
    if difference is None:
        return told
    value, (low, high) = difference
    against = (
        f"AUC {value:+.2f} against a linear model on tissue volumes (95 % interval {low:+.2f} to {high:+.2f})"
    )
    if low > 0:
        return f"{told} {against}: more than the volumes alone give."
    if high < 0:
        return f"{told} {against}: the volumes alone do better."
    return f"{told} {against}: too few subjects to say which is better."


def _charts(
    story: Story, found: Predictions | None, metrics: dict[str, Any] | None, baseline: dict[int, list[float]]
) -> dict[str, str | None]:
    best = story.result.get("best")
    epoch = number(best.get("epoch")) if isinstance(best, dict) else None
    mark = None if epoch is None else int(epoch)
    charts = {
        "loss": figures.learning_curve(
            story.epochs, {"loss": "s1", "val_loss": "s2"}, y_label="loss", best=mark
        ),
        "accuracy": figures.learning_curve(
            story.epochs,
            {"accuracy": "s1", "val_accuracy": "s2", "val_auc": "s3"},
            y_label="accuracy, AUC",
            best=mark,
        ),
        "throughput": figures.throughput(story.epochs),
        "learning_rate": figures.learning_rate(story.epochs),
    }
    if found is not None and metrics is not None:
        charts["roc"] = figures.roc(found, baseline)
        charts["probabilities"] = figures.probabilities(found)
        charts["reliability"] = figures.reliability(found)
        if metrics["auc"] is not None:
            bars = [("this network", metrics["auc"], _pair(metrics["auc_interval"]), "s1")]
            auc = number(story.baseline.get("auc"))
            if baseline and auc is not None:
                bars.append(("tissue volumes, linear", auc, _pair(story.baseline.get("auc_interval")), "s2"))
            charts["intervals"] = figures.intervals(bars, "AUC, 95 % interval")
    return charts


def _confusion(metrics: dict[str, Any]) -> list[list[tuple[int, float]]]:
    """Each count with its share of the true class."""
    return [[(n, n / sum(row) if sum(row) else 0.0) for n in row] for row in metrics["confusion"]]


def _examples(story: Story, found: Predictions) -> list[slices.Example]:
    if story.shards is None:
        return []
    try:
        return slices.examples(found, story.shards)
    except (ShardError, IndexError) as error:
        story.notes.append(f"No example slices: {error}")
        return []


def _subjects(found: Predictions) -> list[dict[str, Any]]:
    """One row per subject, mistakes first, the surest of them on top."""
    rows = [
        {
            "subject": found.subjects[i],
            "true": found.classes[found.true[i]],
            "predicted": found.classes[found.predicted[i]],
            "right": bool(found.predicted[i] == found.true[i]),
            "sure": float(found.probabilities[i].max()),
            "probabilities": [float(p) for p in found.probabilities[i]],
        }
        for i in range(len(found.true))
    ]
    return sorted(rows, key=lambda row: (row["right"], -row["sure"], row["subject"]))


def _cohort(story: Story) -> list[dict[str, Any]]:
    """Per split: how many volumes, subjects and volumes of each class."""
    splits = story.facts.get("split", {})
    table = []
    for name in ("train", "validation", "test"):
        rows = splits.get(name)
        if not isinstance(rows, list):
            continue
        entry: dict[str, Any] = {"name": name, "volumes": len(rows)}
        if story.shards is not None and all(isinstance(r, int) and 0 <= r < len(story.shards) for r in rows):
            volumes = [story.shards.volumes[row] for row in rows]
            ages = [volume.age for volume in volumes if volume.age is not None]
            entry["subjects"] = len({volume.subject for volume in volumes})
            entry["classes"] = [
                sum(volume.label == label for volume in volumes) for label in story.facts.get("classes", [])
            ]
            entry["age"] = f"{np.mean(ages):.1f} ± {np.std(ages):.1f}" if ages else "–"
        table.append(entry)
    return table


def _subjects_apart(story: Story) -> bool | None:
    """Whether no subject is in two splits; None when that cannot be seen from here."""
    if story.shards is None:
        return None
    volumes = story.shards.volumes
    seen: list[str] = []
    for rows in story.facts.get("split", {}).values():
        if not isinstance(rows, list) or not all(isinstance(r, int) and 0 <= r < len(volumes) for r in rows):
            return None
        seen += {volumes[row].subject for row in rows}
    return len(seen) == len(set(seen)) if seen else None


def _run_facts(story: Story) -> list[Fact]:
    """The run in figures, for a list of terms; what is not known is left out."""
    facts, result = story.facts, story.result
    model = story.config.get("model")
    shards = facts.get("shards", {})
    speed = number(result.get("samples_per_second"))
    parameters = number(facts.get("parameters"))
    pairs = [
        ("Network", model.get("name") if isinstance(model, dict) else None),
        ("Parameters", None if parameters is None else f"{int(parameters):,}"),
        ("Volume", " × ".join(str(side) for side in facts.get("volume") or ())),
        ("Strategy", result.get("strategy")),
        ("World size", facts.get("world_size")),
        ("Epochs", result.get("epochs", len(story.epochs) or None)),
        ("Steps", result.get("steps")),
        ("Throughput", None if speed is None else f"{speed:.1f} samples/s"),
        ("Took", _duration(facts.get("started"), facts.get("finished"))),
        ("Started", facts.get("started")),
        ("Finished", facts.get("finished")),
        ("Resumed", f"{len(facts['resumed_from'])} time(s)" if facts.get("resumed_from") else None),
        ("Shard set", shards.get("path")),
        ("Data hash", shards.get("content_hash")),
        ("Weights hash", result.get("weights_sha256")),
    ]
    return [(name, str(value)) for name, value in pairs if value not in (None, "", {})]


def _duration(started: Any, finished: Any) -> str | None:
    try:
        seconds = (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds()
    except (TypeError, ValueError):
        return None
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _places(story: Story) -> list[dict[str, str]]:
    """Which ranks ran on which host, with what in it."""
    hosts = story.facts.get("hosts", [])
    gpus = story.facts.get("gpus")
    per_rank = gpus if isinstance(gpus, list) and len(gpus) == len(hosts) else [None] * len(hosts)
    table = []
    for host in dict.fromkeys(str(host) for host in hosts):
        ranks = [rank for rank, name in enumerate(hosts) if str(name) == host]
        seen = [per_rank[rank] for rank in ranks if per_rank[rank]]
        devices = [str(gpu) for entry in seen for gpu in (entry if isinstance(entry, list) else [entry])]
        table.append(
            {"host": host, "ranks": _ranges(ranks), "gpus": ", ".join(dict.fromkeys(devices)) or "none"}
        )
    return table


def _ranges(ranks: list[int]) -> str:
    """'0-3, 6' for [0, 1, 2, 3, 6]."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)


def _packages(story: Story) -> list[Fact]:
    """Software and processor."""
    facts = story.facts
    cpu = facts.get("cpu")
    if isinstance(cpu, dict):
        cpu = f"{cpu.get('model', '?')}, {cpu.get('cores', '?')} cores, {cpu.get('memory_gib', '?')} GiB"
    pairs = [
        ("cingulum", facts.get("cingulum")),
        ("Python", facts.get("python")),
        *facts.get("packages", {}).items(),
        ("Processor", cpu),
        ("System", facts.get("system")),
    ]
    return [(str(name), str(value)) for name, value in pairs if value]
