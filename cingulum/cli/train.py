"""`cingulum train`: one run, on one rank or on many."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cingulum.cli.options import Config, Overrides

if TYPE_CHECKING:
    from trainer.config import RunConfig
    from trainer.ranks.world import World
    from trainer.strategies.base import ProcessSetup, Strategy


def train(
    config: Config,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest whole checkpoint.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print result.json, or the plan, as JSON.")] = False,
) -> int:
    """Train a network as CONFIG says; under mpirun or srun, all ranks train it together.

    Exit code 0: done. 75: stopped by Ctrl-C, SIGUSR2 or SIGTERM, the state is saved; run again with --resume.
    76: another start of the run has taken the run folder over.

    \b
    Example:
      mpirun -np 2 cingulum train examples/demo.yaml train.epochs=5
      mpirun -np 3 cingulum train examples/demo.yaml train.strategy=parameter-server
    """
    from trainer import config as configuration
    from trainer.run_folder import resuming

    def load() -> RunConfig:
        loaded = configuration.load(config, overrides or [])
        if resume:
            resuming.check_place(config, overrides or [], loaded)
        return loaded

    return run_on_ranks(load, resume=resume, dry_run=dry_run, as_json=as_json)


def run_on_ranks(load: Callable[[], RunConfig], *, resume: bool, dry_run: bool, as_json: bool) -> int:
    """Train on all ranks that were started, with the configuration that each of them loads.

    Raises:
        InputError: `load` did, and there is one rank, or mpirun ends the others; else they tell it together.
    """
    from trainer.errors import CingulumError, InputError
    from trainer.ranks import launch, starting
    from trainer.ranks.members import Members
    from trainer.strategies import registry

    processes = launch.expected_size()

    def chosen(config: RunConfig) -> Strategy:
        found = registry.of(config)
        found.members(processes)  # whether there are enough
        return found

    config, strategy = None, None
    try:
        config = load()
        if registry.is_ours(config):
            strategy = chosen(config)
    except InputError:
        if processes == 1 or launch.ends_all():
            raise  # said at once, before TensorFlow is loaded; otherwise ranks say it together, below

    def members_of_own() -> Members:
        nonlocal strategy
        if config is not None:
            # An error is reported by all ranks together, below.
            with contextlib.suppress(CingulumError):
                strategy = chosen(config)
        return strategy.members(processes) if strategy else Members()

    world = starting.init(
        config.train.threads if config else None,
        environment=lambda: strategy.environment() if strategy else {},
        members=strategy.members(processes) if strategy else members_of_own if processes > 1 else None,
    )
    story = _Story(load, chosen, config, strategy, resume, dry_run, as_json)
    return strategy.take_part(world, story) if strategy else story.together(world)


@dataclass
class _Story:
    """What a process does for the run, when its strategy asks for it: `trainer.strategies.base.Story`."""

    load: Callable[[], RunConfig]
    chosen: Callable[[RunConfig], Strategy]
    loaded: RunConfig | None
    strategy: Strategy | None
    resume: bool
    dry_run: bool
    as_json: bool

    @property
    def config(self) -> RunConfig:
        if self.loaded is None:
            self.loaded = self.load()
        return self.loaded

    def together(self, world: World) -> int:
        from trainer.ranks.agreement import agree, together

        def body() -> int:
            self.strategy = agree(world, lambda: self.strategy or self.chosen(self.config))
            self.alone(world)
            return 0

        return together(world, body)

    def alone(self, world: World) -> None:
        show = _show_plan if self.dry_run else _train
        show(self.config, world, self.strategy, resume=self.resume, as_json=self.as_json)

    def prepare(self, world: World) -> ProcessSetup:
        from trainer.runs.preparation import prepare

        return prepare(self.config, world, self.strategy or self.chosen(self.config))


def _show_plan(
    config: RunConfig, world: World, strategy: Strategy | None, *, resume: bool, as_json: bool
) -> None:
    import json

    from trainer.dry_run import describe

    plan = describe(config, world, strategy, resume=resume)
    if not world.is_main:
        return
    if as_json:
        typer.echo(json.dumps(plan, indent=2))
        return
    width = max(len(name) for name in plan)
    for name, value in plan.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {_readable(value)}")


def _train(
    config: RunConfig, world: World, strategy: Strategy | None, *, resume: bool, as_json: bool
) -> None:
    import json
    import sys

    from trainer.progress import Reporter, Shown
    from trainer.run import train as run_train

    command = ["cingulum", *sys.argv[1:]]
    if not world.is_main:
        run_train(config, world, resume=resume, reporter=Reporter(), command=command, strategy=strategy)
        return
    with Shown() as shown:
        result = run_train(config, world, resume=resume, reporter=shown, command=command, strategy=strategy)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        typer.echo(_summary(config.folder, result))


def _summary(folder: Path, result: dict[str, Any]) -> str:
    from trainer.attempts import attempt
    from trainer.errors import typed
    from trainer.report import against_volumes
    from trainer.telemetry import evidence
    from trainer.telling import tell

    test = result.get("test")
    lines = [f"{folder}: {result['epochs']} epochs, {result['samples_per_second']:.1f} samples/s"]
    if test is not None:
        names = {"accuracy": "accuracy", "auc": "AUC", "mae": "MAE", "r2": "R2", "dice": "mean Dice"}
        told = [f"{name} {test[key]:.3f}" for key, name in names.items() if test.get(key) is not None]
        of = f" of {test['subjects']} subjects" if "subjects" in test else ""
        lines.append(f"held-out: {', '.join(told)} on {test['n']} scans{of}")

    def compared() -> None:
        linear = against_volumes.linear_line(folder, test) if test is not None else None
        if linear is not None:
            lines.append(linear)

    def diagnosed() -> None:
        judged = evidence.found(folder)
        if judged is not None:
            lines.append(
                judged.summary if judged.is_well else f"{judged.summary} (cingulum diagnose {typed(folder)})"
            )

    run = typed(folder)
    attempt("the comparison with the baseline", compared, remedy=f"cingulum evaluate {run}", note=tell)
    attempt("the diagnosis", diagnosed, remedy=f"cingulum diagnose {run}", note=tell)
    if (folder / "report.html").is_file():
        lines.append(f"report: {folder / 'report.html'}")
    return "\n".join(lines)


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        parts = [
            f"{name} ({_readable(entry)})" if isinstance(entry, dict) else f"{name} {entry}"
            for name, entry in value.items()
        ]
        return ", ".join(parts) or "none"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
