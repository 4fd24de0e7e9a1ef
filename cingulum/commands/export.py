"""`cingulum export`: a finished run's network for other programs, with its model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cingulum.commands.options import AllowCode


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder, such as runs/demo.")],
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format", help="keras (always written), savedmodel, onnx; may be given several times."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; default: RUN/export.")] = None,
    licence: Annotated[str | None, typer.Option(help="Licence of the weights, for the model card.")] = None,
    allow_code: AllowCode = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the model card as JSON.")] = False,
) -> None:
    """Write a network as Keras file, SavedModel or ONNX, with a model card.

    Each file is loaded back and compared with the network on random volumes before it gets its name.

    \b
    Example:
      cingulum export runs/demo --format savedmodel --format onnx --out exported
    """
    import json

    from trainer.quiet import import_tensorflow
    from trainer.run_folder import resuming
    from trainer.telling import tell

    resuming.open_finished(run, note=tell)  # before TensorFlow is loaded, which takes seconds
    import_tensorflow()
    from trainer import export as exports

    folder = out if out is not None else run / "export"
    said = exports.export(run, formats or [], folder, licence, allow_code or ())
    if as_json:
        typer.echo(json.dumps(said, indent=2))
        return
    for about in said["formats"].values():
        typer.echo(
            f"{folder / about['file']}: the same outputs (largest difference {about['difference']:.1e})"
        )
    if (folder / "MODEL_CARD.md").is_file():
        typer.echo(f"{folder / 'MODEL_CARD.md'}")
