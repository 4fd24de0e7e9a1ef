"""`cingulum advise`: what to change before a run is paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cingulum.cli.options import Config, Overrides
from cingulum.cli.simulate import (
    BatchPerRank,
    ClusterFile,
    GroupSize,
    Measured,
    MeasuredOn,
)


def advise(
    config: Config,
    overrides: Overrides = None,
    cluster: ClusterFile = "dgx-a100",
    strategy: Annotated[str, typer.Option(help="Name of the strategy that ranks train by.")] = "data",
    against: Annotated[
        str | None,
        typer.Option(help="From which links and batch on it is faster than this one.", show_default=False),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Ranks to advise on.  [default: the most that are useful]")
    ] = None,
    most: Annotated[int, typer.Option(min=1, max=100_000, help="Ranks that are thought of at most.")] = 1024,
    batch_per_rank: BatchPerRank = None,
    group: GroupSize = None,
    within: Annotated[
        int, typer.Option(min=0, help="Seconds after which no further batch is planned.")
    ] = 120,
    profile: Measured = None,
    profiled_on: MeasuredOn = None,
    reach: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC=VALUE",
            help="Time, energy and cost until this, by the epochs that --run took.",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="With --reach: folder of a run with this batch.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """Say how many ranks are useful on a cluster, and what would make a run faster.

    Up to how many ranks doubling them pays off; how fast links and how large a batch must be for ranks to
    wait little; which of link, latency, device, disk and batch buys most; time, energy and cost of all epochs
    with failures; how often to save. docs/how-to/simulate.md says more.

    \b
    Example:
      cingulum advise examples/demo.yaml --cluster cloud-p4d --batch-per-rank 2
      cingulum advise examples/demo.yaml --cluster p100-ethernet --ranks 64
      cingulum advise examples/demo.yaml --strategy hybrid --against data --batch-per-rank 2
    """
    from trainer import config as configuration
    from trainer.config import strategy as strategies
    from trainer.planning.profile import Profile
    from trainer.planning.simulation import cluster as clusters
    from trainer.quiet import import_tensorflow
    from trainer.telling import tell

    for name in (strategy, against):
        strategies.check(name, strategies.SIMULATED, "simulated")
    hosts = clusters.load(cluster)
    settings = configuration.load(config, overrides or [])
    epochs = _epochs(reach, run)
    measured = None if profile is None else Profile.read(profile)
    import_tensorflow()
    from trainer.forecast import advising
    from trainer.forecast.subject import Scenario

    asked = Scenario(settings, hosts, strategy, batch_per_rank, group, measured, profiled_on)
    advice = advising.advise(
        asked, most=most, ranks=ranks, epochs=epochs, against=against, within_s=within, show=tell
    )
    if as_json:
        import json

        typer.echo(json.dumps(advising.tree(advice), indent=2))
        return
    from cingulum.cli.advise_display import show

    show(advice, hosts)


def _epochs(reach: str | None, run: Path | None) -> int | None:
    """Return the epochs that a run took to reach a value of a metric; None: that was not asked for.

    Raises:
        InputError: half of it was asked for, or the run does not tell.
    """
    from trainer.errors import InputError

    if reach is None and run is None:
        return None
    metric, _, value = (reach or "").partition("=")
    try:
        target = float(value)
    except ValueError:
        target = None
    if run is None or target is None:
        raise InputError(
            "--reach and --run go together.", cure="For example: --reach val_auc=0.9 --run runs/before"
        )
    from trainer.run_folder.record import RunFolder
    from trainer.telemetry import earlier_runs

    return earlier_runs.epochs_to(RunFolder.open(run), metric, target)
