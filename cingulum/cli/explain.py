"""`cingulum explain` and `baseline`: what a network looks at, and what simple features reach."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cingulum.cli.options import AllowCode, RunOrFolds, Shards, Split, SplitName
from trainer.explain import BaselineName, MethodName
from trainer.telling import tell

if TYPE_CHECKING:
    from trainer.explain.story import ExplainRequest


def explain(
    run: RunOrFolds,
    images: Annotated[
        list[str] | None,
        typer.Argument(help="Raw images; without any, held-out scans of the run's shards."),
    ] = None,
    split: Split = SplitName.test,
    subjects: Annotated[
        int, typer.Option(help="Subjects at most, of all classes in turn, each with all its scans.")
    ] = 20,
    method: Annotated[MethodName, typer.Option(help="How maps are made.")] = MethodName.gradcam,
    target: Annotated[
        str | None, typer.Option("--class", help="Class to explain; default: each subject's predicted one.")
    ] = None,
    layer: Annotated[
        str | None, typer.Option(help="Grad-CAM: layer to take; default: the last with a spatial output.")
    ] = None,
    baseline: Annotated[
        BaselineName,
        typer.Option(help="Reference volume: air, or the mean training volume (not for Grad-CAM)."),
    ] = BaselineName.air,
    regions: Annotated[
        Path | None,
        typer.Option(help="Phantom cohort of the images: report the map's share where disease acted."),
    ] = None,
    covariates: Annotated[
        Path | None, typer.Option(help="Table of people for raw images, for networks that need it.")
    ] = None,
    allow_code: AllowCode = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json.")] = False,
) -> None:
    """Map what a network's answer depends on: Grad-CAM, integrated gradients or occlusion.

    Writes RUN/explanations/METHOD/: a NIfTI and pictures per scan, mean maps per class, summary.json, and
    index.html to look at. A map does not show where a disease is, only what the network uses. Of a
    cross-validation's folder, the subjects are divided over the folds of its first seed, and each is
    explained by the network that was not trained on it, in the folder of its fold.

    \b
    Example:
      cingulum explain runs/demo --class AD
      cingulum explain runs/demo scans/*.nii.gz --method integrated-gradients
      cingulum explain runs/demo --class AD --regions data/demo/cohort
    """
    import json

    from trainer.explain import check
    from trainer.quiet import import_tensorflow
    from trainer.run_folder import crossval_folder, resuming
    from trainer.run_folder.run_record import RunRecord

    # Before TensorFlow is loaded, which takes seconds.
    folds = crossval_folder.finished_runs(run) if crossval_folder.is_crossval(run) else None
    for one in folds or [run]:
        record = RunRecord.read(resuming.open_finished(one, note=tell).run)
        check(one, record.task.name, of_patches=record.patch is not None)
    import_tensorflow()
    from trainer.explain import story

    def request(one: Path, most: int) -> story.ExplainRequest:
        return story.ExplainRequest(
            run=one,
            images=tuple(images or ()),
            split=split.value,
            subjects=most,
            method=method,
            target=target,
            layer=layer,
            baseline=baseline,
            regions=regions,
            people=covariates,
            code=tuple(allow_code or ()),
        )

    if folds is None:
        summary = _explain(request(run, subjects), as_json=as_json)
        if as_json:
            typer.echo(json.dumps(summary, indent=2))
        return
    shares = _shared(subjects, len(folds))
    found = [_explain(request(one, most), as_json=as_json) for one, most in zip(folds, shares, strict=True)]
    if as_json:
        typer.echo(json.dumps({"crossval": str(run), "folds": found}, indent=2))


def _explain(request: ExplainRequest, *, as_json: bool) -> dict[str, Any]:
    """Explain one run, print where its page is, and return its summary."""
    from trainer.explain import page, story
    from trainer.progress import Counting

    with Counting("explaining", "scans") as counting:
        summary = story.explain(request, counting.show)
    if not as_json:
        _show_regions(summary.get("regions"))
        if outside := page.mostly_outside(summary["outside_head"]):
            tell(f"warning: {outside}")
        people = len({scan["person"] for scan in summary["subjects"]})
        of = page.scans_of(len(summary["subjects"]), people)
        typer.echo(f"{of} explained: {request.folder / 'index.html'}")
    return summary


def _shared(subjects: int, folds: int) -> list[int]:
    """Return the number of subjects of each fold, one at least; below one `story` refuses it."""
    if subjects < 1:
        return [subjects] * folds
    return [max(1, subjects // folds + (fold < subjects % folds)) for fold in range(folds)]


def _show_regions(regions: dict[str, Any] | None) -> None:
    from trainer.metrics.subjects import TOO_FEW

    if regions is None or not regions["pooled"]["n"]:
        return
    pooled = regions["pooled"]
    typer.echo(f"share of the map where the disease moved more than {regions['changed_mm']} mm:")
    for name, key in (
        ("this network", "trained"),
        ("randomised network", "randomised"),
        ("chance", "chance"),
        ("above chance", "above_chance"),
        ("above randomised", "above_randomised"),
    ):
        bounds = pooled[key]["interval"]
        told = f"95 % interval {bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else TOO_FEW
        typer.echo(f"  {name:<20}{pooled[key]['mean']:7.3f}   {told}")


class Target(str, Enum):
    """What to predict instead of the label as a class."""

    age = "age"
    label = "label"
    site = "site"


def baseline(
    shards: Shards,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Labels to tell apart, such as NC,AD; of two, the second is the positive one. Default: all."
        ),
    ] = None,
    target: Annotated[
        Target | None,
        typer.Option(help="Predict the age, or the label as a number, or tell sites apart."),
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds, as data.split.seed.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Measure what simple features and a linear model reach, as a reference for a network's score.

    Age and sex; tissue volumes, where the set has them; moments and percentiles of the voxels; all together.
    Cross-validated over the folds that a network has with data.split.folds and data.split.seed.

    \b
    Example:
      cingulum baseline shards/phantom --classes NC,AD
      cingulum baseline shards/phantom --target age
      cingulum baseline shards/phantom --target site
    """
    import json

    from trainer.baseline import scores
    from trainer.data.shards.shards import ShardSet
    from trainer.errors import InputError
    from trainer.progress import Counting

    if classes is not None and target is not None:
        raise InputError("--classes and --target exclude each other.", cure="Give one of them.")
    names = None if classes is None else [name.strip() for name in classes.split(",") if name.strip()]
    shard_set = ShardSet.open(shards)
    with Counting("reading", "volumes") as counting:
        if target is None:
            reference = scores.of_classes(shard_set, names, folds, seed, counting.show)
        elif target is Target.site:
            reference = scores.of_sites(shard_set, folds, seed, counting.show)
        else:
            reference = scores.of_numbers(shard_set, target.value, folds, seed, counting.show)
    if as_json:
        typer.echo(json.dumps(reference, indent=1))
    else:
        _show(reference)


def _show(reference: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    classes = reference["task"] == "classification"
    console = Console(highlight=False, markup=False)
    what = " vs ".join(reference["classes"]) if classes else reference["target"]
    scans = f"{reference['volumes']} scans of {reference['subjects']} subjects"
    console.print(f"{what}: {scans}, {reference['folds']} folds, seed {reference['seed']}")
    shown = ("auc", "balanced_accuracy") if classes else ("mae", "r2")
    titles = {"auc": "AUC", "balanced_accuracy": "balanced accuracy", "mae": "mean error", "r2": "R²"}
    table = Table("features", "columns", *(titles[name] for name in shown), box=None, pad_edge=False)
    table.add_row("chance", "", *(_figure(reference["chance"], name, interval=False) for name in shown))
    for name, group in reference["groups"].items():
        table.add_row(name, str(len(group["features"])), *(_figure(group, figure) for figure in shown))
    console.print(table)
    for name, reason in reference["left_out"].items():
        console.print(f"without {name}: {reason}")
    console.print("In parentheses: 95 % intervals, by subject.")


def _figure(metrics: dict[str, Any], name: str, *, interval: bool = True) -> str:
    from trainer.metrics.subjects import TOO_FEW

    value, bounds = metrics[name], metrics.get(f"{name}_interval")
    if value is None:
        return "-"
    if not interval or f"{name}_interval" not in metrics:
        return f"{value:.2f}"
    if not bounds:
        return f"{value:.2f} ({TOO_FEW})"
    return f"{value:.2f} ({bounds[0]:.2f} to {bounds[1]:.2f})"
