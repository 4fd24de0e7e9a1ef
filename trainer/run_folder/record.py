"""The run folder: what was asked, what ran where on which data, and what came of it.

    runs/<name>/
      config.yaml      the whole configuration, defaults included
      plan.json        how a step is divided over ranks
      run.json         versions, hosts, data and its split, command
      metrics.jsonl    one row per epoch
      telemetry/       where each step's time went, and what the hosts did
      model.keras      the best epoch's network, ready for use
      baseline.json    what a linear model on tissue volumes reaches
      checkpoints/  evaluation/  tensorboard/  figures/  report.html
      result.json      final and best metrics; written after all that was computed; says "finished"

docs/reference/run-folder.md describes every key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trainer import atomic
from trainer import config as configuration
from trainer.atomic import write_text
from trainer.config import RunConfig
from trainer.errors import ConfigError, RunError


class _Inside:
    """A path in a run folder, by its name there; of the class, the name alone."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder | None, owner: type[RunFolder]) -> Path:
        return Path(self._name) if folder is None else folder.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Paths in a run folder, listed above; reads and writes its small files, atomically."""

    path: Path

    config = _Inside("config.yaml")
    plan = _Inside("plan.json")
    run = _Inside("run.json")
    metrics = _Inside("metrics.jsonl")
    result = _Inside("result.json")
    model = _Inside("model.keras")
    baseline = _Inside("baseline.json")
    checkpoints = _Inside("checkpoints")
    telemetry = _Inside("telemetry")
    evaluation = _Inside("evaluation")
    tensorboard = _Inside("tensorboard")
    figures = _Inside("figures")
    report = _Inside("report.html")

    @property
    def is_new(self) -> bool:
        """Whether nothing has been written yet: hidden files are a start's that was killed before it did."""
        path = self.path
        if not path.exists():
            return True
        return path.is_dir() and all(one.name.startswith(".") for one in path.iterdir())

    def discard_partial(self) -> None:
        """Remove the halves of files that a killed process left."""
        for folder in (self.path, self.evaluation, self.evaluation / "maps", self.figures, self.telemetry):
            for path in folder.glob(atomic.beside(Path("*")).name):
                if not path.is_dir():
                    atomic.remove(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open a run folder that exists.

        Raises:
            RunError: missing, or not a run folder.
        """
        if not path.is_dir():
            raise RunError(
                f"{path}: there is no such run folder.",
                cure="cingulum train CONFIG.yaml makes one.",
                path=path,
            )
        folder = cls(path)
        if not folder.config.is_file():
            raise RunError(
                f"{path}: is not a run folder: config.yaml is missing.",
                cure="Give a folder such as runs/demo",
                path=path,
            )
        return folder

    def read_config(self) -> RunConfig:
        """Return the run's configuration."""
        return configuration.load(self.config)

    def write_config(self, config: RunConfig) -> None:
        """Write the whole configuration."""
        write_text(self.config, configuration.dump(config))

    def read_plan(self) -> dict[str, Any] | None:
        """Return the plan of the run's last start; None where there is none that can be read."""
        try:
            found = read_json(self.plan)
        except RunError:
            return None
        return found if isinstance(found, dict) else None

    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write metrics.jsonl anew: a line that is added could be one of a start that was fenced off."""
        write_text(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically; NaN and infinity are refused: not JSON."""
    atomic.make_folder(path.parent)
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of a run folder.

    Raises:
        RunError: it is missing or damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: is missing from the run folder.", path=path) from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: is damaged ({error}).", path=path) from None


def other_epoch(result: Mapping[str, Any]) -> str | None:
    """Return why model.keras does not have the best epoch's weights, in one sentence; None where it has.

    Args:
        result: content of result.json.
    """
    kept = result.get("kept")
    why = kept.get("why") if isinstance(kept, dict) else None
    return why if isinstance(why, str) else None


def differences(stored: RunConfig, requested: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return dotted key -> its two values, sorted, for every key that differs and may not change."""
    old, new = settings(stored), settings(requested)
    for flat, other, section in ((new, old, stored.train.strategy), (old, new, requested.train.strategy)):
        # What only the other strategy has counts as left at its default.
        for name, field in type(section).model_fields.items():
            if (key := f"train.strategy.{name}") in other:
                flat.setdefault(key, field.default)
    changed = (k for k in old.keys() | new.keys() if old.get(k) != new.get(k))
    strategies = (stored.train.strategy, requested.train.strategy)
    keys = sorted(k for k in changed if configuration.on_resume(k, *strategies) != "may change")
    return {key: (old.get(key), new.get(key)) for key in keys}


def changes(differing: Mapping[str, tuple[Any, Any]]) -> str:
    """Return the result of `differences` as text."""
    return "; ".join(f"{key} was {old!r} and is {new!r} now" for key, (old, new) in differing.items())


def digest(config: RunConfig) -> str:
    """Return the sha256 of the whole configuration, for the manifest of checkpoints."""
    return hashlib.sha256(configuration.dump(config).encode()).hexdigest()


def now() -> str:
    """Return the time, as ISO 8601 in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def settings(config: RunConfig) -> dict[str, Any]:
    """Return dotted key -> value, for every leaf that is given."""

    def leaves(node: Any, prefix: str) -> Iterable[tuple[str, Any]]:
        if isinstance(node, dict) and node:
            for key, child in node.items():
                yield from leaves(child, f"{prefix}.{key}" if prefix else key)
        else:
            yield prefix, node

    return dict(leaves(config.model_dump(mode="json"), ""))


def load_config(folder: RunFolder) -> RunConfig:
    """Return the configuration of a run folder.

    Raises:
        RunError: config.yaml is damaged or was written by another version.
    """
    try:
        return folder.read_config()
    except ConfigError as error:
        raise RunError(
            f"{folder.path}: its configuration cannot be used: {error.message}", path=folder.path
        ) from None
