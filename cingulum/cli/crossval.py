"""`cingulum crossval`: one run per fold and seed, and their pooled metrics."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cingulum.cli.options import Config, Overrides
from trainer.errors import ConfigError, typed

if TYPE_CHECKING:
    from cingulum.crossval.launching import Means
    from trainer.config import RunConfig
    from trainer.crossval.folds import CrossValidation


def crossval(
    config: Config,
    overrides: Overrides = None,
    folds: Annotated[
        int | None, typer.Option(help="Folds. Default: data.split.folds of CONFIG, or 5.", min=2)
    ] = None,
    seeds: Annotated[int, typer.Option(help="Networks per fold: train.seed and the next ones.", min=1)] = 1,
    by: Annotated[
        Literal["site"] | None, typer.Option(help="Hold out one site at a time; folds are the sites.")
    ] = None,
    ranks: Annotated[int, typer.Option(help="Ranks that train a fold together.", min=1)] = 1,
    side_by_side: Annotated[
        int, typer.Option(metavar="K", help="Folds trained at once; they share cores and GPUs.", min=1)
    ] = 1,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Begin the other folds, too, when one fails.")
    ] = False,
    fold: Annotated[
        int | None,
        typer.Option(metavar="I", help="Train this fold only, 0 is the first; for an array of jobs.", min=0),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="S", help="With --fold: its seed. Default: train.seed.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is to be done; do nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print crossval.json, or the plan.")] = False,
) -> int:
    """Train CONFIG once per fold and seed, and pool the predictions for held-out subjects.

    Every run is an ordinary run folder, runs/NAME/fold-I-seed-S. Beside them: the figures as crossval.json
    and crossval.csv, every scan's held-out prediction as predictions.csv, all of it to look at as
    report.html. The same command goes on after a stop, a crash or a kill.

    With --fold it trains one of the runs, on the ranks that mpirun or srun started, and pools nothing: the
    tasks of an array of jobs do this, and the same command without --fold collects what they made.

    Exit code 0: done. 75: stopped by Ctrl-C, SIGTERM or SIGUSR2, all states are saved; run it again.

    \b
    Example:
      cingulum crossval examples/crossval.yaml --folds 5 --seeds 3 --side-by-side 2
      mpirun -np 2 cingulum crossval examples/crossval.yaml --folds 5 --fold 0
      cingulum crossval examples/crossval.yaml --by site
    """
    import json

    if fold is not None:
        return _train_one(
            config, overrides or [], folds, seeds, by, (fold, seed), dry_run=dry_run, as_json=as_json
        )
    if seed is not None:
        raise ConfigError("--seed chooses one run.", cure="Add --fold I; or set the first seed: train.seed=S")

    from cingulum.crossval import launching
    from trainer.crossval import folds as plans
    from trainer.progress import Counting

    launching.refuse_ranks()
    crossval = plans.plan(config, overrides or [], folds=folds, seeds=seeds, by=by)
    plans.check(crossval)
    means = launching.Means.here(ranks=ranks, at_once=side_by_side)
    if dry_run:
        plan = _plan(crossval, means)
        typer.echo(json.dumps(plan, indent=2) if as_json else _readable_plan(plan))
        return 0
    if crossval.unfinished:
        splits = plans.splits(crossval)
        with Counting("looking for leaks", "volumes") as counting:
            plans.check_people(crossval, splits[0], counting.show)
    summary = _train(crossval, means, keep_going=keep_going)
    typer.echo(json.dumps(summary, indent=2) if as_json else readable(crossval.folder, summary))
    return 0


def _train_one(
    config: Path,
    overrides: list[str],
    folds: int | None,
    seeds: int,
    by: Literal["site"] | None,
    chosen: tuple[int, int | None],
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Train one fold of one seed on the ranks that were started, or go on with it."""
    from cingulum.cli.train import run_on_ranks
    from trainer.crossval import folds as plans

    def load() -> RunConfig:
        crossval = plans.plan(config, overrides, folds=folds, seeds=seeds, by=by)
        fold = plans.one(crossval, *chosen)
        plans.check(crossval)
        if not dry_run:
            plans.keep(crossval)
        return fold.config

    return run_on_ranks(load, resume=True, dry_run=dry_run, as_json=as_json)


def _train(crossval: CrossValidation, means: Means, *, keep_going: bool) -> dict[str, Any]:
    from cingulum.crossval import launching
    from trainer import report
    from trainer.attempts import attempt
    from trainer.crossval import folds as plans
    from trainer.crossval import tables
    from trainer.crossval.folds import Fold
    from trainer.progress import Counting
    from trainer.run_folder import record

    total = len(crossval.folds)
    with plans.working(crossval) as lock, Counting("cross-validating", "runs") as counting:
        done = total - len(crossval.unfinished)
        if done:
            counting.note(f"{done} of {total} runs are finished already.")
        counting.show(done, total)

        def finished(fold: Fold, error: str) -> None:
            if error:
                counting.note(error, style="red")
            else:
                result = record.read_json(fold.run.result)
                counting.note(f"{fold.title}: {tables.headline(result.get('test', {}))}")
                if why := record.other_epoch(result):
                    counting.note(f"{fold.title}: {why}")
            counting.show(total - len(crossval.unfinished), total)

        launching.train_all(crossval, means, keep_going=keep_going, lock=lock, finished=finished)
        summary = tables.write(crossval)
        attempt(
            "report.html",
            lambda: report.write(crossval.folder, note=counting.note),
            remedy=f"cingulum report {typed(crossval.folder)}",
            note=counting.note,
        )
    return summary


def _plan(crossval: CrossValidation, means: Means) -> dict[str, Any]:
    from cingulum.crossval import launching
    from trainer.crossval import folds as plans

    splits = plans.splits(crossval)
    return {
        "name": crossval.config.name,
        "folder": str(crossval.folder),
        "folds": crossval.config.data.split.folds,
        "seeds": list(crossval.seeds),
        "ranks": means.ranks,
        "side_by_side": means.at_once,
        "runs": [
            {
                "run": fold.config.name,
                "state": fold.state,
                "split": {name: len(rows) for name, rows in dataclasses.asdict(splits[fold.number]).items()},
                "command": ["cingulum", *launching.arguments(crossval, fold, means.threads(fold))],
            }
            for fold in crossval.folds
        ],
    }


def _readable_plan(plan: dict[str, Any]) -> str:
    lines = [
        f"{plan['folder']}: {plan['folds']} folds, seeds {' '.join(map(str, plan['seeds']))}, "
        f"{plan['ranks']} ranks each, {plan['side_by_side']} at once"
    ]
    for run in plan["runs"]:
        sizes = ", ".join(f"{name} {count}" for name, count in run["split"].items())
        lines.append(f"{run['run']:<16} {run['state']:<10} {sizes}")
    return "\n".join(lines)


def readable(folder: Path, summary: dict[str, Any]) -> str:
    """Format the pooled metrics for a terminal, and where the rest is."""
    from trainer.metrics.subjects import TOO_FEW

    seeds = len(summary["seeds"])
    runs = len(summary["per_fold"])
    lines = [
        f"{folder}: {_scans(summary)}{summary['subjects']} subjects, each held out once"
        + (f" for each of {seeds} seeds" if seeds > 1 else ""),
        "",
        f"{'':<20} {'pooled':<8} {'95 % interval, by subject':<26} mean and sd over {runs} runs",
    ]
    for name, figure in summary["pooled"].items():
        if figure["value"] is None:
            continue
        ends = figure["interval"]
        interval = f"{ends[0]:.3f} to {ends[1]:.3f}" if ends else TOO_FEW
        over = summary["over_folds"].get(name)
        spread = f"{over['mean']:.3f} ({over['sd']:.3f})" if over else ""
        lines.append(f"{name.replace('_', ' '):<20} {figure['value']:<8.3f} {interval:<26} {spread}".rstrip())
    lines += _sites(summary)
    files = [f"report: {folder / 'report.html'}", f"predictions: {folder / 'predictions.csv'}"]
    return "\n".join([*lines, "", *files])


def _sites(summary: dict[str, Any]) -> list[str]:
    """Return a line for each site, with the figure that stands first, and whether sites differ."""
    content = summary.get("by_site")
    if not content:
        return []
    lines = [
        "",
        f"{'by site':<20} {'subjects':<8} {next(iter(content['sites'][0]['pooled'])).replace('_', ' ')}",
    ]
    for site in content["sites"]:
        figure = next(iter(site["pooled"].values()))
        value = "-" if figure["value"] is None else f"{figure['value']:.3f}"
        ends = figure["interval"]
        interval = f" ({ends[0]:.3f} to {ends[1]:.3f})" if ends else ""
        lines.append(f"{site['site']:<20} {site['subjects']:<8} {value}{interval}")
    p, name = content["differ"]["p"], content["differ"]["figure"]
    return [*lines, f"whether sites differ in {name}: " + ("too few to say" if p is None else f"p = {p:.3g}")]


def _scans(summary: dict[str, Any]) -> str:
    volumes = summary.get("volumes")
    return "" if volumes in (None, summary["subjects"]) else f"{volumes} scans of "
