"""Commands about data: phantoms, and what is in a shard set or on a host's scratch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cingulum.cli.options import Shards


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
        pairs = duplicates(shard_set, progress=counting.show)
    if as_json:
        listed = [leak.to_json() for leak in pairs]
        typer.echo(json.dumps({"path": str(shards), "ok": not pairs, "leaks": listed}, indent=1))
    else:
        for leak in pairs:
            typer.echo(str(leak))
        if pairs:
            cure = "Remove one of each pair, or give both the same subject name, and import again."
            typer.echo(cure, err=True)
        else:
            typer.echo(f"{shards}: no image is there under two names")
    return 2 if pairs else 0


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
    from trainer.data.loading.node_scratch import ScratchFolder

    place = ScratchFolder.find(folder)
    contents = place.contents(clean=clean)
    if as_json:
        copies = [
            {
                "content_hash": copy.path.name,
                "bytes": copy.nbytes,
                "whole": copy.whole,
                "in_use": copy.in_use,
                "removed": copy.removed,
            }
            for copy in contents
        ]
        typer.echo(json.dumps({"path": str(place.ours), "copies": copies}, indent=1))
        return 0
    for copy in contents:
        state = "removed" if copy.removed else "in use" if copy.in_use else "not in use"
        what = "" if copy.whole else "  half made"
        typer.echo(f"{copy.path.name}  {byte_sizes.as_text(copy.nbytes):>10}  {state}{what}")
    if not contents:
        typer.echo(f"{place.ours}: no copies (the place is {place.chosen_by})")
    return 0


def phantom(
    out: Annotated[
        Path, typer.Argument(help="Folder to make; an unfinished cohort of the same kind is completed.")
    ],
    subjects: Annotated[int, typer.Option(help="Number of people.")] = 100,
    size: Annotated[int, typer.Option(help="Voxels along each edge; the cube is 212 mm wide.")] = 96,
    gap: Annotated[
        float, typer.Option(help="Scale of the disease effect; 0: the groups do not differ.")
    ] = 1.5,
    seed: Annotated[int, typer.Option(help="Seed: another one gives other people.")] = 0,
    groups: Annotated[str, typer.Option(help="Diagnoses that take part, in rotation.")] = "AD,NC,sMCI,pMCI",
    contrasts: Annotated[str, typer.Option(help="Images of each person: T1w, or T1w,T2w.")] = "T1w",
    disease: Annotated[
        str, typer.Option(help="Where age and disease take tissue: regional, as published, or diffuse.")
    ] = "regional",
    sites: Annotated[
        Literal["fair", "telling"],
        typer.Option(help="Who is scanned where: anybody anywhere, or groups at sites that tell them."),
    ] = "fair",
    layout: Annotated[
        Literal["bids", "adni", "dicom", "ixi", "oasis", "raw"],
        typer.Option(
            help="Besides BIDS: an archive's layout and tables too, in OUT/sourcedata; raw: scans with a "
            "skull, in random poses, for --prepare linear."
        ),
    ] = "bids",
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Make a BIDS folder of phantoms: synthetic brains with ages, diagnoses and tissue maps.

    The same arguments give the same files, byte for byte, whatever the number of cores. After a stop, the
    same command goes on.

    \b
    Example:
      cingulum phantom data/phantom --subjects 100 --size 96 --gap 1.5 --seed 1
    """
    import json
    import time

    from trainer.data.phantom.cohort import make_cohort
    from trainer.progress import Counting

    began = time.monotonic()
    with Counting("making", "phantoms") as counting:
        outcome = make_cohort(
            out,
            subjects,
            size,
            gap,
            seed,
            workers,
            counting.show,
            groups=_names(groups),
            contrasts=_names(contrasts),
            pattern=disease,
            sites=sites,
        )
    if layout != "bids":
        from trainer.data.phantom import archives
        from trainer.data.phantom.people import draw

        people = [draw(seed, number, _names(groups), sites) for number in range(subjects)]
        more = {"workers": workers} if layout == "raw" else {}
        archives.WRITERS[layout](out, people, _names(contrasts), **more)
    seconds = round(time.monotonic() - began, 2)
    if as_json:
        typer.echo(
            json.dumps({"path": str(out), "subjects": subjects, "made": outcome.made, "seconds": seconds})
        )
    elif outcome.made:
        typer.echo(
            f"{out}: {subjects} phantoms of {size}³ voxels, {outcome.made} made now, in {seconds:.0f} s"
        )
    else:
        typer.echo(f"{out}: all {subjects} phantoms are there already")


def _names(listed: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in listed.split(",") if name.strip())
