"""`cingulum bench`: measure the speed of training, of its parts and of its input on this machine."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from cingulum.cli.bench_loader import bench_loader
from cingulum.cli.bench_scaling import bench_scaling
from cingulum.cli.options import (
    Batch,
    Data,
    Figures,
    Measured,
    Model,
    Repeats,
    Size,
    Steps,
    SyncBatchNorm,
    Threads,
    Volumes,
    Width,
)

bench = typer.Typer(
    help="Measure what training costs here: the step, the ring, placements, the loader, the input, scaling.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@bench.command("step")
def bench_step(
    model: Model = "resattnet18",
    size: Size = 96,
    batch: Batch = 4,
    width: Width = 8,
    steps: Steps = 6,
    repeats: Annotated[int, typer.Option(help="Measurements of each kind, in turn, at most.", min=1)] = 25,
    within: Annotated[
        float, typer.Option(help="End when all intervals are within this, such as 0.01: a percent.", min=0)
    ] = 0.01,
    sync_batch_norm: SyncBatchNorm = False,
    no_overhead: Annotated[bool, typer.Option("--no-overhead", help="Leave Keras' own loop out.")] = False,
    as_json: Figures = False,
) -> int:
    """Measure training steps, one thread per rank; medians of many short repeats in turn, with intervals.

    Measuring ends when all intervals are within a percent (`--within`), or after `--repeats`.

    `efficiency` is the throughput of two ranks over that of two independent copies run at once;
    `waiting_limit` what would be left of those copies if each step waited for the slower one, and nothing
    else were lost; `overhead` what our loop costs over plain Keras at one rank. All of them are in memory at
    once, five processes of 1.1 GB at the default size. At the end kinds of layers are timed with oneDNN and
    without it: TensorFlow is told to use it where that pays.

    \b
    Example:
      cingulum bench step --json
      cingulum bench step --no-overhead --repeats 140 --within 0.002
    """
    from cingulum.bench import step
    from trainer.progress import Counting

    job = _job(model, size, batch, width, steps, sync_batch_norm)
    others = [made(job) for made in step.OTHERS]
    with Counting("measuring", "blocks") as shown:
        figures = step.step(
            job,
            repeats=repeats,
            progress=shown.show,
            tell=shown.note,
            others=others,
            overhead=not no_overhead,
            within=within,
        )
    rows = [
        f"{name.replace('_', ' '):13s} {figures[name]:8.2%}  "
        f"(95 %: {figures[name + '_low']:.2%} to {figures[name + '_high']:.2%})"
        for name in ("efficiency", "waiting_limit", "overhead")
        if name in figures
    ]
    rows += [row for other in others for row in other.told(figures)]
    rows += [
        f"{kind:22s} {1000 * row['onednn_s']:8.2f} ms with oneDNN, {1000 * row['eigen_s']:8.2f} without: "
        f"{row['gain']:.1f} times (from {row['gain_min']:.1f} to {row['gain_max']:.1f})"
        for kind, row in figures["convolutions"].items()
    ]
    typer.echo(json.dumps(figures, indent=2) if as_json else _told(rows, figures))
    return 0


@bench.command("ring")
def bench_ring(
    model: Model = "resattnet18",
    size: Size = 96,
    batch: Batch = 4,
    width: Width = 8,
    steps: Steps = 30,
    repeats: Repeats = 5,
    ranks: Annotated[int, typer.Option(help="Number of ranks.", min=2)] = 2,
    sync_batch_norm: SyncBatchNorm = False,
    as_json: Figures = False,
) -> int:
    """Measure a training step with every way to reduce gradients, one thread per rank, in turn.

    \b
    Example:
      cingulum bench ring --ranks 2
    """
    from rich.console import Console

    from cingulum.bench import step

    job = _job(model, size, batch, width, steps, sync_batch_norm)
    with Console(stderr=True).status("starting") as status:
        figures = step.ring(job, ranks=ranks, repeats=repeats, progress=status.update)
    rows = [
        f"{name:32s} {1000 * time['median']:8.1f} ms  "
        f"(from {1000 * time['median_min']:.1f} to {1000 * time['median_max']:.1f})"
        for name, time in figures["step_s"].items()
    ]
    typer.echo(json.dumps(figures, indent=2) if as_json else _told(rows, figures))
    return 0


@bench.command("placement")
def bench_placement(
    model: Model = "resnet18",
    size: Size = 96,
    batch: Annotated[int, typer.Option(help="Samples per step, of all ranks.", min=1)] = 1,
    width: Width = 16,
    steps: Annotated[int, typer.Option(help="Steps per block; the first is not counted.", min=2)] = 10,
    repeats: Repeats = 15,
    ranks: Annotated[int, typer.Option(help="Ranks that share a volume.", min=2, max=64)] = 2,
    strategy: Annotated[
        str | None, typer.Option(help="One that divides the network by a rule.  [default: the first of them]")
    ] = None,
    as_json: Figures = False,
) -> int:
    """Measure a network that is divided over ranks, one thread per rank, in turn with what it is up against.

    `of_limit` is the step time of as many processes that each train a part of the volume and exchange
    nothing, over that of the ranks: 1 is what dividing could reach. `speedup` is the step time of one rank
    over it; `overhead` what dividing costs where there is one rank.

    \b
    Example:
      cingulum bench placement --size 64 --repeats 5
      cingulum bench placement --strategy filters --json
    """
    from cingulum.bench import placement
    from trainer.bench.placement_worker import PlacementJob
    from trainer.config import strategy as strategies
    from trainer.progress import Counting

    # Others are planned by a profile of the network.
    by_rule = [n for n in strategies.DIVIDING if "profile" not in strategies.BY_NAME[n].model_fields]
    strategies.check(strategy, by_rule, "measured so")
    strategy = strategy or by_rule[0]
    _check_model(model)
    job = PlacementJob({"name": strategy}, model, size, size, batch, width, steps)
    with Counting("measuring", "blocks") as shown:
        figures = placement.placement(job, ranks=ranks, repeats=repeats, progress=shown.show, tell=shown.note)
    rows = [
        f"{name.replace('_', ' '):10s} {figures[name]:8.2f}  "
        f"(95 %: {figures[name + '_low']:.2f} to {figures[name + '_high']:.2f})"
        for name in ("of_limit", "speedup", "overhead")
    ]
    rows += [
        f"{name.replace('_', ' '):16s} {1000 * time['median']:8.1f} ms a step"
        for name, time in figures["step_s"].items()
    ]
    typer.echo(json.dumps(figures, indent=2) if as_json else _told(rows, figures))
    return 0


def _job(model: str, size: int, batch: int, width: int, steps: int, sync_batch_norm: bool) -> Any:
    from trainer.bench.step_worker import StepJob

    _check_model(model)
    return StepJob(
        model=model, size=size, batch=batch, width=width, steps=steps, sync_batch_norm=sync_batch_norm
    )


def _check_model(model: str) -> None:
    """Refuse an unknown name once, not by every process."""
    from trainer.quiet import import_tensorflow

    import_tensorflow()
    from trainer import models

    models.describe(model)


def _told(rows: list[str], figures: dict[str, Any]) -> str:
    machine = figures["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_1min']}"
    return "\n".join([*rows, f"{figures['repeats']} repeats in turn; {where}"])


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


bench.command("loader")(bench_loader)
bench.command("input")(bench_input)
bench.command("scaling")(bench_scaling)
