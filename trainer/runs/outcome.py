"""What comes of a run: the best epoch's network, how good it is on held-out subjects, the report."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainer import atomic, report
from trainer.attempts import attempt
from trainer.errors import RunError, typed
from trainer.ranks.agreement import agree
from trainer.report import case_maps
from trainer.run_folder import checkpoint, record, resuming
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord, identity
from trainer.runs import preparation, split_predictions
from trainer.runs.preparation import Data
from trainer.runs.restoring import KeptWeights, best_whole, weights_of
from trainer.runs.session import Session
from trainer.strategies.guards import weights_sha256
from trainer.telemetry import records
from trainer.telemetry.prediction import RunPrediction, compare


def finish(training: Session, cache: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    """Evaluate the weights that are kept; write what was computed, result.json last; then the other parts.

    With result.json the run is finished, whatever becomes of the parts. Killed before, --resume does all of
    this again, without training.

    Args:
        training: done.
        cache: what the cache was good for, for run.json; a collective.

    Returns:
        The content of result.json, on every rank.

    Raises:
        Agreed: a file could not be written, or no epoch's weights are left.
    """
    world, folder, cursor = training.world, training.folder, training.cursor
    model = training.learner.gather()
    final_sha256 = weights_sha256(model)
    training.watchdog.beat("loading the best epoch", collective=not world.is_main)
    kept = agree(world, lambda: _keep_best(training).told(cursor) if world.is_main else {})
    training.learner.spread(world)
    metrics = _evaluated(training)
    used = cache()

    def write() -> dict[str, Any]:
        done = {"finished": record.now(), "cache": used}
        RunRecord.read(folder.run).model_copy(update=done).write(folder.run)
        result = {
            "run": training.config.name,
            "start": training.start,
            "final": cursor.rows[-1],
            **kept,
            "best_by": training.patience.metric,
            "trained_loss": training.config.trained_loss,
            "samples_per_second": round(training.clock.speed, 3),
            "input_wait_share": round(training.clock.input_wait_share, 5),
            "weights_sha256": final_sha256,
            "best_weights_sha256": weights_sha256(model),
            "epochs": cursor.epochs_done,
            "steps": cursor.step,
            **training.facts(),
            **metrics,
        }
        record.write_json(folder.result, result)
        return result

    training.watchdog.beat("writing the results", collective=not world.is_main)
    result = dict(world.broadcast_object(agree(world, lambda: write() if world.is_main else None)))
    parts = [name for name in _PARTS if name != _MAPS or training.data.task.dense]
    return _with_parts(training, result, parts)


def complete(training: Session) -> dict[str, Any]:
    """Write the missing files of a finished run again; of result.json, only what it does not have.

    Returns:
        The content of result.json, on every rank.

    Raises:
        Agreed: result.json is damaged, a file could not be written, or the weights that were kept are lost.
    """
    world, folder = training.world, training.folder

    def look() -> tuple[dict[str, Any], list[str], list[str]]:
        folder.discard_partial()
        result = dict(record.read_json(folder.result))
        return result, *_missing(training, result)

    result, measured, others = world.broadcast_object(agree(world, lambda: look() if world.is_main else None))
    missing = [*measured, *(name for name in others if name not in _FIGURES)]
    training.reporter.note(
        f"{folder.path}: is finished already"
        + (f"; writing what is missing: {', '.join(missing)}." if missing else ".")
    )
    if measured:
        training.watchdog.beat("loading the best epoch", collective=not world.is_main)
        agree(world, lambda: _load_kept(training, result) if world.is_main else None)
        training.learner.spread(world)
        metrics = _evaluated(training)
        training.watchdog.beat("writing what is missing", collective=not world.is_main)
        added = agree(world, lambda: _added(training, result, metrics) if world.is_main else None)
        result = world.broadcast_object(added)
    due = {*others, _REPORT, *([_MAPS] if measured and training.data.task.dense else [])}
    parts = [name for name in _PARTS if name in due]
    return _with_parts(training, dict(result), parts, has_report=not missing)


# What else belongs to a run, by name, in the order in which it is tried.
_TRACE, _ENERGY, _COMPARISON = "telemetry/trace.json", "the energy", "the comparison with what was predicted"
_BASELINE, _MAPS, _REPORT = RunFolder.baseline.name, "evaluation/maps", RunFolder.report.name
# Keys of result.json that are read from other files, where those have them.
_FIGURES = {_ENERGY: "energy_wh", _COMPARISON: "prediction"}


def _make(training: Session, name: str, result: dict[str, Any]) -> dict[str, Any]:
    """Make one of `_PARTS`, on rank 0 without a collective; returns what result.json gets of it."""
    folder = training.folder
    if name == _ENERGY:
        used = records.energy(folder.path)
        if used is None:  # looked for, and not measured: else it would be looked for at every resume
            return {"energy_wh": None}
        return {"energy_wh": round(used[0] / 3600, 6), "energy_source": used[1]}
    if name == _COMPARISON:
        known = RunPrediction.read(folder.path)
        memory = result.get("memory_bytes", ())
        figures = {} if known is None else compare(known, records.read(folder.path), memory)
        return {"prediction": figures} if figures else {}
    if name == _TRACE:
        training.telemetry.join_traces()
    elif name == _BASELINE:
        _write_baseline(training)
    elif name == _MAPS:
        _write_maps(training, result)
    else:
        report.write(folder.path, note=training.reporter.note)
    return {}


_PARTS = (_TRACE, _ENERGY, _COMPARISON, _BASELINE, _MAPS, _REPORT)


def _with_parts(
    training: Session, result: dict[str, Any], names: Sequence[str], *, has_report: bool = False
) -> dict[str, Any]:
    """Try one part after the other, each with its beat; returns what result.json is then, on every rank.

    The other ranks wait for each of them, so that no limit of theirs passes meanwhile.

    Args:
        training: done.
        result: content of result.json.
        names: of `_PARTS`, the same on every rank.
        has_report: whether there is a report of all that is there, so that it is made anew only where
            result.json changes.

    Raises:
        Agreed: another start writes this run folder now.
    """
    world, folder, watchdog = training.world, training.folder, training.watchdog
    resume = resuming.command(folder)
    watchdog.kept = f"{folder.path} is finished all the same. To make what is missing: {resume}"
    left_out: list[str] = []
    before = dict(result)

    def make(name: str) -> None:
        if name == _REPORT and has_report and result == before:
            return
        if training.stop.requested:
            left_out.append(name)
            return
        attempt(
            name,
            lambda: result.update(_added(training, result, _make(training, name, result))),
            remedy=f"cingulum report {typed(folder.path)}" if name == _REPORT else resume,
            note=training.reporter.note,
            limit_s=training.config.guards.timeout_s,
        )

    for name in names:
        # As patient as those that wait: a part is given up before either speaks.
        watchdog.beat(f"making {name}", collective=True)
        agree(world, functools.partial(make, name) if world.is_main else lambda: None)
    if left_out:
        training.reporter.note(
            f"{folder.path}: is finished; as asked to stop, without {', '.join(left_out)}. "
            f"To make it: {resume}"
        )
    watchdog.beat("ending", collective=True)
    return dict(world.broadcast_object(result))


def _added(training: Session, result: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Write result.json with what it does not have yet; returns it."""
    new = {key: value for key, value in more.items() if key not in result}
    if new:
        result = {**result, **new}
        record.write_json(training.folder.result, result)
    return result


def _missing(training: Session, result: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return names of what a finished run has and this one has not: what was measured, and of `_PARTS`."""
    folder, data = training.folder, training.data
    measured = [
        folder.model,
        *(folder.evaluation / f"{name}.{kind}" for name in _held_out(data) for kind in ("csv", "json")),
    ]
    lost = [str(path.relative_to(folder.path)) for path in measured if not path.exists()]
    if "test" in _held_out(data) and "test" not in result:
        lost.append("the test metrics")
    due = {
        _TRACE: training.telemetry.has_traces and not (folder.path / _TRACE).exists(),
        **{name: key not in result for name, key in _FIGURES.items()},
        _BASELINE: _has_tissue(data) and not folder.baseline.exists(),
        _MAPS: data.task.dense and not (folder.path / _MAPS).exists(),
        _REPORT: not (folder.report.exists() and folder.figures.exists()),
    }
    return lost, [name for name in _PARTS if due[name]]


def _keep_best(training: Session) -> KeptWeights:
    """Put the weights that are kept, of the best epoch, into rank 0's network and into model.keras.

    Raises:
        RunError: no epoch's checkpoint is whole, and none can be written.
    """
    folder, cursor = training.folder, training.cursor
    last = checkpoint.path_of(folder.checkpoints, cursor.step)
    kept = best_whole(folder, cursor, training.patience)
    if (kept is None or kept.why) and checkpoint.check(last, identity(folder)) is not None:
        training.reporter.note(f"{last} is damaged; it is written again, from memory.")
        training.write_checkpoint()
        kept = best_whole(folder, cursor, training.patience)
    if kept is None:
        raise RunError(f"{folder.checkpoints}: no epoch's checkpoint is whole.", path=folder.checkpoints)
    if kept.why:
        training.reporter.note(f"warning: {kept.why}")
    source = weights_of(kept.path)
    checkpoint.load_weights(source, training.learner.model)
    atomic.write_by(folder.model, lambda beside: shutil.copyfile(source, beside))
    return kept


def _load_kept(training: Session, result: dict[str, Any]) -> None:
    """Put the weights that result.json tells of into rank 0's network, from model.keras or their checkpoint.

    Raises:
        RunError: neither has them.
    """
    folder, model = training.folder, training.learner.model
    kept = result.get("kept") or result.get("best") or {}
    step = kept.get("step", training.cursor.step)
    source = weights_of(checkpoint.path_of(folder.checkpoints, step))
    for path in (folder.model, source):
        if path.is_file():
            with contextlib.suppress(RunError):  # the other one may have them
                checkpoint.load_weights(path, model)
                if weights_sha256(model) == result.get("best_weights_sha256"):
                    if path != folder.model:
                        atomic.write_by(folder.model, lambda beside: shutil.copyfile(source, beside))
                    return
    raise RunError(
        f"{folder.path}: the weights of the best epoch are missing: neither {folder.model.name} nor {source} "
        "has those that result.json tells of.",
        cure="Restore one of them. To finish the run anew, from the checkpoints that are whole: "
        f"rm {typed(folder.result)}; {resuming.command(folder)}",
        path=folder.path,
    )


def _held_out(data: Data) -> list[str]:
    """Return the splits that a run is judged on."""
    return [name for name in ("validation", "test") if data.rows(name)]


def _evaluated(training: Session) -> dict[str, Any]:
    """Predict the held-out splits and write evaluation/; a collective.

    Returns:
        What result.json gets of it: `test`, the metrics, unless there are none or they could not be computed.
        A table or metrics that fail are tried again by --resume, and no reason to lose the rest.
    """
    world, folder, data = training.world, training.folder, training.data
    predicted = {name: training.predictions(name) for name in _held_out(data)}
    metrics: dict[str, Any] = {}

    def measure(name: str) -> None:
        metrics[name] = split_predictions.write_metrics(folder, name, predicted[name], data)

    def attempted(file: str, write: Callable[[], None]) -> None:
        attempt(
            f"evaluation/{file}",
            write,
            remedy=resuming.command(folder),
            note=training.reporter.note,
            limit_s=training.config.guards.timeout_s,
        )

    for name, predictions in predicted.items():
        table = functools.partial(split_predictions.write_table, folder, name, predictions, data)
        for file, write in ((f"{name}.csv", table), (f"{name}.json", functools.partial(measure, name))):
            training.watchdog.beat(f"writing evaluation/{file}", collective=True)
            agree(world, functools.partial(attempted, file, write) if world.is_main else lambda: None)
    return {name: metrics[name] for name in ("test",) if name in metrics}


def _write_maps(training: Session, result: dict[str, Any]) -> None:
    """Keep the predicted maps of those volumes that the report draws; of rank 0 alone, no collective.

    By the ordinary network: a strategy that divides it predicts on all ranks together.
    """
    from trainer.report import cases

    shards, model = training.data.shards, training.learner.model
    if weights_sha256(model) != result.get("best_weights_sha256"):
        _load_kept(training, result)
    predict = preparation.of_whole_volumes(
        training.config, training.data, lambda x: np.asarray(model(x, training=False), np.float32)
    )
    for row in cases.rows_with_maps(training.folder.path):
        logits = np.asarray(predict(shards.read(row)[None].astype(np.float32)))
        labels = logits[0].argmax(axis=-1).astype(np.uint8)
        case_maps.write(training.folder.path, row, labels, np.array(shards.volumes[row].affine))


def _has_tissue(data: Data) -> bool:
    """Whether a baseline can be computed: of classes, from tissue volumes of all subjects."""
    rows = [*data.split.train, *data.split.validation, *data.split.test]
    volumes = data.shards.volumes
    return bool(data.split.test and data.task.volume_classes) and all(volumes[row].tissue for row in rows)


def _write_baseline(training: Session) -> None:
    # Imported here: scikit-learn would cost every rank a second at its start.
    from trainer.report.baseline import tissue_baseline

    data = training.data
    classes = data.task.volume_classes
    if classes is None or not _has_tissue(data):
        return
    rows = [*data.split.train, *data.split.validation, *data.split.test]
    labels = dict(zip(rows, np.asarray(data.task.targets(rows)).tolist(), strict=True))
    baseline = tissue_baseline(data.shards.volumes, data.split, labels, classes)
    if baseline is not None:
        record.write_json(training.folder.baseline, baseline)
