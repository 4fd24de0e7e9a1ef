"""`cingulum evaluate`: metrics of a finished run on one of its splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cingulum.commands.options import AllowCode, RunOrFolds, Split, SplitName


def evaluate(
    run: RunOrFolds,
    split: Split = SplitName.test,
    allow_code: AllowCode = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> int:
    """Evaluate a finished run on its test, validation or training scans, and write the predictions.

    Writes RUN/evaluation/SPLIT.csv and .json. Under mpirun the ranks share the work. Of a cross-validation's
    folder it shows the figures of all scans, each predicted by the network not trained on its subject.

    Intervals are by subject, however many scans each has.

    \b
    Example:
      cingulum evaluate runs/demo --split validation
    """
    import json

    from trainer.ranks import launch, starting
    from trainer.run_folder import crossval_folder, resuming

    if crossval_folder.is_crossval(run):
        if launch.is_first():  # nothing is computed, and mpirun's other processes would say the same
            _show_crossval(run, split, as_json=as_json)
        return 0
    if launch.expected_size() == 1:
        resuming.open_finished(run)  # a wrong folder is refused before TensorFlow is loaded
    world = starting.init()

    from trainer.ranks.agreement import together
    from trainer.report import against_volumes
    from trainer.runs.finished_run import evaluate_run
    from trainer.telling import tell

    def body() -> int:
        metrics = evaluate_run(run, split.value, world, allow_code or ())
        if not world.is_main:
            return 0
        resuming.open_finished(run, note=tell)
        if as_json:
            typer.echo(json.dumps(metrics, indent=2))
            return 0
        for line in lines_of(metrics):
            typer.echo(line)
        linear = against_volumes.linear_line(run, metrics) if split is SplitName.test else None
        if linear is not None:
            typer.echo(linear)
        typer.echo(f"predictions: {run / 'evaluation' / split.value}.csv")
        return 0

    return together(world, body)


def _show_crossval(folder: Path, split: SplitName, *, as_json: bool) -> None:
    """Show crossval.json; compute nothing."""
    import json

    from cingulum.commands.crossval import readable
    from trainer.errors import RunError, typed
    from trainer.run_folder import crossval_folder

    found = crossval_folder.summary(folder)
    if split is not SplitName.test:
        one = crossval_folder.runs(folder)[0]
        raise RunError(
            f"{folder}: a cross-validation is judged on subjects held out: the test split of each fold.",
            cure=f"For one fold: cingulum evaluate {typed(one)} --split {split.value}",
        )
    typer.echo(json.dumps(found, indent=2) if as_json else readable(folder, found))


def lines_of(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Return a line for each metric: four digits, and the 95 % interval where it has one."""
    from trainer.metrics.subjects import TOO_FEW

    for name, value in metrics.items():
        if name.endswith("_interval"):
            continue
        name = "scans" if name == "n" else name
        told = "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
        if value is not None and f"{name}_interval" in metrics:
            bounds = metrics[f"{name}_interval"]
            told += f"  (95 % interval {bounds[0]:.4f} to {bounds[1]:.4f})" if bounds else f"  ({TOO_FEW})"
        yield f"{name.replace('_', ' '):<18}  {told}"
