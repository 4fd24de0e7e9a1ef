"""`cingulum inspect`: the content of a shard set."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cingulum.commands.options import Shards


def inspect_shards(
    shards: Shards,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the content of a shard set: shape, type, layout, codec, size, label maps, labels, ages, subjects.

    Looks at the index and the shards' sizes; `cingulum verify` looks at every byte.

    \b
    Example:
      cingulum inspect shards/phantom
    """
    import json

    from trainer.data.shards.shards import ShardSet
    from trainer.data.shards.summary import summary

    content = summary(ShardSet.open(shards))
    if as_json:
        typer.echo(json.dumps(content, indent=1))
    else:
        _show(content)


def _show(content: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    facts = Table.grid(padding=(0, 2))
    size, decoded = content["bytes"] / 2**20, content["bytes_decoded"] / 2**20
    voxel = " x ".join(f"{edge:g}" for edge in content["voxel_size"])
    for name, fact in (
        ("shard set", content["path"]),
        ("from", content["source"]),
        ("volumes", f"{content['volumes']} of {content['subjects']} subjects, in {content['shards']} shards"),
        ("shape", f"{' x '.join(map(str, content['shape']))} (D x H x W x C), {content['dtype']}"),
        *([("contrasts", ", ".join(content["contrasts"]))] if content["contrasts"] else []),
        *([("label maps", ", ".join(content["maps"]))] if content["maps"] else []),
        ("voxel size", f"{voxel} mm"),
        ("layout", f"bricks of {content['bricks']} voxels" if content["bricks"] else "whole volumes"),
        (
            "size",
            f"{size:.1f} MiB as {content['codec']}, {decoded:.1f} MiB decoded "
            f"({content['compression']:.2f} : 1)",
        ),
        ("normalisation", _listed(content["normalisation"])),
        ("preprocessing", _listed({k: v for k, v in content["preprocessing"].items() if k not in _SAID})),
        ("content hash", content["content_hash"]),
    ):
        facts.add_row(name, fact)
    console.print(facts)
    people = Table(content["label_name"], "volumes", "subjects", "sex", "age: mean (range)")
    for label, group in content["labels"].items():
        sexes = ", ".join(f"{count} {sex}" for sex, count in group["sex"].items())
        age = group["age"]
        ages = f"{age['mean']:.1f} ({age['min']:g}-{age['max']:g})" if age else "unknown"
        people.add_row(label, str(group["volumes"]), str(group["subjects"]), sexes, ages)
    console.print(people)
    some = Table("row", "subject", "session", content["label_name"], "age", "sex", "source")
    for volume in content["examples"]:
        some.add_row(*("" if value is None else str(value) for value in volume.values()))
    console.print(some)
    if content["volumes"] > len(content["examples"]):
        console.print(f"and {content['volumes'] - len(content['examples'])} more")


# Parts of the recipe that have a line of their own.
_SAID = ("contrasts", "maps")


def _listed(parameters: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in parameters.items()) or "not stated"
