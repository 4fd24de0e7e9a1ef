"""`cingulum predict`, `evaluate` and `export`: use the network of a finished run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cingulum.cli.options import AllowCode, RunOrFolds, Split, SplitName

if TYPE_CHECKING:
    from trainer.inference.predictor import Predictor


def predict(
    run: Annotated[Path, typer.Argument(help="Run folder, or a cross-validation's with its fold-* runs.")],
    images: Annotated[
        list[str],
        typer.Argument(help="Images as they come from the scanner; several contrasts as T1.nii.gz,T2.nii.gz"),
    ],
    output: Annotated[Path | None, typer.Option(help="Write a CSV table here instead of showing it.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for label maps (segmentation), and for predictions.csv.")
    ] = None,
    ensemble: Annotated[
        list[Path] | None, typer.Option(help="A further run to average with; may be given several times.")
    ] = None,
    tta: Annotated[bool, typer.Option(help="Average with the left-right mirrored image.")] = False,
    shifts: Annotated[int, typer.Option(help="Average with so many copies shifted by a voxel (0 to 6).")] = 0,
    window: Annotated[
        int | None,
        typer.Option(
            help="Segmentation: slide windows of this edge over the whole head, not the cube alone."
        ),
    ] = None,
    overlap: Annotated[float, typer.Option(help="Share that neighbouring windows have in common.")] = 0.5,
    covariates: Annotated[
        Path | None, typer.Option(help="Table of people (as participants.tsv), for runs that need it.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images, or windows, per call of the network.")] = 4,
    resume: Annotated[bool, typer.Option("--resume", help="Leave out images that the table has.")] = False,
    allow_code: AllowCode = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the predictions as JSON.")] = False,
) -> None:
    """Predict class, number or label map of raw images, prepared as the run's training images were.

    An image that cannot be used gets a row that says why; the others are predicted, and the exit code is 2.
    Warnings about images have a line each on standard error, as in `cingulum import`.

    \b
    Example:
      cingulum predict runs/demo scans/*.nii.gz --output table.csv
      cingulum predict runs/tissues scans/*.nii.gz --out maps
      cingulum predict runs/fold-0 scans/*.nii.gz --ensemble runs/fold-1 --tta
    """
    import json

    from cingulum.cli.import_ import Findings
    from trainer.errors import ImageError
    from trainer.progress import Counting
    from trainer.quiet import import_tensorflow
    from trainer.run_folder import resuming

    if not any(run.glob("fold-*/config.yaml")):
        resuming.open_finished(run)  # before TensorFlow is loaded, which takes seconds
    table = output or (out / "predictions.csv" if out is not None else None)
    _check_places(output, out)
    import_tensorflow()
    from trainer.inference.ensemble import Ensemble, views
    from trainer.inference.predictor import Predictor
    from trainer.inference.requests import People, file_names, requests
    from trainer.inference.results import Results
    from trainer.telling import tell

    runs = Ensemble.open([run, *(ensemble or [])], views(flip=tta, shifts=shifts), allow_code or ())
    for member in runs.members:
        resuming.open_finished(member.path, note=tell)
    people = People.read(covariates) if covariates is not None else None
    predictor = Predictor.build(runs, people=people, window=window, overlap=overlap, batch=batch)
    inputs = requests(images, runs.first.recipe.contrasts)
    maps = {}
    if runs.first.task == "segmentation":
        maps = {name: _folder_of_maps(run, out) / p for name, p in file_names(inputs, "_dseg.nii.gz").items()}
    results = Results(predictor.columns(), _made_by(predictor), table)
    if resume:
        results.resume()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    missing = [request for request in inputs if request.name not in results]
    findings = Findings()
    with Counting("predicting", "images") as counting:
        done = len(inputs) - len(missing)
        counting.show(done, len(inputs))
        try:
            for rows in predictor.rows(missing, maps, findings.add):
                results.add(rows)
                done += len(rows)
                counting.show(done, len(inputs))
        finally:  # Ctrl-C, a full disk: what was found is kept
            results.write()
            for _, line in findings.lines("warning"):
                counting.note(line, "yellow")
    rows = [row for row in results.rows if row["image"] in {request.name for request in inputs}]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif table is None:
        _show(rows)
    else:
        more = len(results.rows) - len(rows)
        earlier = f", beside {more} of other images" if more else ""
        typer.echo(f"{table}: {sum(not row['error'] for row in rows)} of {len(rows)} predicted{earlier}")
    failed = [row for row in rows if row["error"]]
    if failed:
        others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise ImageError(
            f"{len(failed)} of {len(rows)} images could not be predicted: {failed[0]['error']}{others}",
            cure="The column `error` says what is wrong with each; the others are done.",
        )


def _check_places(output: Path | None, out: Path | None) -> None:
    from trainer.errors import RunError, typed

    if output is not None and not output.parent.is_dir():
        cure = f"mkdir -p {typed(output.parent)}"
        raise RunError(f"{output}: there is no folder {output.parent}.", cure=cure)
    if output is not None and output.is_dir():
        raise RunError(f"{output}: is a folder.", cure="Name a file, such as predictions.csv")
    if out is not None and out.exists() and not out.is_dir():
        raise RunError(f"{out}: is a file.", cure="Name a folder for the label maps, such as maps")


def _folder_of_maps(run: Path, out: Path | None) -> Path:
    from trainer.errors import RunError

    if out is None:
        raise RunError(
            f"{run}: writes a label map for each image, and no folder was given.", cure="Add --out FOLDER"
        )
    return out


def _made_by(predictor: Predictor) -> dict[str, Any]:
    """Return what the rows of the table depend on, as JSON values."""
    from trainer.run_folder import machine

    first, views = predictor.ensemble.first, predictor.ensemble.views
    windows = predictor.windows
    return {
        "cingulum": machine.version("cingulum"),
        "runs": [
            {"path": str(member.path), "weights_sha256": member.weights_sha256}
            for member in predictor.ensemble.members
        ],
        "task": first.task,
        "target": first.target,
        "classes": list(first.classes),
        "preprocessing": first.recipe.to_json(),
        "covariates": str(predictor.people.table.path) if predictor.people else None,
        "views": [{"mirrored": view.mirrored, "shift": list(view.shift)} for view in views],
        "windows": {
            "size": list(windows.size),
            "overlap": windows.overlap,
            "whole_head": predictor.whole_head,
        }
        if windows
        else None,
    }


def _show(rows: list[dict[str, Any]]) -> None:
    wide = max(len(row["image"]) for row in rows)
    for row in rows:
        prediction = "  ".join(
            f"{value:<8}" if name == "predicted" else f"{name.removeprefix('p_')} {value:.3f}"
            for name, value in row.items()
            if value is not None and name not in ("image", "segmentation", "error")
        )
        typer.echo(f"{row['image']:<{wide}}  {prediction or 'not predicted: ' + str(row['error'])}")


def evaluate(
    run: RunOrFolds,
    split: Split = SplitName.test,
    allow_code: AllowCode = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> int:
    """Evaluate a finished run on its test, validation or training scans, and write the predictions.

    Writes RUN/evaluation/SPLIT.csv and .json. Under mpirun the ranks share the work. Of a cross-validation's
    folder it shows the figures of all scans, each predicted by the network not trained on its subject.

    Intervals are by subject, however many scans each has.

    \b
    Example:
      cingulum evaluate runs/demo --split validation
    """
    import json

    from trainer.ranks import launch, starting
    from trainer.run_folder import crossval_folder, resuming

    if crossval_folder.is_crossval(run):
        if launch.is_first():  # nothing is computed, and mpirun's other processes would say the same
            _show_crossval(run, split, as_json=as_json)
        return 0
    if launch.expected_size() == 1:
        resuming.open_finished(run)  # a wrong folder is refused before TensorFlow is loaded
    world = starting.init()

    from trainer.ranks.agreement import together
    from trainer.report import against_volumes
    from trainer.runs.finished_run import evaluate_run
    from trainer.telling import tell

    def body() -> int:
        metrics = evaluate_run(run, split.value, world, allow_code or ())
        if not world.is_main:
            return 0
        resuming.open_finished(run, note=tell)
        if as_json:
            typer.echo(json.dumps(metrics, indent=2))
            return 0
        for line in lines_of(metrics):
            typer.echo(line)
        linear = against_volumes.linear_line(run, metrics) if split is SplitName.test else None
        if linear is not None:
            typer.echo(linear)
        typer.echo(f"predictions: {run / 'evaluation' / split.value}.csv")
        return 0

    return together(world, body)


def _show_crossval(folder: Path, split: SplitName, *, as_json: bool) -> None:
    """Show crossval.json; compute nothing."""
    import json

    from cingulum.cli.crossval import readable
    from trainer.errors import RunError, typed
    from trainer.run_folder import crossval_folder

    summary = crossval_folder.summary(folder)
    if split is not SplitName.test:
        one = crossval_folder.runs(folder)[0]
        raise RunError(
            f"{folder}: a cross-validation is judged on subjects held out: the test split of each fold.",
            cure=f"For one fold: cingulum evaluate {typed(one)} --split {split.value}",
        )
    typer.echo(json.dumps(summary, indent=2) if as_json else readable(folder, summary))


def lines_of(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Return a line for each metric: four digits, and the 95 % interval where it has one."""
    from trainer.metrics.subjects import TOO_FEW

    for name, value in metrics.items():
        if name.endswith("_interval"):
            continue
        name = "scans" if name == "n" else name
        figure = "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
        if value is not None and f"{name}_interval" in metrics:
            bounds = metrics[f"{name}_interval"]
            figure += f"  (95 % interval {bounds[0]:.4f} to {bounds[1]:.4f})" if bounds else f"  ({TOO_FEW})"
        yield f"{name.replace('_', ' '):<18}  {figure}"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder, such as runs/demo.")],
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format", help="keras (always written), savedmodel, onnx; may be given several times."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; default: RUN/export.")] = None,
    licence: Annotated[str | None, typer.Option(help="Licence of the weights, for the model card.")] = None,
    allow_code: AllowCode = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the model card as JSON.")] = False,
) -> None:
    """Write a network as Keras file, SavedModel or ONNX, with a model card.

    Each file is loaded back and compared with the network on random volumes before it gets its name.

    \b
    Example:
      cingulum export runs/demo --format savedmodel --format onnx --out exported
    """
    import json

    from trainer.quiet import import_tensorflow
    from trainer.run_folder import resuming
    from trainer.telling import tell

    resuming.open_finished(run, note=tell)  # before TensorFlow is loaded, which takes seconds
    import_tensorflow()
    from trainer import export as exports

    folder = out if out is not None else run / "export"
    card = exports.export(run, formats or [], folder, licence, allow_code or ())
    if as_json:
        typer.echo(json.dumps(card, indent=2))
        return
    for about in card["formats"].values():
        typer.echo(
            f"{folder / about['file']}: the same outputs (largest difference {about['difference']:.1e})"
        )
    if (folder / "MODEL_CARD.md").is_file():
        typer.echo(f"{folder / 'MODEL_CARD.md'}")
