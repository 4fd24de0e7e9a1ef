"""`cingulum train`: one run, on one rank or on many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from trainer.config import RunConfig
    from trainer.serving import Serving
    from trainer.world import World


def train(
    config: Annotated[Path, typer.Argument(help="YAML file that describes the run.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes, such as train.epochs=3.")] = None,
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
    from trainer import resuming

    def load() -> RunConfig:
        loaded = configuration.load(config, overrides or [])
        if resume:
            resuming.check_place(config, overrides or [], loaded)
        return loaded

    return run_on_ranks(load, resume=resume, dry_run=dry_run, as_json=as_json)


def run_on_ranks(load: Callable[[], RunConfig], *, resume: bool, dry_run: bool, as_json: bool) -> int:
    """Train on all ranks that were started, as the configuration says that each of them loads.

    Raises:
        ConfigError: `load` did, and there is one rank; several tell it together.
    """
    from trainer import launch
    from trainer import world as worlds
    from trainer.errors import InputError
    from trainer.mpi_world import roles

    def checked() -> RunConfig:
        config = load()
        if config.train.strategy == "parameter-server":
            roles(launch.expected_size(), config.train.server.count, config.train.server.placement)
        return config

    threads, server = None, None
    environment: dict[str, str] = {}
    try:
        config = checked().train
        threads, environment = config.threads, launch.ring_environment(config.ring)
        server = config.server if config.strategy == "parameter-server" else None
    except InputError:
        if launch.expected_size() == 1:
            raise  # said at once, before TensorFlow is loaded; several ranks say it together, below
    if server is None:
        world = worlds.init(threads, environment=environment)
    else:
        world = worlds.init(
            threads,
            environment=environment | launch.server_environment(server),
            servers=server.count,
            placement=server.placement,
            mode=server.mode,
        )

    from trainer.agreement import agree, together

    def body() -> int:
        run_config = agree(world, checked)
        if dry_run:
            _show_plan(run_config, world, resume=resume, as_json=as_json)
        else:
            _train(run_config, world, resume=resume, as_json=as_json)
        return 0

    if server is None:
        return together(world, body)
    if server.mode == "async":
        return _take_part(checked, world, resume=resume, dry_run=dry_run, as_json=as_json)

    from trainer.strategies.parameter_server.serving import serve, serving

    if world.is_server:
        return serve(world)
    with serving(world) as session:
        session.exit_code = together(world, body)
    return session.exit_code


def _take_part(
    load: Callable[[], RunConfig], world: World, *, resume: bool, dry_run: bool, as_json: bool
) -> int:
    """Asynchronous training: server 0 trains, the other processes do what it asks."""
    from trainer.strategies.parameter_server.async_run import take_part

    config = load()

    def on_main(main: World, serving: Serving) -> None:
        if dry_run:
            _show_plan(config, main, resume=resume, as_json=as_json, serving=serving)
        else:
            _train(config, main, resume=resume, as_json=as_json, serving=serving)

    return take_part(config, world, on_main)


def _show_plan(
    config: RunConfig, world: World, *, resume: bool, as_json: bool, serving: Serving | None = None
) -> None:
    import json

    from trainer.dry_run import describe

    plan = describe(config, world, serving, resume=resume)
    if not world.is_main:
        return
    if as_json:
        typer.echo(json.dumps(plan, indent=2))
        return
    width = max(len(name) for name in plan)
    for name, value in plan.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {_readable(value)}")


def _train(
    config: RunConfig, world: World, *, resume: bool, as_json: bool, serving: Serving | None = None
) -> None:
    import json
    import sys

    from trainer.progress import Shown, Silent
    from trainer.run import train as run_train

    command = ["cingulum", *sys.argv[1:]]
    if not world.is_main:
        run_train(config, world, resume=resume, reporter=Silent(), command=command)
        return
    with Shown() as shown:
        result = run_train(config, world, resume=resume, reporter=shown, command=command, serving=serving)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        typer.echo(_summary(config.folder, result))


def _summary(folder: Path, result: dict[str, Any]) -> str:
    from trainer.report import against_volumes
    from trainer.telemetry import evidence

    test = result.get("test")
    lines = [f"{folder}: {result['epochs']} epochs, {result['samples_per_second']:.1f} samples/s"]
    if test is not None:
        names = {"accuracy": "accuracy", "auc": "AUC", "mae": "MAE", "r2": "R2", "dice": "mean Dice"}
        told = [f"{name} {test[key]:.3f}" for key, name in names.items() if test.get(key) is not None]
        lines.append(f"held-out: {', '.join(told)} on {test['n']} volumes")
        linear = against_volumes.linear_line(folder, test)
        if linear is not None:
            lines.append(linear)
    judged = evidence.found(folder)
    if judged is not None:
        lines.append(judged.summary if judged.is_well else f"{judged.summary} (cingulum diagnose {folder})")
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
