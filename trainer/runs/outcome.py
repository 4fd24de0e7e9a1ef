"""What comes of a run: the best epoch's network, how good it is on held-out subjects, the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np

from trainer import atomic, report
from trainer.errors import RunError
from trainer.ranks.agreement import agree
from trainer.report import case_maps
from trainer.run_folder import checkpoint, record
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord, owner
from trainer.runs import preparation, split_predictions
from trainer.runs.session import Session
from trainer.strategies.guards import weights_sha256
from trainer.strategies.learner import Predictions
from trainer.telemetry import records
from trainer.telemetry.prediction import RunPrediction, compare


def finish(training: Session, cache: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    """Evaluate the best epoch's weights; write model.keras, evaluation/, report.html, and result.json last.

    Killed at any moment before, the run is not finished, and --resume does all of this again.

    Args:
        training: done.
        cache: what the cache was good for, for run.json; a collective.

    Returns:
        The content of result.json, on every rank.

    Raises:
        Agreed: a file could not be written, or the best checkpoint is damaged.
    """
    world, folder, cursor = training.world, training.folder, training.cursor
    model = training.learner.gather()
    final_sha256 = weights_sha256(model)
    _take_best(training)
    found = _predictions(training)
    used = cache()
    result = {
        "run": training.config.name,
        "start": training.start,
        "final": cursor.rows[-1],
        "best": cursor.best,
        "samples_per_second": round(training.clock.speed, 3),
        "input_wait_share": round(training.clock.input_wait_share, 5),
        "weights_sha256": final_sha256,
        "best_weights_sha256": weights_sha256(model),
        "epochs": cursor.epochs_done,
        "steps": cursor.step,
        **training.facts(),
    }

    def write() -> dict[str, Any]:
        metrics = _write_evaluation(training, found)
        if "test" in metrics:
            result["test"] = metrics["test"]
        done = {"finished": record.now(), "cache": used}
        RunRecord.read(folder.run).model_copy(update=done).write(folder.run)
        training.telemetry.join_traces()
        drawn = records.energy(folder.path)
        if drawn is not None:
            result.update(energy_wh=round(drawn[0] / 3600, 6), energy_source=drawn[1])
        if compared := _compared(folder):
            result["prediction"] = compared
        report.write(folder.path, result)
        record.write_json(folder.result, result)
        return result

    training.watchdog.beat("writing the results", collective=not world.is_main)
    written = agree(world, lambda: write() if world.is_main else None)
    return dict(world.broadcast_object(written))


def _compared(folder: RunFolder) -> dict[str, Any]:
    """Return predicted beside measured; empty where nothing was predicted. The report names damage."""
    try:
        known = RunPrediction.read(folder.path)
        return {} if known is None else compare(known, records.read(folder.path))
    except (RunError, TypeError, ValueError, KeyError, AttributeError):
        return {}


def complete(training: Session) -> dict[str, Any]:
    """Write the missing files of a finished run again.

    result.json stays as it is.

    Returns:
        The content of result.json, on every rank.

    Raises:
        Agreed: result.json is damaged, a file could not be written, or the best epoch's weights are lost.
    """
    world, folder = training.world, training.folder

    def look() -> tuple[dict[str, Any], list[str]]:
        folder.discard_partial()
        return dict(record.read_json(folder.result)), _missing(training)

    result, missing = world.broadcast_object(agree(world, lambda: look() if world.is_main else None))
    if not missing:
        training.reporter.note(f"{folder.path}: is finished already.")
        return dict(result)
    training.reporter.note(
        f"{folder.path}: is finished already; writing what is missing: {', '.join(missing)}."
    )
    found = None
    if set(missing) - _OF_THE_REPORT:
        _take_best(training)
        agree(world, lambda: _check_best(training, result) if world.is_main else None)
        found = _predictions(training)

    def write() -> None:
        if found is not None:
            _write_evaluation(training, found)
        report.write(folder.path, result)

    training.watchdog.beat("writing what is missing", collective=not world.is_main)
    agree(world, lambda: write() if world.is_main else None)
    return dict(result)


# What the other files are enough for.
_OF_THE_REPORT = {"report.html", "figures"}


def _missing(training: Session) -> list[str]:
    """Names of what a finished run has, and this one has not."""
    folder, data = training.folder, training.data
    tables = [
        folder.evaluation / f"{name}.{kind}"
        for name in ("validation", "test")
        if data.rows(name)
        for kind in ("csv", "json")
    ]
    maps = [folder.evaluation / "maps"] if data.task.dense else []
    wanted = [folder.model, *tables, *maps, folder.report, folder.figures]
    return [str(path.relative_to(folder.path)) for path in wanted if not path.exists()]


def _check_best(training: Session, result: dict[str, Any]) -> None:
    """Refuse to evaluate other weights than those that result.json tells of."""
    if weights_sha256(training.learner.model) != result.get("best_weights_sha256"):
        raise RunError(
            f"{training.folder.path}: the weights of the best epoch are missing.",
            cure="Restore checkpoints/, or train again under another name: name=...",
            path=training.folder.path,
        )


def _take_best(training: Session) -> None:
    """Put the best epoch's weights into the network of every rank, and write model.keras; a collective."""
    world = training.world
    training.watchdog.beat("loading the best epoch", collective=not world.is_main)
    agree(world, lambda: _load_best(training) if world.is_main else None)
    training.learner.spread(world)


def _predictions(training: Session) -> dict[str, Predictions]:
    """Outputs for each held-out split, the same on every rank; a collective."""
    return {name: training.predictions(name) for name in ("validation", "test") if training.data.rows(name)}


def _write_evaluation(training: Session, found: dict[str, Predictions]) -> dict[str, dict[str, Any]]:
    """Write evaluation/ and baseline.json, on rank 0; returns the metrics of each split."""
    metrics = {
        name: split_predictions.write(training.folder, name, predictions, training.data)
        for name, predictions in found.items()
    }
    _write_baseline(training)
    _write_maps(training)
    return metrics


def _load_best(training: Session) -> None:
    """Put the best epoch's weights, averaged where there is an average, into rank 0's network."""
    cursor, folder = training.cursor, training.folder
    step = cursor.step if cursor.best_step is None else cursor.best_step
    best = checkpoint.path_of(folder.checkpoints, step)
    problem = checkpoint.check(best, owner(folder))
    if problem is not None:
        training.reporter.note(
            f"the best epoch's checkpoint {best} is damaged ({problem}); taking the last one."
        )
        best = checkpoint.path_of(folder.checkpoints, cursor.step)
    averaged = best / "averaged.keras"
    source = averaged if averaged.is_file() else best / "model.keras"
    training.learner.model.load_weights(source)
    atomic.write_by(folder.model, lambda beside: shutil.copyfile(source, beside))


def _write_maps(training: Session) -> None:
    """Keep the predicted maps of those volumes that the report draws; of rank 0 alone, no collective."""
    if not training.data.task.dense:
        return
    from trainer.report import cases

    shards = training.data.shards
    predict = preparation.of_whole_volumes(training.config, training.data, training.learner.predict)
    for row in cases.rows_with_maps(training.folder.path):
        logits = np.asarray(predict(shards.read(row)[None].astype(np.float32)))
        labels = logits[0].argmax(axis=-1).astype(np.uint8)
        case_maps.write(training.folder.path, row, labels, np.array(shards.volumes[row].affine))


def _write_baseline(training: Session) -> None:
    # Imported here: scikit-learn would cost every rank a second at its start.
    from trainer.report.baseline import tissue_baseline

    data = training.data
    classes = data.task.volume_classes
    if classes is None:
        return
    rows = [*data.split.train, *data.split.validation, *data.split.test]
    labels = dict(zip(rows, np.asarray(data.task.targets(rows)).tolist(), strict=True))
    baseline = tissue_baseline(data.shards.volumes, data.split, labels, classes)
    if baseline is not None:
        record.write_json(training.folder.baseline, baseline)
