"""`cingulum models`: list the networks."""

from __future__ import annotations

import contextlib
import json
from typing import Annotated, Any

import typer

from trainer.errors import ModelError


def models(
    size: Annotated[int, typer.Option(min=1, help="Side of the volumes, in voxels.")] = 96,
    channels: Annotated[int, typer.Option(min=1, help="Channels of the volumes.")] = 1,
    classes: Annotated[int, typer.Option(min=1, help="Classes to tell apart; 1 for a regression.")] = 2,
    width: Annotated[
        int | None, typer.Option(min=1, help="Channels of the first stage; default: the network's own.")
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

    rows: list[dict[str, Any]] = []
    for name in networks.names():
        network = networks.describe(name)
        rows.append(
            {
                "name": name,
                "parameters": None,
                "width": width or network.options["width"],
                "output": "voxel" if network.dense else "volume",
                "smallest": network.smallest,
                "options": network.options,
                "summary": network.summary,
                "paper": network.paper,
            }
        )
        shape = (1 if network.dimensions == 2 else size, size, size, channels)
        # Where the size does not fit this network, the others are still listed.
        with contextlib.suppress(ModelError):
            model = networks.outline(name, shape, classes, width=width, dense=bool(network.dense))
            rows[-1]["parameters"] = model.count_params()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("name", "parameters", "width", "what it is", box=None, pad_edge=False)
    for row in rows:
        parameters = "not at this size" if row["parameters"] is None else f"{row['parameters']:,}"
        table.add_row(row["name"], parameters, str(row["width"]), row["summary"])
    Console().print(table)
    typer.echo("Your own: 'module:function' or 'file.py:function'; see docs/how-to/add-your-own-network.md")
