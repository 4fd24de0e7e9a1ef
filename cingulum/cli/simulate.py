"""`cingulum simulate`: what a run would take on a cluster that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cingulum.cli.options import Config, Overrides

# Options that `simulate` and `advise` share.
ClusterFile = Annotated[
    str, typer.Option(help="A cluster file (YAML), or a cluster that is shipped, such as dgx-a100.")
]
Measured = Annotated[
    Path | None, typer.Option(help="Take seconds from this file of `cingulum profile`, not from FLOPs.")
]
MeasuredOn = Annotated[
    str | None,
    typer.Option(help="Device of the cluster file that the profile was measured on, to scale from."),
]
BatchPerRank = Annotated[
    int | None,
    typer.Option(min=1, help="Samples of each rank in an update.  [default: train.global_batch, divided]"),
]
GroupSize = Annotated[
    int | None,
    typer.Option(
        min=2, max=64, help="Ranks that divide a network between them.  [default: those of a host, or 4]"
    ),
]


def simulate(
    config: Config,
    overrides: Overrides = None,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, such as 8,64,1024.")] = "1,8,64",
    cluster: ClusterFile = "dgx-a100",
    strategy: Annotated[str | None, typer.Option(help="Only the one of this name.")] = None,
    batch_per_rank: BatchPerRank = None,
    group: GroupSize = None,
    profile: Measured = None,
    profiled_on: MeasuredOn = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write a step on the most ranks for a trace viewer (needs --strategy)."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG of samples per second over ranks.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """Predict a run on a cluster, by every strategy, before anything is paid for.

    For each number of ranks: seconds of an update, samples per second, efficiency, bytes that a rank sends,
    its memory, and what an epoch takes in time, energy and money, with reading, slow ranks, checkpoints and
    failures. Nothing is trained, no ranks are launched. docs/how-to/simulate.md says more.

    \b
    Example:
      cingulum simulate examples/demo.yaml --ranks 8,64,1024 --batch-per-rank 2
      cingulum simulate examples/demo.yaml --ranks 8 --cluster p100-ethernet --strategy data --trace step.json
    """
    from trainer import config as configuration
    from trainer.config import strategy as strategies
    from trainer.planning.profile import Profile
    from trainer.planning.simulation import cluster as clusters
    from trainer.quiet import import_tensorflow

    counts = _counts(ranks)
    _check_files(trace, plot, needs_strategy=strategy is None)
    hosts = clusters.load(cluster)
    run = configuration.load(config, overrides or [])
    strategies.check(strategy, strategies.SIMULATED, "simulated", run.train.strategy)
    measured = None if profile is None else Profile.read(profile)
    import_tensorflow()
    from trainer.forecast import forecasts, growth, simulating
    from trainer.forecast.subject import Scenario

    asked = Scenario(run, hosts, strategy, batch_per_rank, group, measured, profiled_on)
    simulation = simulating.simulate(asked, counts)
    # What was computed first: no drawing can keep it from being shown.
    if as_json:
        import json

        typer.echo(json.dumps(forecasts.tree(simulation), indent=2))
    else:
        from cingulum.cli.simulate_display import show

        show(simulation)
    if trace is not None:
        from trainer import atomic

        atomic.write_text(trace, forecasts.trace(forecasts.last_trace(simulation)))
    if plot is not None:
        growth.draw(simulation, plot)
    for path in (one for one in (trace, plot) if one is not None and not as_json):
        typer.echo(f"wrote {path}")


def _counts(text: str) -> list[int]:
    """Return the numbers of ranks, ascending.

    Raises:
        ConfigError: a part of the text is no number of ranks.
    """
    from trainer.errors import ConfigError
    from trainer.planning.simulation.cluster import MOST_RANKS

    counts = set()
    for part in text.split(","):
        if not part.strip().isdecimal() or not 1 <= int(part[:20]) <= MOST_RANKS:
            raise ConfigError(
                f"--ranks {text}: {part.strip()!r} is not a number of ranks, 1 to {MOST_RANKS:,}.",
                cure="Give numbers with commas between them: --ranks 8,64,1024",
            )
        counts.add(int(part))
    return sorted(counts)


def _check_files(trace: Path | None, plot: Path | None, *, needs_strategy: bool) -> None:
    """Refuse what cannot be written, before anything is computed.

    Raises:
        InputError: says which.
    """
    from trainer.errors import InputError

    if trace is not None and needs_strategy:
        raise InputError("--trace shows one strategy.", cure="Name it: --strategy data")
    for path in (one for one in (trace, plot) if one is not None):
        folder = path.absolute().parent
        if not folder.is_dir():
            raise InputError(
                f"{folder}: there is no such folder.", cure="Make it, or name another file.", path=path
            )
