"""What the networks of a cross-validation say of subjects that they never saw."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.crossval.folds import CrossValidation, Fold
from trainer.errors import RunError, typed
from trainer.metrics import tables
from trainer.metrics.tables import Line
from trainer.run_folder.run_record import RunRecord


@dataclass(frozen=True)
class HeldOut:
    """Every volume's held-out prediction, once per seed.

    Attributes:
        task: `classification`, `regression` or `segmentation`.
        classes: of a classification, in the order of the network's outputs; else ().
        rows: int (N,), rows of the shard set, ascending.
        subjects: str (N,); a subject has several rows where it was scanned several times.
        true: int (N,) class numbers, float (N,) targets; zeros for a segmentation.
        columns: names of the last axis of `values`.
        values: float (seeds, N, columns): probabilities, predicted values, or Dice and Hausdorff distances;
            NaN where there is none.
        folds: int (seeds, N), the fold in which the volume was held out.
        header: columns of evaluation/test.csv.
        lines: for each seed and volume, its line of evaluation/test.csv.
    """

    task: str
    classes: tuple[str, ...]
    rows: np.ndarray
    subjects: np.ndarray
    true: np.ndarray
    columns: tuple[str, ...]
    values: np.ndarray
    folds: np.ndarray
    header: tuple[str, ...]
    lines: tuple[tuple[Line, ...], ...]


def read(crossval: CrossValidation) -> HeldOut:
    """Collect evaluation/test.csv of all runs, which must be finished.

    Raises:
        RunError: a volume is held out never or twice, a subject is in two folds, or runs do not agree about
            the data or a label.
    """
    ran = RunRecord.read(crossval.folds[0].run.run)
    expected = _rows(ran)
    for fold in crossval.folds:
        _check_data(fold, ran.shards.content_hash, expected)
    header, by_seed = _collect(crossval)
    for seed, held_out in by_seed.items():
        _check_once(seed, held_out, expected)
    rows = sorted(expected)
    lines = tuple(tuple(by_seed[seed][row][1] for row in rows) for seed in crossval.seeds)
    judged = [tables.judged(header, of_seed) for of_seed in lines]
    first = judged[0]
    for seed, other in zip(crossval.seeds, judged, strict=True):
        differing = np.flatnonzero(other.true != first.true)
        if differing.size:
            raise RunError(
                f"{crossval.folder}: the runs of seed {seed} have another label of subject "
                f"{first.subjects[differing[0]]!r} than those of seed {crossval.seeds[0]}.",
                path=crossval.folder,
            )
    return HeldOut(
        task=first.task,
        classes=first.classes if first.task == "classification" else (),
        rows=first.rows,
        subjects=np.array(first.subjects),
        true=first.true,
        columns=first.columns,
        values=np.array([of_seed.values for of_seed in judged]),
        folds=np.array([[by_seed[seed][row][0] for row in rows] for seed in crossval.seeds]),
        header=header,
        lines=lines,
    )


def _rows(ran: RunRecord) -> set[int]:
    return {row for rows in ran.split.values() for row in rows}


def _check_data(fold: Fold, content_hash: str, expected: set[int]) -> None:
    """All runs must have divided the same volumes of the same shard set."""
    ran = RunRecord.read(fold.run.run)
    if ran.shards.content_hash != content_hash or _rows(ran) != expected:
        raise RunError(
            f"{fold.run.path}: was trained on other data than the other runs beside it.",
            cure="Remove this folder; the same command trains it again.",
            path=fold.run.path,
        )


def _collect(crossval: CrossValidation) -> tuple[tuple[str, ...], dict[int, dict[int, tuple[int, Line]]]]:
    """The header of the tables; and for each seed, row of the shard set -> fold and line."""
    header: tuple[str, ...] | None = None
    by_seed: dict[int, dict[int, tuple[int, Line]]] = {seed: {} for seed in crossval.seeds}
    for fold in crossval.folds:
        path = fold.run.evaluation / "test.csv"
        header, lines = _lines(path, header)
        for line in lines:
            row, held_out = int(line["row"]), by_seed[fold.seed]
            if row in held_out:
                raise RunError(
                    f"{path}: subject {line['subject']!r} (row {row}) is held out twice for seed "
                    f"{fold.seed}: in fold {held_out[row][0]} and in fold {fold.number}.",
                    path=path,
                )
            held_out[row] = (fold.number, line)
    assert header is not None  # noqa: S101  # a cross-validation has two folds at least
    return header, by_seed


def _lines(path: Path, header: tuple[str, ...] | None) -> tuple[tuple[str, ...], list[Line]]:
    """Of one run, whose columns must be those of the runs before it."""
    cure = f"Make it again: cingulum evaluate {typed(path.parent.parent)}"
    try:
        columns, lines = tables.lines(path)
        if header is not None and columns != header:
            raise RunError(f"{path}: has other columns than the tables of the other runs.", path=path)
        tables.judged(columns, lines)
    except FileNotFoundError:
        raise RunError(f"{path}: is missing.", cure=cure, path=path) from None
    except ValueError as error:
        raise RunError(f"{path}: is damaged: {error}.", cure=cure, path=path) from None
    return columns, lines


def _check_once(seed: int, held_out: dict[int, tuple[int, Line]], expected: set[int]) -> None:
    if held_out.keys() != expected:
        row = min(held_out.keys() ^ expected)
        what = "is held out in no fold" if row in expected else "belongs to no split"
        raise RunError(
            f"seed {seed}: the volume of row {row} {what}; the figures would be of the wrong subjects."
        )
    home: dict[str, int] = {}
    for number, line in held_out.values():
        if home.setdefault(line["subject"], number) != number:
            raise RunError(
                f"seed {seed}: scans of subject {line['subject']!r} are held out in fold "
                f"{home[line['subject']]} and in fold {number}: the subject is tested by a "
                "network trained on it."
            )
