"""The model card: what a network is for, what it learned from, how good it is, and where it ends.

After Mitchell et al., "Model Cards for Model Reporting" (arXiv 1810.03993).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import keras
import numpy as np
from markupsafe import Markup

from trainer.config import RunConfig
from trainer.data.shards.shards import ShardSet, Volume
from trainer.data.splits import leaks
from trainer.errors import InputError
from trainer.metrics import comparison
from trainer.metrics.subjects import TOO_FEW
from trainer.report.augmentation import phrases
from trainer.run_folder import record
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord

# Punctuation with a meaning inside of a line (CommonMark 0.31, 2.4; tables: GitHub's extension).
_INSIDE = re.compile(r"([\\`*\[\]<>#|~&$!])")
# An underscore within a word means nothing, and is frequent in names.
_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
# What makes a list of a line.
_FIRST = re.compile(r"^([-+])(?=\s|$)|^(\d{1,9})([.)])(?=\s|$)")
# Keys of evaluation/<split>.json in the order in which they are shown, and their names.
_FIGURES = {
    "auc": "ROC-AUC",
    "pr_auc": "PR-AUC",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "ece": "expected calibration error",
    "brier": "Brier score",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "r2": "R²",
    "pearson": "correlation",
    "bias": "bias (predicted minus true)",
    "dice": "Dice, mean over classes",
}


def facts(
    folder: RunFolder, model: keras.Model, written: Mapping[str, Mapping[str, Any]], licence: str | None
) -> dict[str, Any]:
    """Return the content of the card as JSON values.

    Raises:
        RunError: a file of the run is missing or damaged.
    """
    config = record.load_config(folder)
    ran, result = RunRecord.read(folder.run), record.read_json(folder.result)
    shards = _shards(config, ran)
    covariates = ran.covariates or {}
    source = shards.source if shards else ran.shards.source
    return {
        "name": folder.path.resolve().name,
        "cingulum": ran.cingulum,
        "packages": ran.packages,
        "written": record.now(),
        "licence": licence,
        "task": {**ran.task.model_dump(mode="json"), "classes": list(ran.class_names)},
        "label_name": ran.shards.label_name,
        "network": {
            "name": config.model.name,
            "width": config.model.width,
            "options": config.model.options,
            "parameters": int(model.count_params()),
            "inputs": [
                {"name": tensor.name, "shape": list(tensor.shape), "dtype": "float32"}
                for tensor in model.inputs
            ],
            "output": list(model.output.shape),
            "needs_import": _foreign_modules(model),
            "weights_sha256": result.get("best_weights_sha256"),
        },
        "covariates": covariates.get("columns", []),
        "preprocessing": ran.preprocessing,
        "data": {**_data(shards, ran), "reservation": leaks.reservation(config.data.leaks)},
        "phantom": None if source is None else "phantom" in source.lower(),
        "training": _training(config, ran, result),
        "test": _test(folder),
        "formats": {name: dict(about) for name, about in written.items()},
    }


def markdown(content: Mapping[str, Any]) -> str:
    """Render the card as Markdown."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trainer.export"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - it is Markdown, for which `escaped` escapes
        finalize=escaped,
    )
    environment.filters["code"] = code_span
    return environment.get_template("model_card.md.j2").render(
        **content, figures=figures(content["test"]) if content["test"] else []
    )


def escaped(value: Any) -> Any:
    """Escape a value for Markdown text, on one line; numbers, and `Markup` (Markdown already), stay as they
    are.
    """
    if isinstance(value, Markup | int | float):
        return value
    line = " ".join(str(value).split()) if "\n" in str(value) else str(value)
    escaped = _UNDERSCORE.sub(r"\\_", _INSIDE.sub(r"\\\1", line))
    return Markup(_FIRST.sub(lambda found: re.sub(r"([-+.)])$", r"\\\1", found.group()), escaped))  # noqa: S704


def code_span(value: Any) -> Markup:
    """Return a value as a code span, whatever backticks it contains."""
    line = " ".join(str(value).split()) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if "`" in (line[0], line[-1]) else ""
    return Markup(f"{fence}{space}{line}{space}{fence}")  # noqa: S704


def figures(test: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return name, value and 95 % interval of each figure of evaluation/test.json, as text."""
    rows = [_row(name, test, key) for key, name in _FIGURES.items() if _is_number(test.get(key))]
    for label, about in test.get("per_class", {}).items():
        rows += [
            _row(f"{name}: {label}", about, key) for key, name in (("dice", "Dice"), ("hd95", "HD95, mm"))
        ]
    return rows


def _row(name: str, figures_of: Mapping[str, Any], key: str) -> dict[str, str]:
    value, bounds = figures_of.get(key), figures_of.get(f"{key}_interval")
    has_one = _is_number(value) and f"{key}_interval" in figures_of
    return {
        "name": name,
        "value": f"{value:.3f}" if _is_number(value) else "unknown",
        "interval": f"{bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else TOO_FEW if has_one else "",
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shards(config: RunConfig, ran: RunRecord) -> ShardSet | None:
    """The data that the run was trained on, where they are at hand."""
    try:
        shards = ShardSet.open(config.data.shards)
    except InputError:
        return None
    return shards if shards.content_hash == ran.shards.content_hash else None


def _data(shards: ShardSet | None, ran: RunRecord) -> dict[str, Any]:
    section: dict[str, Any] = {
        "content_hash": ran.shards.content_hash,
        "source": shards.source if shards else ran.shards.source,
        "known": shards is not None,
        "splits": {},
    }
    for name, rows in ran.split.items():
        volumes = [shards.volumes[row] for row in rows] if shards else []
        section["splits"][name] = {"images": len(rows), **(_people(volumes) if shards else {})}
    return section


def _people(volumes: Sequence[Volume]) -> dict[str, Any]:
    ages = np.array([volume.age for volume in volumes if volume.age is not None], np.float64)
    return {
        "subjects": len({volume.subject for volume in volumes}),
        "labels": _counts(volume.label for volume in volumes),
        "sexes": _counts(volume.sex for volume in volumes),
        "sites": _counts(volume.site for volume in volumes),
        "age": {
            "known": len(ages),
            "mean": round(float(ages.mean()), 2),
            "sd": round(float(ages.std(ddof=1)), 2) if len(ages) > 1 else None,
            "lowest": float(ages.min()),
            "highest": float(ages.max()),
        }
        if len(ages)
        else None,
    }


def _counts(values: Any) -> dict[str, int]:
    return dict(sorted(Counter("unknown" if value is None else str(value) for value in values).items()))


def _test(folder: RunFolder) -> dict[str, Any] | None:
    """The figures of the test split; None without one."""
    stored = folder.evaluation / "test.json"
    if not stored.is_file():
        return None
    return dict(comparison.stored_metrics(folder, "test", record.read_json(stored)))


def _training(config: RunConfig, ran: RunRecord, result: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "epochs": result.get("epochs"),
        "best_epoch": (result.get("best") or {}).get("epoch"),
        "other_epoch": record.other_epoch(result),
        "steps": result.get("steps"),
        "ranks": ran.world_size,
        "gpus": sorted({name for rank in ran.gpus for name in rank or ()}),
        "global_batch": config.train.global_batch,
        "optimizer": config.train.optimizer.model_dump(mode="json"),
        "schedule": config.train.schedule.name,
        "precision": config.train.precision,
        "augmentation": phrases(config.data.augment.model_dump()),
        "seed": config.train.seed,
    }


def _foreign_modules(model: keras.Model) -> list[str]:
    """Modules to import before Keras can open the model: those of layers that are not Keras' own."""
    modules = {type(layer).__module__ for layer in model._flatten_layers(include_self=False)}
    return sorted(name for name in modules if not name.startswith("keras."))
