"""`cingulum phantom`: make a cohort of synthetic brains to try everything with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


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
    layout: Annotated[
        Literal["bids", "adni"],
        typer.Option(help="adni: also in ADNI's layout, with its tables, in OUT/sourcedata."),
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

    from trainer.data.phantom import adni
    from trainer.data.phantom.cohort import make_cohort
    from trainer.data.phantom.people import draw
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
        )
    if layout == "adni":
        adni.write(out, [draw(seed, number, _names(groups)) for number in range(subjects)])
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
