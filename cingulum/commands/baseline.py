"""`cingulum baseline`: the score of age, sex, brightness and tissue volumes alone."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from cingulum.commands.options import Shards


class Target(str, Enum):
    """A number to predict."""

    age = "age"
    label = "label"


def baseline(
    shards: Shards,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Labels to tell apart, such as NC,AD; of two, the second is the positive one. Default: all."
        ),
    ] = None,
    target: Annotated[
        Target | None, typer.Option(help="Predict this number instead of telling classes apart.")
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds, as data.split.seed.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Measure what simple features and a linear model reach, as a reference for a network's score.

    Age and sex; tissue volumes, where the set has them; moments and percentiles of the voxels; all together.
    Cross-validated over the folds that a network has with data.split.folds and data.split.seed.

    \b
    Example:
      cingulum baseline shards/phantom --classes NC,AD
      cingulum baseline shards/phantom --target age
    """
    import json

    from trainer.baseline import scores
    from trainer.data.shards.shards import ShardSet
    from trainer.errors import InputError
    from trainer.progress import Counting

    if classes is not None and target is not None:
        raise InputError("--classes and --target exclude each other.", cure="Give one of them.")
    names = None if classes is None else [name.strip() for name in classes.split(",") if name.strip()]
    shard_set = ShardSet.open(shards)
    with Counting("reading", "volumes") as counting:
        if target is None:
            found = scores.of_classes(shard_set, names, folds, seed, counting.show)
        else:
            found = scores.of_numbers(shard_set, target.value, folds, seed, counting.show)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    classes = found["task"] == "classification"
    console = Console(highlight=False, markup=False)
    what = " vs ".join(found["classes"]) if classes else found["target"]
    scans = f"{found['volumes']} scans of {found['subjects']} subjects"
    console.print(f"{what}: {scans}, {found['folds']} folds, seed {found['seed']}")
    shown = ("auc", "balanced_accuracy") if classes else ("mae", "r2")
    titles = {"auc": "AUC", "balanced_accuracy": "balanced accuracy", "mae": "mean error", "r2": "R²"}
    table = Table("features", "columns", *(titles[name] for name in shown), box=None, pad_edge=False)
    table.add_row("chance", "", *(_figure(found["chance"], name, interval=False) for name in shown))
    for name, group in found["groups"].items():
        table.add_row(name, str(len(group["features"])), *(_figure(group, figure) for figure in shown))
    console.print(table)
    for name, reason in found["left_out"].items():
        console.print(f"without {name}: {reason}")
    console.print("In parentheses: 95 % intervals, by subject.")


def _figure(metrics: dict[str, Any], name: str, *, interval: bool = True) -> str:
    from trainer.metrics.subjects import TOO_FEW

    value, bounds = metrics[name], metrics.get(f"{name}_interval")
    if value is None:
        return "-"
    if not interval or f"{name}_interval" not in metrics:
        return f"{value:.2f}"
    if not bounds:
        return f"{value:.2f} ({TOO_FEW})"
    return f"{value:.2f} ({bounds[0]:.2f} to {bounds[1]:.2f})"
