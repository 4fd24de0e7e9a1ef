"""`cingulum scratch`: copies left by runs on this host's local scratch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def scratch(
    folder: Annotated[
        Path | None,
        typer.Argument(help="The data.scratch of the runs; default: as they find it themselves."),
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Remove every copy that is not in use.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the copies as JSON.")] = False,
) -> int:
    """List the copies of shard sets on this host's scratch (data.cache=node-local), and remove them.

    A copy that a run reads or makes now is never removed.

    \b
    Example:
      cingulum scratch --clean
    """
    import json

    from trainer import byte_sizes
    from trainer.data.loading.node_scratch import Place

    place = Place.find(folder)
    found = place.contents(clean=clean)
    if as_json:
        copies = [
            {
                "content_hash": copy.path.name,
                "bytes": copy.nbytes,
                "whole": copy.whole,
                "in_use": copy.in_use,
                "removed": copy.removed,
            }
            for copy in found
        ]
        typer.echo(json.dumps({"path": str(place.ours), "copies": copies}, indent=1))
        return 0
    for copy in found:
        state = "removed" if copy.removed else "in use" if copy.in_use else "not in use"
        what = "" if copy.whole else "  half made"
        typer.echo(f"{copy.path.name}  {byte_sizes.as_text(copy.nbytes):>10}  {state}{what}")
    if not found:
        typer.echo(f"{place.ours}: no copies (the place is {place.chosen_by})")
    return 0
