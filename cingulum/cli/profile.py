"""`cingulum profile`: what a network costs on each rank's device, and the links between ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cingulum.cli.options import Config, Overrides

if TYPE_CHECKING:
    from trainer.config import RunConfig


def profile(
    config: Config,
    overrides: Overrides = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, help="Samples.  [default: train.global_batch / train.accumulation / ranks, rounded up]"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the profile to this file, in place of an earlier one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> int:
    """Measure a network's layers on every rank's device, and the links between ranks.

    Of every operation of the network that CONFIG describes: seconds forward and backward, FLOPs, bytes of
    parameters and output; of the optimizer, its update; of every pair of ranks, latency and bandwidth. One
    of each equal operation is measured. Under mpirun or srun all ranks measure at the same time. Nothing is
    trained. docs/how-to/profile.md says what is in the file.

    \b
    Example:
      cingulum profile examples/demo.yaml
      mpirun -np 2 cingulum profile examples/demo.yaml --out profile.json
    """
    from cingulum.cli import options
    from trainer import config as configuration
    from trainer.errors import InputError
    from trainer.planning.profile import Profile
    from trainer.ranks import launch, starting
    from trainer.ranks.members import Members

    def load() -> RunConfig:
        options.check(out, Profile)
        return configuration.load(config, overrides or [])

    loaded: RunConfig | None = None
    try:
        loaded = load()
    except InputError:
        if launch.expected_size() == 1:
            raise  # said at once, before TensorFlow is loaded; several ranks say it together, below
    world = starting.init(loaded.train.threads if loaded else None, members=Members(messages=True))

    from trainer import atomic, profiling
    from trainer.ranks.agreement import agree, together

    def body() -> int:
        run = agree(world, lambda: loaded or load())
        with contextlib.ExitStack() as bars:
            operation, link = (
                _bar(bars, *of) if world.is_main else _silent
                for of in (("operations", "measurements"), ("links", "pairs"))
            )
            profile = profiling.profile(run, world, batch=batch, operation=operation, link=link)
        agree(world, lambda: atomic.write_text(out, profile.text()) if out and world.is_main else None)
        if not world.is_main:
            return 0
        if as_json:
            typer.echo(profile.text(), nl=False)
            return 0
        from cingulum.cli.profile_display import show

        show(profile)
        if out is not None:
            typer.echo(f"profile: {out}")
        return 0

    return together(world, body)


def _bar(bars: contextlib.ExitStack, what: str, unit: str) -> Callable[[int, int], None]:
    """Return what shows progress in a bar of its own, which takes the place of the one before."""
    from trainer.progress import Counting

    bar: Counting | None = None

    def show(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            bars.close()
            bar = bars.enter_context(Counting(what, unit))
        bar.show(done, total)

    return show


def _silent(done: int, total: int) -> None:
    pass
