"""What comes of a run: the best epoch's network, how good it is on held-out subjects, the report."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np

from trainer import atomic, checkpoint, evaluation, preparation, record, report
from trainer.agreement import agree
from trainer.loop import Training
from trainer.report import case_maps
from trainer.strategies.data import broadcast_state
from trainer.strategies.guards import weights_sha256
from trainer.telemetry import records


def finish(training: Training) -> dict[str, Any]:
    """Evaluate the best epoch's weights, and write evaluation/, model.keras, result.json and report.html.

    Returns:
        The content of result.json, on every rank.

    Raises:
        Agreed: a file could not be written, or the best checkpoint is damaged.
    """
    world, folder, data, cursor = training.world, training.folder, training.data, training.cursor
    model = training.learner.gather()
    final_sha256 = weights_sha256(model)
    training.watchdog.beat("loading the best epoch", collective=not world.is_main)
    agree(world, lambda: _load_best(training) if world.is_main else None)
    broadcast_state(model, None, world)
    found = {name: training.predictions(name) for name in ("validation", "test") if data.rows(name)}
    result = {
        "run": training.config.name,
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
        for name, predictions in found.items():
            metrics = evaluation.write(folder, name, predictions, data)
            if name == "test":
                result["test"] = metrics
        _write_baseline(training)
        _write_maps(training)
        record.write_json(folder.run, {**record.read_json(folder.run), "finished": record.now()})
        training.telemetry.join_traces()
        drawn = records.energy(folder.path)
        if drawn is not None:
            result.update(energy_wh=round(drawn[0] / 3600, 6), energy_source=drawn[1])
        record.write_json(folder.result, result)
        report.write(folder.path)
        return result

    training.watchdog.beat("writing the results", collective=not world.is_main)
    written = agree(world, lambda: write() if world.is_main else None)
    return dict(world.broadcast_object(written))


def _load_best(training: Training) -> None:
    """Put the best epoch's weights, averaged where there is an average, into rank 0's network."""
    cursor, folder = training.cursor, training.folder
    step = cursor.step if cursor.best_step is None else cursor.best_step
    best = checkpoint.path_of(folder.checkpoints, step)
    problem = checkpoint.check(best, record.owner(folder))
    if problem is not None:
        training.reporter.note(
            f"the best epoch's checkpoint {best} is damaged ({problem}); taking the last one."
        )
        best = checkpoint.path_of(folder.checkpoints, cursor.step)
    averaged = best / "averaged.keras"
    source = averaged if averaged.is_file() else best / "model.keras"
    training.learner.model.load_weights(source)
    atomic.write_by(folder.model, lambda beside: shutil.copyfile(source, beside))


def _write_maps(training: Training) -> None:
    """Keep the predicted maps of those volumes that the report draws; of rank 0 alone, no collective."""
    if not training.data.task.dense:
        return
    shards = training.data.shards
    predict = preparation.of_whole_volumes(training.config, training.data, training.learner.predict)
    for row in case_maps.wanted(training.folder.path):
        logits = np.asarray(predict(shards.read(row)[None].astype(np.float32)))
        labels = logits[0].argmax(axis=-1).astype(np.uint8)
        case_maps.write(training.folder.path, row, labels, np.array(shards.volumes[row].affine))


def _write_baseline(training: Training) -> None:
    # Imported here: scikit-learn would cost every rank a second at its start.
    from trainer.report.baseline import tissue_baseline

    data = training.data
    classes = data.task.told_apart
    if classes is None:
        return
    rows = [*data.split.train, *data.split.validation, *data.split.test]
    labels = dict(zip(rows, np.asarray(data.task.targets(rows)).tolist(), strict=True))
    baseline = tissue_baseline(data.shards.volumes, data.split, labels, classes)
    if baseline is not None:
        record.write_json(training.folder.baseline, baseline)
