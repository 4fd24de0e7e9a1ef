"""`cingulum report`: the report of a run, of a cross-validation, or of several runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


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
