"""`cingulum models`: which networks there are."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def models(
    size: Annotated[int, typer.Option(help="Side of the volumes, in voxels.")] = 96,
    channels: Annotated[int, typer.Option(help="Channels of the volumes.")] = 1,
    classes: Annotated[int, typer.Option(help="Classes to tell apart.")] = 2,
    width: Annotated[
        int | None, typer.Option(help="Channels of the first stage; default: the network's own.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the networks with their parameters and options.

    \b
    Example:
      cingulum models --width 16
    """
    from rich.console import Console
    from rich.table import Table

    from trainer.quiet import import_tensorflow

    import_tensorflow()
    from trainer import models as networks

    found: list[dict[str, Any]] = []
    for name in networks.names():
        network = networks.describe(name)
        model = networks.build(name, (size, size, size, channels), classes, width=width)
        found.append(
            {
                "name": name,
                "parameters": model.count_params(),
                "width": width or network.options["width"],
                "options": network.options,
                "summary": network.summary,
            }
        )
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table("name", "parameters", "width", "what it is", box=None, pad_edge=False)
    for row in found:
        table.add_row(row["name"], f"{row['parameters']:,}", str(row["width"]), row["summary"])
    Console().print(table)
    typer.echo("Your own: 'module:function' or 'file.py:function'; see docs/how-to/add-your-own-network.md")
