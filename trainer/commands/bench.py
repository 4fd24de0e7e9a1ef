"""`cingulum bench`: how fast a training step is on this machine."""

from __future__ import annotations

import enum
import json
from typing import Annotated, Any

import typer


class What(str, enum.Enum):
    """What can be measured."""

    step = "step"
    ring = "ring"


def bench(
    what: Annotated[What, typer.Argument(help="step: efficiency and overhead. ring: ways to reduce.")],
    model: Annotated[str, typer.Option(help="A registered network.")] = "resattnet18",
    size: Annotated[int, typer.Option(help="Edge of the volumes, in voxels.", min=8)] = 96,
    batch: Annotated[int, typer.Option(help="Samples per rank and step.", min=1)] = 4,
    width: Annotated[int, typer.Option(help="Channels of the first stage.", min=1)] = 8,
    steps: Annotated[int, typer.Option(help="Steps per measurement.", min=1)] = 30,
    repeats: Annotated[int, typer.Option(help="Measurements of each kind, in turn.", min=1)] = 5,
    ranks: Annotated[int, typer.Option(help="ring: number of ranks.", min=2)] = 2,
    sync_batch_norm: Annotated[
        bool, typer.Option("--sync-batch-norm", help="Batch norm statistics over all ranks.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> int:
    """Measure training steps, one thread per rank; medians of repeats in turn, with their spread.

    step: `efficiency` is the throughput of two ranks over that of two independent copies run at once,
    `overhead` what our loop costs over plain Keras at one rank. ring: the step's time for every way to
    reduce gradients.

    \b
    Example:
      cingulum bench step --json
    """
    from rich.console import Console

    from trainer.quiet import import_tensorflow
    from trainer.telemetry import step_bench
    from trainer.telemetry.step_worker import StepJob

    job = StepJob(
        model=model, size=size, batch=batch, width=width, steps=steps, sync_batch_norm=sync_batch_norm
    )
    import_tensorflow()
    from trainer import models

    models.describe(model)  # a name that does not exist is told once, not by every process
    with Console(stderr=True).status("starting") as status:
        if what is What.step:
            figures = step_bench.step(job, repeats=repeats, progress=status.update)
        else:
            figures = step_bench.ring(job, ranks=ranks, repeats=repeats, progress=status.update)
    typer.echo(json.dumps(figures, indent=2) if as_json else _readable(what, figures))
    return 0


def _readable(what: What, figures: dict[str, Any]) -> str:
    machine = figures["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_1min']}"
    if what is What.step:
        rows = [
            f"{name:10s} {figures[name]:8.2%}  "
            f"(from {figures[name + '_min']:.2%} to {figures[name + '_max']:.2%})"
            for name in ("efficiency", "overhead")
        ]
    else:
        rows = [
            f"{name:32s} {1000 * time['median']:8.1f} ms  "
            f"(from {1000 * time['median_min']:.1f} to {1000 * time['median_max']:.1f})"
            for name, time in figures["step_s"].items()
        ]
    return "\n".join([*rows, f"{figures['repeats']} repeats in turn; {where}"])
