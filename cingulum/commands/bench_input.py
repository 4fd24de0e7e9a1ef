"""`cingulum bench input`: measure how long training waits for its input."""

from __future__ import annotations

from typing import Annotated

import typer

from cingulum.commands.options import Data, Figures, Measured, Model, Repeats, Steps, Threads, Volumes, Width


def bench_input(
    model: Model = "resattnet18",
    size: Annotated[int, typer.Option(help="Edge of the volumes, in voxels.", min=16, max=256)] = 96,
    volumes: Volumes = 64,
    batch: Annotated[int, typer.Option(help="Samples per step.", min=1)] = 4,
    width: Width = 8,
    steps: Steps = 10,
    repeats: Repeats = 5,
    threads: Threads = 2,
    data: Data = None,
    dry_run: Measured = False,
    as_json: Figures = False,
) -> int:
    """Measure how long training waits for batches, and the speed-up if it never did.

    Trains from shards as `cingulum train` does, and with one batch again and again, in turn.
    `input_wait_share` is the part of the time spent waiting for batches; `synthetic_gain` is how much higher
    the throughput is without input. `timeline` holds every step's time and wait.

    \b
    Example:
      cingulum bench input --json
    """
    import json

    from rich.console import Console

    from trainer.bench.loader.job import LoaderJob
    from trainer.errors import InputError

    if volumes < batch:
        raise InputError(f"--volumes {volumes}: less than a batch of {batch}.")
    if dry_run:
        typer.echo(
            f"{repeats} x {steps} steps of {model}, batches of {batch} x {size}^3, from {volumes} volumes; "
            "as many with one batch repeated; some minutes on two cores"
        )
        return 0
    from trainer.quiet import import_tensorflow

    import_tensorflow()
    from cingulum.bench import input as input_bench
    from trainer import models
    from trainer.bench.input_worker import InputJob

    models.describe(model)  # an unknown name is refused before anything is made
    job = InputJob("", model, batch, width, steps, repeats, threads)
    made = LoaderJob(folder="", size=size, volumes=volumes, batch=batch)
    with Console(stderr=True).status("starting") as status:
        figures = input_bench.measure(job, made, data, status.update)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
        return 0
    for name, title in (
        ("input_wait_share", "waiting for input"),
        ("synthetic_gain", "gain without input"),
    ):
        low, high = figures[f"{name}_min"], figures[f"{name}_max"]
        typer.echo(f"{title:20s} {figures[name]:8.2%}  (from {low:.2%} to {high:.2%})")
    machine = figures["machine"]
    typer.echo(
        f"{repeats} repeats in turn of {steps} steps, {figures['real_step_s']:.2f} s each; "
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_1min']}"
    )
    return 0
