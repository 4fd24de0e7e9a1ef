"""`cingulum compare`: compare runs on the same scans, by subject."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cingulum.commands.options import Split, SplitName

# Figures in a terminal; --json has them all.
SHOWN = {
    "classification": (
        "accuracy",
        "balanced_accuracy",
        "sensitivity",
        "specificity",
        "auc",
        "pr_auc",
        "brier",
        "ece",
    ),
    "regression": ("mae", "rmse", "r2", "pearson", "bias"),
    "segmentation": ("dice",),
}


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Two or more finished run folders.")],
    split: Split = SplitName.test,
    common: Annotated[
        bool, typer.Option("--common", help="Leave out scans that not all runs were judged on.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Compare finished runs on the same scans: figures with intervals, differences with p-values.

    Reads RUN/evaluation/SPLIT.csv and changes nothing. Intervals and tests are by subject, however many scans
    each has: p is how often the figures would differ as much if each subject's answers of the two runs were
    exchanged by a coin; for accuracy this is McNemar's test. With more than two runs p is also shown
    corrected for the number of pairs (Holm). docs/explanation/evaluation.md has the formulas.

    \b
    Example:
      cingulum compare runs/resnet18 runs/resattnet18
    """
    import json

    from trainer.errors import RunError
    from trainer.metrics import comparison, tables

    if len(runs) < 2:
        raise RunError("A comparison needs two or more runs, not one.", cure="cingulum compare RUN RUN")
    read = [tables.read(run, split.value) for run in runs]
    chosen, notes = comparison.aligned(read, common=common)
    found = {"split": split.value, "notes": notes, **comparison.compare(chosen)}
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    console.print(
        f"{found['task']}, {found['split']} split, {found['n']} scans of {found['subjects']} subjects"
    )
    for note in found["notes"]:
        console.print(f"note: {note}")
    figures = Table("figure (95 % interval)", *(run["run"] for run in found["runs"]))
    for name in SHOWN[found["task"]]:
        figures.add_row(_title(name), *(_figure(run["metrics"], name) for run in found["runs"]))
    if found["task"] == "segmentation":
        for label in found["classes"]:
            of_class = [run["metrics"]["per_class"][label] for run in found["runs"]]
            for name in ("dice", "hd95"):
                unit = " (mm)" if name == "hd95" else ""
                figures.add_row(f"{_title(name)} {label}{unit}", *(_figure(one, name) for one in of_class))
    console.print(figures)
    corrected = len(found["runs"]) > 2
    pairs = Table("difference", "(95 % interval)", "p", *(["p, Holm"] * corrected), "test")
    for pair in found["comparisons"]:
        pairs.add_row(
            f"{_title(pair['metric'])}: {pair['first']} - {pair['second']}",
            _figure(pair, "difference", pair["interval"], sign="+"),
            _p(pair["p_value"]),
            *([_p(pair["p_holm"])] * corrected),
            pair["test"],
        )
    console.print(pairs)


def _title(name: str) -> str:
    short = {"auc": "AUC", "pr_auc": "PR-AUC", "ece": "ECE", "mae": "MAE", "rmse": "RMSE", "r2": "R2"}
    return short.get(name, "HD95" if name == "hd95" else name.replace("_", " ").capitalize())


def _figure(values: dict[str, Any], name: str, interval: list[float] | None = None, sign: str = "") -> str:
    """Format a figure with three digits and its interval on the next line; a dash for an undefined one."""
    from trainer.metrics.subjects import TOO_FEW

    if values.get(name) is None:
        return "-"
    bounds = interval or values.get(f"{name}_interval")
    below = f"\n{bounds[0]:{sign}.3f} to {bounds[1]:{sign}.3f}" if bounds else ""
    if not bounds and (f"{name}_interval" in values or "interval" in values):
        below = f"\n{TOO_FEW}"
    return f"{values[name]:{sign}.3f}{below}"


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"
