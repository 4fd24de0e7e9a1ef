"""`cingulum leaks`: find one person under two names in a shard set."""

from __future__ import annotations

from typing import Annotated

import typer

from cingulum.commands.options import Shards


def leaks(
    shards: Shards,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> int:
    """Find images of different subjects that are the same, or nearly so. Exit code 2 if there are any.

    Splits keep a subject's scans together, so that two subjects must not be one person. Looks at every
    volume, whatever the split; `cingulum train` does the same between its splits before the first step.

    \b
    Example:
      cingulum leaks shards/phantom
    """
    import json

    from trainer.data.shards.shards import ShardSet
    from trainer.data.splits.leaks import duplicates
    from trainer.progress import Counting

    shard_set = ShardSet.open(shards)
    with Counting("comparing", "volumes") as counting:
        found = duplicates(shard_set, progress=counting.show)
    if as_json:
        listed = [leak.to_json() for leak in found]
        typer.echo(json.dumps({"path": str(shards), "ok": not found, "leaks": listed}, indent=1))
    else:
        for leak in found:
            typer.echo(str(leak))
        if found:
            cure = "Remove one of each pair, or give both the same subject name, and import again."
            typer.echo(cure, err=True)
        else:
            typer.echo(f"{shards}: no image is there under two names")
    return 2 if found else 0
