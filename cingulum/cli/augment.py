"""`cingulum augment`: show a run's augmentation of a volume."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cingulum.cli.options import Shards

if TYPE_CHECKING:
    from trainer.data.shards.shards import ShardSet
    from trainer.report.augmentation_sheet import SheetRow


def augment(
    shards: Shards,
    config: Annotated[Path, typer.Argument(help="YAML file of a run.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes, such as data.augment.preset=strong.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Subject to draw. Default: the first.")] = None,
    samples: Annotated[int, typer.Option(min=1, max=16, help="Augmented versions of the volume.")] = 4,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture, as PNG.")] = Path(
        "augment.png"
    ),
    outlines: Annotated[
        bool, typer.Option("--outlines", help="Draw the outlines of the label maps.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was drawn, as JSON.")] = False,
) -> None:
    """Draw a sheet of three planes: each change of CONFIG's data.augment alone, then all of them together.

    A change alone happens to every version; together they happen as often as CONFIG says, and are what the
    first epochs of its training see. Of several contrasts, the first is drawn.

    \b
    Example:
      cingulum augment shards/phantom run.yaml data.augment.preset=strong -o sheet.png
    """
    import json

    import numpy as np

    from trainer import atomic
    from trainer import config as configuration
    from trainer.config.augment import active
    from trainer.data.shards.shards import ShardSet
    from trainer.errors import ConfigError
    from trainer.report import augmentation_sheet

    run = configuration.load(config, overrides or [])
    changes = run.data.augment
    if changes.is_idle:
        raise ConfigError(
            f"{config}: data.augment changes nothing.",
            cure="Give it a preset, such as data.augment.preset=standard, or changes of its own.",
        )
    shard_set = ShardSet.open(shards)
    row = _row(shard_set, subject)
    volume = shard_set.read(row).astype(np.float32)
    label_map = shard_set.read_map(row) if outlines else None
    made = augmentation_sheet.rows(
        volume,
        label_map,
        changes,
        seed=run.train.seed,
        sample=row,
        samples=samples,
        voxel_mm=shard_set.voxel_size,
    )
    name = shard_set.volumes[row].subject
    title = f"{name}, seed {run.train.seed}"
    picture = augmentation_sheet.sheet(title, volume, label_map, made, shard_set.voxel_size)
    output.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(output, picture)
    if as_json:
        document = {
            "subject": name,
            "row": row,
            "seed": run.train.seed,
            "picture": str(output),
            "settings": active(changes.model_dump(mode="json")),
            "drawn": {one.name: one.told for one in made},
            "milliseconds": {one.name: _milliseconds(one) for one in made},
        }
        typer.echo(json.dumps(document, indent=1))
        return
    width = max(len(one.name) for one in made)
    for one in made:
        typer.echo(f"{one.name.replace('_', ' '):<{width}}  {_milliseconds(one):7.1f} ms per volume")
    typer.echo(f"{output}: {samples} versions of {name}")


def _milliseconds(row: SheetRow) -> float:
    """Return the median; the first version also includes one-time setup."""
    import statistics

    return round(1000 * statistics.median(row.seconds), 2)


def _row(shard_set: ShardSet, subject: str | None) -> int:
    """Return the row of the subject's first volume in the set."""
    import difflib

    from trainer.errors import InputError, typed

    subjects: list[Any] = [volume.subject for volume in shard_set.volumes]
    if subject is None:
        return 0
    if subject not in subjects:
        close = difflib.get_close_matches(subject, subjects, n=1) or subjects[:1]
        raise InputError(
            f"{shard_set.path}: has no subject {subject!r}.",
            cure=f"There is {close[0]!r}, for example; all: cingulum inspect {typed(shard_set.path)} --json",
        )
    return subjects.index(subject)
