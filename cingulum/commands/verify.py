"""`cingulum verify`: check every byte of a shard set."""

from __future__ import annotations

from typing import Annotated

import typer

from cingulum.commands.options import Shards


def verify_shards(
    shards: Shards,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> int:
    """Check every checksum of a shard set, and that HDF5 reads the same volumes. Exit code 2 if damaged.

    \b
    Example:
      cingulum verify shards/phantom
    """
    import json

    from trainer.data.shards.verify import verify
    from trainer.errors import typed
    from trainer.progress import Counting

    with Counting("verifying", "volumes") as counting:
        problems = verify(shards, counting.show)
    if as_json:
        fields = ("shard", "volume", "subject", "what")
        listed = [{field: getattr(problem, field) for field in fields} for problem in problems]
        typer.echo(json.dumps({"path": str(shards), "ok": not problems, "problems": listed}, indent=1))
    else:
        for problem in problems:
            typer.echo(str(problem))
        if problems:
            typer.echo(f"Make it anew: cingulum import SOURCE {typed(shards)} --overwrite", err=True)
        else:
            typer.echo(f"{shards}: whole and undamaged")
    return 2 if problems else 0
