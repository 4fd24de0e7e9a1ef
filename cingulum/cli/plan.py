"""`cingulum plan`: what dividing a network over ranks would cost, by each strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cingulum.cli.options import Config, Overrides


def plan(
    config: Config,
    ranks: Annotated[int, typer.Option(min=1, max=1024, help="Ranks that would train, in all replicas.")] = 2,
    overrides: Overrides = None,
    strategy: Annotated[
        str | None, typer.Option(help="Name of the strategy that is planned.  [default: train.strategy]")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Predict seconds from this file of `cingulum profile`.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the plan to this file, in place of an earlier one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures and the plan as JSON.")] = False,
) -> None:
    """Say what dividing a network over ranks would cost, before anything is trained.

    Of a strategy, and beside it of the others: step time (with --profile), bytes that ranks send, memory and
    imbalance; and which rank computes what. No ranks are launched. --out writes the plan, which can be
    edited and trained: train.strategy.plan. docs/how-to/plan.md says more.

    \b
    Example:
      cingulum plan examples/demo.yaml --strategy spatial --ranks 2
      cingulum plan examples/demo.yaml --strategy filters --ranks 2 --profile profile.json --out plan.json
    """
    from cingulum.cli import options
    from trainer import atomic
    from trainer import config as configuration
    from trainer.config import strategy as strategies
    from trainer.errors import ConfigError
    from trainer.planning.placement.plan_file import PlanFile
    from trainer.planning.profile import Profile
    from trainer.quiet import import_tensorflow

    # Before TensorFlow is loaded, which takes seconds.
    options.check(out, PlanFile)
    run = configuration.load(config, overrides or [])
    strategies.check(strategy, strategies.PLANNED, "planned", run.train.strategy)
    costs = None if profile is None else Profile.read(profile)
    import_tensorflow()
    from trainer.forecast import outlooks, plans

    if as_json:
        comparison = plans.compare(run, ranks, strategy=strategy, profile=costs)
    else:
        from trainer.progress import Counting

        with Counting("planning", "steps") as counting:
            comparison = plans.compare(run, ranks, strategy=strategy, profile=costs, show=counting.show)
    if out is not None:
        if comparison.file is None:
            raise ConfigError(
                f"--out {out}: {comparison.chosen.label} does not say which rank computes what, so "
                "there is no plan to write.",
                cure=f"Leave --out away, or name one of ours: --strategy {strategies.DEFAULT}.",
            )
        atomic.write_text(out, comparison.file.text())
    if as_json:
        import json

        typer.echo(json.dumps(outlooks.tree(comparison), indent=2))
        return
    from cingulum.cli.plan_display import show

    show(comparison)
    if out is not None:
        typer.echo(f"plan: {out}")
