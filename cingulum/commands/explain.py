"""`cingulum explain`: where a finished run's network looks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cingulum.commands.options import AllowCode, RunOrFolds, Split, SplitName
from trainer.explain import BaselineName, MethodName
from trainer.telling import tell

if TYPE_CHECKING:
    from trainer.explain.story import Request


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

    def request(one: Path, most: int) -> story.Request:
        return story.Request(
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


def _explain(request: Request, *, as_json: bool) -> dict[str, Any]:
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


def _show_regions(found: dict[str, Any] | None) -> None:
    from trainer.metrics.subjects import TOO_FEW

    if found is None or not found["pooled"]["n"]:
        return
    pooled = found["pooled"]
    typer.echo(f"share of the map where the disease moved more than {found['changed_mm']} mm:")
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
