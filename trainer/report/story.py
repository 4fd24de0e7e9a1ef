"""What a run folder tells: its files read into one value, each of them optional.

A report is also wanted of a run that still goes on, failed, or lost a file, so a missing or damaged file is a
note in the report and never an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from trainer import attempts
from trainer.config import yaml_reader
from trainer.data.shards.shards import ShardSet
from trainer.data.splits import leaks
from trainer.errors import ConfigError, ShardError
from trainer.report import predictions
from trainer.report.predictions import Found
from trainer.report.sentences import get
from trainer.run_folder import record
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord

T = TypeVar("T")

# Types of those values of result.json and baseline.json that are taken apart.
_KINDS: dict[str, tuple[type, ...]] = {
    "features": (list,),
    "predictions": (dict,),
    "memory_bytes": (list,),
}


@dataclass(frozen=True)
class RecordedTask:
    """What the network was trained for, as run.json records it.

    Attributes:
        name: classification, regression or segmentation.
        target: the quantity or the label, such as `age` or `diagnosis`.
        classes: names, where there are classes.
    """

    name: str = "classification"
    target: str = ""
    classes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """Return the unit of a regression's target, with a space before it, or nothing."""
        return " years" if self.name == "regression" and self.target in ("", "age") else ""

    @property
    def title(self) -> str:
        """Return the task in a few words, for the top of a page."""
        if self.name == "regression":
            return f"{(self.target or 'age').capitalize()} regression"
        if self.name == "segmentation":
            return "Segmentation"
        return " vs ".join(self.classes) or "Classification"


@dataclass
class ReportMaterial:
    """Everything a report is made from. `failures`: sections that could not be made, which are notes, too."""

    folder: Path
    config_text: str
    config: dict[str, Any]
    facts: RunRecord = field(default_factory=RunRecord)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    baseline: dict[str, Any] = field(default_factory=dict)
    predictions: dict[str, Found] = field(default_factory=dict)
    shards: ShardSet | None = None
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def section(self, name: str, make: Callable[[], T], otherwise: T) -> T:
        """Return a section of the report; where an error of any kind comes of it, a note and `otherwise`.

        Args:
            name: in words.
            make: the section.
            otherwise: what the page has without it.
        """
        try:
            return make()
        except Exception as error:
            self.failures.append(f"{name} could not be made ({attempts.reason(error)}).")
            self.notes.append(self.failures[-1])
            return otherwise

    @property
    def name(self) -> str:
        """Return the run's name."""
        return str(self.config.get("name") or self.folder.resolve().name)

    @property
    def task(self) -> RecordedTask:
        """Return the task; run folders that name none are classifications."""
        said = self.facts.task
        known = said.name if said.name in ("regression", "segmentation") else "classification"
        return RecordedTask(known, said.target, self.facts.class_names)

    @property
    def judged(self) -> str | None:
        """Return the split that the report judges by: test, else validation."""
        return next((name for name in ("test", "validation") if name in self.predictions), None)

    @property
    def is_phantom(self) -> bool:
        """Return whether the images are computed and not taken of people, by the shard set's source."""
        said = [self.facts.shards.source]
        if self.shards is not None:
            said.append(self.shards.source)
        return any("phantom" in str(text).lower() for text in said if text)


def read(folder: Path) -> ReportMaterial:
    """Read a run folder.

    Raises:
        RunError: it does not exist, or has no config.yaml.
    """
    path = RunFolder.open(folder).config
    story = ReportMaterial(folder, "", {})
    try:
        story.config_text = yaml_reader.read_text(path)
        config = yaml_reader.parse(story.config_text, source=str(path)).tree
    except ConfigError:
        config = None
    story.config = config if isinstance(config, dict) else {}
    if not story.config:
        story.notes.append("config.yaml is damaged.")
    if reserved := leaks.reservation(get(story.config, "data.leaks")):
        story.notes.append(reserved)
    story.facts, wrong = RunRecord.usable(read_json(story, "run.json"))
    for key in wrong:
        story.notes.append(_of_another_type("run.json", key))
    story.result = _read_facts(story, "result.json")
    if why := record.other_epoch(story.result):
        story.notes.append(why)
    story.baseline = _read_facts(story, "baseline.json")
    story.epochs = _read_epochs(story)
    for split in ("validation", "test"):
        found = _read_predictions(story, split)
        if found is not None:
            story.predictions[split] = found
    story.shards = _open_shards(story)
    return story


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def read_json(story: ReportMaterial, name: str) -> dict[str, Any]:
    """Return a JSON object in the run folder; {} where there is none, with a note where it is damaged."""
    path = story.folder / name
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        value = None
    if isinstance(value, dict):
        return value
    note = f"{name} is damaged; what it says is left out."
    if note not in story.notes:
        story.notes.append(note)
    return {}


def _read_facts(story: ReportMaterial, name: str) -> dict[str, Any]:
    """Those of its values that the report can work with."""
    facts = read_json(story, name)
    return {key: part for key, part in facts.items() if _is_usable(story, name, key, part)}


def _is_usable(story: ReportMaterial, name: str, key: str, value: Any) -> bool:
    """Whether a value is of the type that the report works with; one that is not is noted and dropped."""
    if value is None or isinstance(value, _KINDS.get(key, object)):
        return value is not None
    story.notes.append(_of_another_type(name, key))
    return False


def _of_another_type(name: str, key: str) -> str:
    return f"{name}: {key!r} is of another type than expected and left out."


def _read_epochs(story: ReportMaterial) -> list[dict[str, Any]]:
    path = story.folder / "metrics.jsonl"
    if not path.is_file():
        return []
    rows = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
            rows[int(row["epoch"])] = row
        except (ValueError, KeyError, TypeError, OverflowError):
            story.notes.append("A line of metrics.jsonl is damaged and left out.")
    return [rows[epoch] for epoch in sorted(rows)]


def _read_predictions(story: ReportMaterial, split: str) -> Found | None:
    path = story.folder / "evaluation" / f"{split}.csv"
    if not path.is_file():
        return None
    try:
        return predictions.read(path, story.task.name)
    except (OSError, ValueError):
        story.notes.append(f"evaluation/{split}.csv is damaged; its predictions are left out.")
        return None


def _open_shards(story: ReportMaterial) -> ShardSet | None:
    """The shard set that run.json names, if it is still there and still the same."""
    stored = story.facts.shards
    if not stored.path:
        return None
    try:
        shards = ShardSet.open(Path(stored.path))
    except ShardError as error:
        story.notes.append(f"No example slices: {error.message}")
        return None
    if shards.content_hash != stored.content_hash:
        story.notes.append(f"No example slices: the shard set {stored.path} has changed since this run.")
        return None
    return shards
