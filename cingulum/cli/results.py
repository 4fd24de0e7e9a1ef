"""`cingulum report`, `compare` and `diagnose`: what runs have reached, and where their time went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cingulum.cli.options import Split, SplitName

if TYPE_CHECKING:
    from trainer.telemetry.verdict import Verdict


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="A run folder, such as runs/demo; a cross-validation; or runs."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of a comparison's report. Default: `comparison` beside the first run."),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the web browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print where it is as JSON.")] = False,
) -> None:
    """Write report.html, one self-contained file, and figures/ beside it (PNG and CSV).

    Of a run or a cross-validation it goes into that folder; a run writes it when it ends, and this makes it
    anew, also of a run that is not finished. Several runs are compared: what differs in their
    configurations, their figures with intervals, their curves over each other, the p-value of a difference.

    \b
    Example:
      cingulum report runs/demo
      cingulum report runs/first runs/second --out runs/first-or-second
    """
    from trainer import report as reports
    from trainer.errors import RunError
    from trainer.telling import tell

    if len(runs) > 1:
        path = reports.write_comparison(runs, out or runs[0].parent / "comparison")
    elif out is not None:
        raise RunError("--out is for a comparison of runs.", cure="A run's report goes into its folder.")
    else:
        path = reports.write(runs[0], note=tell)
    typer.echo(json.dumps({"report": str(path)}) if as_json else f"report: {path}")
    if open_it:
        typer.launch(path.resolve().as_uri())


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
    summary = {"split": split.value, "notes": notes, **comparison.compare(chosen)}
    if as_json:
        typer.echo(json.dumps(summary, indent=1))
    else:
        _show(summary)


def _show(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    console.print(
        f"{summary['task']}, {summary['split']} split, {summary['n']} scans of {summary['subjects']} subjects"
    )
    for note in summary["notes"]:
        console.print(f"note: {note}")
    figures = Table("figure (95 % interval)", *(run["run"] for run in summary["runs"]))
    for name in SHOWN[summary["task"]]:
        figures.add_row(_title(name), *(_figure(run["metrics"], name) for run in summary["runs"]))
    if summary["task"] == "segmentation":
        for label in summary["classes"]:
            of_class = [run["metrics"]["per_class"][label] for run in summary["runs"]]
            for name in ("dice", "hd95"):
                unit = " (mm)" if name == "hd95" else ""
                figures.add_row(f"{_title(name)} {label}{unit}", *(_figure(one, name) for one in of_class))
    console.print(figures)
    corrected = len(summary["runs"]) > 2
    pairs = Table("difference", "(95 % interval)", "p", *(["p, Holm"] * corrected), "test")
    for pair in summary["comparisons"]:
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


def diagnose(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/demo, or a cross-validation's.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Show where a run's time goes: computing, the network, a server, the input, or a slow rank.

    With the figures behind it, what fixing it would gain at most, and settings to try. Reads
    RUN/telemetry and changes nothing; the run may still go on. Of a cross-validation's folder, each of its
    runs is judged. docs/explanation/where-time-goes.md has the rules.

    \b
    Example:
      cingulum diagnose runs/demo
    """
    import json

    from trainer.run_folder import crossval_folder
    from trainer.telemetry import evidence

    if crossval_folder.is_crossval(run):
        _diagnose_folds(run, as_json=as_json)
        return
    found = evidence.diagnose(run)
    typer.echo(json.dumps({"run": str(run), **found.json()}, indent=1) if as_json else told(run, found))


def _diagnose_folds(folder: Path, *, as_json: bool) -> None:
    """Return the verdict of each run of a cross-validation, or why it has none.

    Raises:
        RunError: no run has recorded its time.
    """
    import json

    from trainer.errors import RunError
    from trainer.run_folder import crossval_folder
    from trainer.telemetry import evidence

    judged, without = {}, {}
    for run in crossval_folder.runs(folder):
        try:
            judged[run] = evidence.diagnose(run)
        except RunError as error:
            without[run] = error
    if not judged:
        first = next(iter(without.values()))
        raise RunError(f"{folder}: none of its runs can be judged: {first.message}", cure=first.cure)
    if as_json:
        found = [{"run": str(run), **verdict.json()} for run, verdict in judged.items()]
        why = [{"run": str(run), "why": error.message} for run, error in without.items()]
        typer.echo(json.dumps({"crossval": str(folder), "runs": found, "without": why}, indent=1))
        return
    parts = [told(run, verdict) for run, verdict in judged.items()]
    typer.echo("\n\n".join([*parts, *(error.message for error in without.values())]))


def told(run: Path, verdict: Verdict) -> str:
    """Format the verdict for a terminal."""
    from trainer.telemetry.findings import times

    lines = [f"{run}: {verdict.summary}", "evidence:", *(f"  {sentence}" for sentence in verdict.evidence)]
    lines.append("time saved at most if this one bottleneck were removed (these overlap):")
    for name, gain in sorted(verdict.gains.items(), key=lambda item: -item[1]):
        lines.append(f"  {name:<10}{gain:>5.0%} of a step, {times(gain)} as fast")
    if verdict.settings:
        lines.append("to try, in a new run (name=...):")
    for setting in verdict.settings:
        lines.append(f"  {setting.words}  (now {setting.now_words}): {setting.why}")
    if not verdict.settings:
        lines.append(
            "to try: more ranks, or a quicker device; no setting would gain much"
            if verdict.is_well
            else "to try: no setting of the configuration fixes this"
        )
    return "\n".join(lines)
