"""`cingulum report`: make a run's report again, or of a run that still goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/demo.")],
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the web browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print where it is as JSON.")] = False,
) -> None:
    """Write RUN/report.html: curves, ROC, examples, what ran where, in one file.

    A run writes its report when it ends; this makes it anew, also of a run that is not finished.

    \b
    Example:
      cingulum report runs/demo
    """
    from trainer import report as reports

    path = reports.write(run)
    typer.echo(json.dumps({"report": str(path)}) if as_json else f"report: {path}")
    if open_it:
        typer.launch(path.resolve().as_uri())
