"""`cingulum predict`: what a finished run's network says about images it has never seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def predict(
    run: Annotated[Path, typer.Argument(help="Run folder, such as runs/demo.")],
    images: Annotated[list[Path], typer.Argument(help="Images as they come from the scanner.")],
    output: Annotated[Path | None, typer.Option(help="Write a CSV table here instead of showing it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the predictions as JSON.")] = False,
) -> None:
    """Predict the class of raw images, prepared as the run's training images were.

    \b
    Example:
      cingulum predict runs/demo scans/*.nii.gz --output table.csv
    """
    import csv
    import json

    from trainer.errors import RunError
    from trainer.progress import Counting
    from trainer.quiet import import_tensorflow
    from trainer.record import RunFolder

    folder = RunFolder.open_finished(run)
    if output is not None and not output.parent.is_dir():
        raise RunError(f"{output}: there is no folder {output.parent}.", cure=f"mkdir -p {output.parent}")
    if output is not None and output.is_dir():
        raise RunError(f"{output}: is a folder.", cure="Name a file, such as predictions.csv")
    import_tensorflow()
    from trainer.atomic import write_by
    from trainer.prediction import Predictor

    predictor = Predictor.open(folder)
    predictor.check_readable(images)
    rows = []
    with Counting("predicting", "images") as counting:
        counting.show(0, len(images))
        for image in images:
            rows.append(predictor.row(image))
            counting.show(len(rows), len(images))
    if output is not None:

        def write(beside: Path) -> None:
            with beside.open("w", newline="", encoding="utf-8") as file:
                table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                table.writeheader()
                table.writerows(rows)

        write_by(output, write)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif output is None:
        wide = max(len(row["image"]) for row in rows)
        for row in rows:
            shares = "  ".join(f"{k[2:]} {v:.3f}" for k, v in row.items() if k.startswith("p_"))
            typer.echo(f"{row['image']:<{wide}}  {row['predicted']:<8}  {shares}")
    else:
        typer.echo(f"{output}: {len(rows)} predictions")
