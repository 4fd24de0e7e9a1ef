"""`cingulum bench scaling`: measure scaling over ranks, hosts and strategies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cingulum.cli.options import Measured, Size, Width

if TYPE_CHECKING:
    from trainer.bench.scaling.cells import MeasuredCell
    from trainer.bench.scaling.results import StudyResults
    from trainer.bench.scaling.study import Study
    from trainer.bench.scaling.summary import TrainingCurve

# The five networks that a study compares unless told otherwise; a U-Net puts a class on each voxel.
NETWORKS = "vgg,resnet18,densenet121,resattnet18,unet3d"


def bench_scaling(
    models: Annotated[str, typer.Option(help="Networks, separated by commas.")] = NETWORKS,
    ranks: Annotated[str, typer.Option(help="World sizes.")] = "1,2,4,8",
    strategies: Annotated[
        str, typer.Option(help="NAME or NAME/OPTION=VALUE/..., separated by commas; see above.")
    ] = "data",
    scaling: Annotated[str, typer.Option(help="strong, weak.")] = "strong,weak",
    hosts: Annotated[
        str | None,
        typer.Option(
            help="Hosts for the ranks; 0: this one. Emulated hosts, or nodes of the allocation.",
            show_default="0; in an allocation, all its nodes",
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(help="Rates of emulated hosts' links, each way: 200mbit,1gbit.", show_default=False),
    ] = None,
    cpus_per_host: Annotated[
        float | None,
        typer.Option(
            help="Cores whose time each emulated host gets at most, such as 0.2.", show_default=False
        ),
    ] = None,
    size: Size = 32,
    width: Width = 8,
    batch: Annotated[
        int, typer.Option(help="Samples per step: strong, of all ranks; weak, of each.", min=1)
    ] = 8,
    steps: Annotated[int, typer.Option(help="Timed steps per measurement.", min=1)] = 10,
    repeats: Annotated[int, typer.Option(help="Measurements of each cell, in turn.", min=1)] = 3,
    epochs: Annotated[
        int, typer.Option(help="Also train each cell for so many epochs: accuracy against time.", min=0)
    ] = 0,
    target_auc: Annotated[
        float | None,
        typer.Option(
            help="With --epochs: say how long each training takes until its validation AUC is so high.",
            min=0.0,
            max=1.0,
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the study.")] = Path("scaling"),
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Measure failed cells again.")] = False,
    dry_run: Measured = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> int:
    """Measure networks with strategies on numbers of ranks; draw speed-up, efficiency, parts of a step,
    bytes.

    Strategies: data, parameter-server, spatial, filters, hybrid, hypergraph (the last four are only trained:
    --epochs). Options are the keys of train.strategy; parameter-server also takes servers=K or servers=n, as
    many as ranks. A study that was stopped goes on where it was; its folder holds scaling.html, table.csv,
    table.tex and every row. Several studies in one folder share the page.

    \b
    Example:
      cingulum bench scaling --models resnet18 --ranks 1,2 --dry-run
      cingulum bench scaling --ranks 1,2,4,8 --hosts 0,8 --bandwidth 200mbit --cpus-per-host 0.2 \\
        --strategies data,parameter-server,parameter-server/servers=n/placement=colocated
      cingulum bench scaling --models tiny --ranks 2 --epochs 5 --target-auc 0.9 --strategies data,hypergraph
    """
    import json

    from cingulum.bench.scaling import conduct
    from trainer.bench.scaling.results import StudyResults
    from trainer.bench.scaling.study import Study
    from trainer.errors import InputError

    nodes = conduct.allocation()
    default = "0" if nodes is None else str(len(nodes))
    among = _numbers("--hosts", default if hosts is None else hosts, least=0)
    study = Study(
        models=_words("--models", models),
        ranks=_numbers("--ranks", ranks),
        strategies=_words("--strategies", strategies),
        batch=batch,
        size=size,
        width=width,
        scalings=_scalings(scaling),
        hosts=among,
        bandwidths=_words("--bandwidth", bandwidth) if bandwidth else (None,),
        steps=steps,
        repeats=repeats,
        epochs=epochs,
        emulated=nodes is None and any(among),
        cpus=cpus_per_host,
    )
    conduct.check(study)
    _check_words(study)
    if target_auc is not None and not epochs:
        raise InputError("--target-auc: nothing is trained.", cure="Add --epochs, such as --epochs 10.")
    results = StudyResults(out)
    if dry_run:
        typer.echo(_told(study, results, retry=retry_failed))
        return 0
    rows = _measured(study, results, retry=retry_failed)
    if as_json:
        typer.echo(json.dumps([json.loads(row.to_json()) for row in rows], indent=1))
    else:
        typer.echo(_outcome(study, results, target_auc))
    return 0 if not rows or any(row.error is None for row in rows) else 1


def _words(option: str, text: str) -> tuple[str, ...]:
    """Return the words between commas, each once.

    Raises:
        InputError: the text holds no word.
    """
    from trainer.errors import InputError

    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise InputError(f"{option}: expected names separated by commas, not {text!r}.")
    return words


def _numbers(option: str, text: str, *, least: int = 1) -> tuple[int, ...]:
    """Return the whole numbers between commas, each once.

    Raises:
        InputError: a word is not a number, or is too small.
    """
    from trainer.errors import InputError

    words = _words(option, text)
    if not all(word.isascii() and word.isdigit() and int(word) >= least for word in words):
        raise InputError(f"{option} {text}: expected whole numbers from {least} up, separated by commas.")
    return tuple(dict.fromkeys(int(word) for word in words))


def _scalings(text: str) -> tuple[str, ...]:
    from trainer.bench.scaling.cells import SCALINGS
    from trainer.errors import InputError

    words = _words("--scaling", text)
    if unknown := [word for word in words if word not in SCALINGS]:
        raise InputError(f"--scaling {unknown[0]}: expected {' or '.join(SCALINGS)}.")
    return words


def _check_words(study: Study) -> None:
    """Check that networks and options exist, before anything is measured.

    Raises:
        ModelError: no such network, or volumes too small for it.
        ConfigError: an option that the strategy does not have, or an impossible value.
    """
    import yaml

    from trainer.bench.scaling.cells import Cell
    from trainer.bench.scaling.variants import OTHERS, section, variant
    from trainer.config import parsing
    from trainer.errors import ModelError
    from trainer.quiet import import_tensorflow

    for word in study.strategies:
        how = variant(word)
        if not how.can_train:
            ranks, model = max(study.ranks), study.models[0]
            servers = how.servers_for(ranks)
            cell = Cell(model, strategy=how.strategy, options=how.options, ranks=ranks, servers=servers)
            OTHERS[how.strategy].check(cell)
            continue
        tree = {
            "name": "study",
            "data": {"shards": "none"},
            "train": {"strategy": section(how.strategy, how.options, how.servers_for(1))},
        }
        parsing.parse(yaml.safe_dump(tree), source=f"--strategies {word}")
    import_tensorflow()
    from trainer import models

    for name in study.models:
        network = models.describe(name)
        if study.size < network.smallest:
            raise ModelError(f"--size {study.size}: {name} needs {network.smallest} voxels an edge.")


def _told(study: Study, results: StudyResults, *, retry: bool) -> str:
    """Describe what would be measured."""
    cells = study.cells()
    todo = results.missing(cells, retry=retry)
    lines = [f"{len(cells)} cells, {len(cells) - len(todo)} of them measured already; into {results.folder}"]
    most = max(cell.machines for cell in cells)
    if study.emulated:
        lines.append(f"a testbed of {most} emulated hosts, taken down at the end; needs root")
        lines += _crowded(study, most)
    lines += [f"  {cell.describe()}" for cell in todo]
    return "\n".join(lines)


def _crowded(study: Study, most: int) -> list[str]:
    """Warn where emulated hosts have too few cores to compute as real hosts would."""
    import os

    cores = len(os.sched_getaffinity(0))
    if study.cpus is not None and most * study.cpus <= cores:
        return []
    share = max(0.01, int(100 * cores / most) / 100)
    return [
        f"warning: {most} emulated hosts share {cores} cores: bytes and communication will be real, "
        f"computing will not scale; --cpus-per-host {share:g} gives each the same share"
    ]


def _measured(study: Study, results: StudyResults, *, retry: bool) -> list[MeasuredCell]:
    """Return all rows of the study, including those measured earlier.

    Raises:
        Stopped: SIGTERM or SIGUSR2 came, as Slurm sends them before a time limit.
    """
    import functools

    from cingulum.bench.scaling import conduct
    from cingulum.bench.scaling.measure import measure
    from cingulum.bench.scaling.training import train
    from trainer.attempts import attempt
    from trainer.bench.scaling import page
    from trainer.bench.scaling.cells import key
    from trainer.errors import Stopped
    from trainer.ranks.stopping import ended_by_signals
    from trainer.telling import tell

    if study.emulated:
        for line in _crowded(study, max(cell.machines for cell in study.cells())):
            typer.echo(line, err=True)
    stopped = Stopped(
        f"stopped by a signal; {results.folder} has all that was measured.",
        cure="The same command goes on where it stopped.",
    )
    with ended_by_signals(stopped), results:
        training = functools.partial(train, folder=results.folder)
        conduct.conduct(study, results, retry=retry, measure=measure, train=training)
        attempt(
            page.PAGE,
            lambda: page.save(results.studies(), results.rows, results.folder),
            remedy="the same command again, which measures nothing twice",
            note=tell,
        )
    return [results.rows[key(cell)] for cell in study.cells()]


def _outcome(study: Study, results: StudyResults, target_auc: float | None) -> str:
    """Return a table, how long trainings take to a target where there is one, and the path of the page."""
    from trainer.bench.scaling.page import PAGE
    from trainer.bench.scaling.study import merged
    from trainer.bench.scaling.summary import curves, failures, trainings

    lines = merged([study])
    report = []
    for curve in curves(lines, results.rows):
        first = curve.line.first
        report.append(f"{first.model}, {first.scaling} scaling, {curve.line.strategy}, {curve.line.place}")
        for point in curve.points:
            share = "" if point.efficiency is None else f"{point.efficiency:8.1%}"
            report.append(f"  {point.ranks:3d} ranks {point.samples_per_second:10.2f} samples/s {share}")
    if target_auc is not None:
        report += [_reached(training, target_auc) for training in trainings(lines, results.rows)]
    if failed := failures(lines, results.rows):
        report.append(f"{len(failed)} cells failed; --retry-failed measures them again")
    return "\n".join([*report, str(results.folder / PAGE)])


def _reached(training: TrainingCurve, target_auc: float) -> str:
    cell, seconds = training.row.cell, training.seconds_to("val_auc", target_auc)
    took = f"not in {cell.epochs} epochs" if seconds is None else f"{seconds:.1f} s"
    where = f"{cell.model}, {training.line.strategy}, {cell.ranks} ranks, {training.line.place}"
    return f"{where}: validation AUC {target_auc:g}: {took}"
