"""`cingulum verify`: is every byte of a shard set as it was written?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify_shards(
    shards: Annotated[Path, typer.Argument(help="Folder of the shard set.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> int:
    """Check every checksum of a shard set, and that HDF5 reads the same volumes. Exit code 2 if damaged.

    \b
    Example:
      cingulum verify shards/phantom
    """
    import json

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from trainer.data.verify import verify

    columns = (TextColumn("volumes"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:

        def show(done: int, total: int) -> None:
            # The bar appears once there is something to check.
            bar = progress.task_ids[0] if progress.task_ids else progress.add_task("volumes")
            progress.update(bar, completed=done, total=total)

        problems = verify(shards, show)
    if as_json:
        fields = ("shard", "volume", "subject", "what")
        listed = [{field: getattr(problem, field) for field in fields} for problem in problems]
        typer.echo(json.dumps({"path": str(shards), "ok": not problems, "problems": listed}, indent=1))
    else:
        for problem in problems:
            typer.echo(str(problem))
        if problems:
            typer.echo(f"Make it anew: cingulum import SOURCE {shards} --overwrite", err=True)
        else:
            typer.echo(f"{shards}: whole and undamaged")
    return 2 if problems else 0
