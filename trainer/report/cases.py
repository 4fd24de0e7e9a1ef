"""Scans worth looking at, with their pictures: the worst first, then typical ones."""

from __future__ import annotations

import base64
import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.report import case_maps, slices
from trainer.report.predictions import ClassPredictions, Found, Overlaps, Values
from trainer.report.story import ReportMaterial, read

MOST = 6


@dataclass(frozen=True)
class Case:
    """One scan's picture and what the network made of it.

    Attributes:
        subject: who, with the session of those that have several scans.
        row: of the shard set.
        says: what is so and what the network said.
        why: why it is shown.
        mark: right, wrong, or nothing.
        picture: PNG.
        size: (width, height) in pixels.
    """

    subject: str
    row: int
    says: str
    why: str
    mark: str
    picture: bytes
    size: tuple[int, int]

    @property
    def address(self) -> str:
        """Return the picture as a data address."""
        return "data:image/png;base64," + base64.b64encode(self.picture).decode()


def worst(predictions: Found) -> list[tuple[int, str]]:
    """Return positions of the scans that the network did worst on, and why; the worst first, at most
    six, one of a subject.

    Classification: mistakes, the surest first. Regression: the largest errors. Segmentation: the lowest Dice.
    """
    if isinstance(predictions, ClassPredictions):
        sure, right = predictions.probabilities.max(axis=1), predictions.predicted == predictions.true
        wrong = _of_subjects(predictions, [int(i) for i in np.argsort(-sure, kind="stable") if not right[i]])
        return [
            (i, "surest mistake" if place == 0 else "another sure mistake" if sure[i] > 0.8 else "a mistake")
            for place, i in enumerate(wrong[:MOST])
        ]
    if isinstance(predictions, Values):
        order = np.argsort(-np.abs(predictions.errors), kind="stable")
        words = ("largest error", "large error")
    else:
        order, words = np.argsort(predictions.mean_dice, kind="stable"), ("lowest Dice", "low Dice")
    return [(i, words[place > 0]) for place, i in enumerate(_of_subjects(predictions, order.tolist())[:MOST])]


def _of_subjects(predictions: Found, order: list[int]) -> list[int]:
    """The first position of each subject."""
    first: dict[str, int] = {}
    for i in order:
        first.setdefault(predictions.subjects[i], i)
    return list(first.values())


def typical(predictions: Found) -> list[tuple[int, str]]:
    """Return positions of other scans worth seeing, and why.

    Classification: the surest right answer of each class and two that the network was unsure of. Otherwise
    the best and the middle one.
    """
    if isinstance(predictions, ClassPredictions):
        sure, right = predictions.probabilities.max(axis=1), predictions.predicted == predictions.true
        falling = [int(i) for i in np.argsort(-sure, kind="stable") if right[i]]
        chosen: dict[int, str] = {}
        for k in range(len(predictions.classes)):
            hits = [i for i in falling if predictions.true[i] == k]
            if hits:
                chosen[hits[0]] = "surest right answer"
        for i in falling[::-1][:2]:
            chosen.setdefault(i, "right, but hardly sure")
        return list(chosen.items())[:MOST]
    if isinstance(predictions, Values):
        order = np.argsort(np.abs(predictions.errors), kind="stable")
        words = ("smallest error", "median error")
    else:
        order, words = np.argsort(-predictions.mean_dice, kind="stable"), ("highest Dice", "median Dice")
    chosen = {int(order[0]): words[0]}
    chosen.setdefault(int(order[len(order) // 2]), words[1])
    return list(chosen.items())


def rows_with_maps(run_folder: Path) -> list[int]:
    """Return rows of the shard set whose predicted maps the report would show: those of the lowest Dice, and
    others.

    Reads the run's evaluation; empty where the run is no segmentation or has no evaluation yet.

    Raises:
        RunError: the folder is no run folder.
    """
    story = read(run_folder)
    predictions = story.predictions.get(story.judged or "")
    if not isinstance(predictions, Overlaps):
        return []
    return [int(predictions.rows[i]) for i, _ in (*worst(predictions), *typical(predictions))]


def pictures(story: ReportMaterial, predictions: Found, chosen: list[tuple[int, str]]) -> list[Case]:
    """Return the cases with their pictures; none where the shard set is not at hand.

    Raises:
        ShardError: a volume is damaged.
        IndexError: the shard set has no such row.
    """
    if story.shards is None:
        return []
    draw = functools.partial(_picture, story, predictions)
    cases = []
    for i, why in chosen:
        picture = draw(int(predictions.rows[i]))
        says, mark = _says(story, predictions, i)
        cases.append(
            Case(
                subject=predictions.names[i],
                row=int(predictions.rows[i]),
                says=says,
                why=why,
                mark=mark,
                picture=slices.png(picture),
                size=(picture.shape[1], picture.shape[0]),
            )
        )
    return cases


def _picture(story: ReportMaterial, predictions: Found, row: int) -> np.ndarray:
    shards = story.shards
    assert shards is not None  # noqa: S101  pictures() has looked
    volume = shards.read(row)
    if not isinstance(predictions, Overlaps):
        return slices.three_planes(volume, shards.voxel_size)
    predicted = case_maps.read(story.folder, row, volume.shape[:3])
    true = shards.read_map(row) if shards.maps else None
    if predicted is None:
        return slices.three_planes(volume, shards.voxel_size)
    at = None if true is None else slices.where_they_differ(true, predicted)
    return slices.with_contours(volume, shards.voxel_size, true, predicted, at)


def _says(story: ReportMaterial, predictions: Found, i: int) -> tuple[str, str]:
    """What is so and what the network said, and whether that is right."""
    if isinstance(predictions, ClassPredictions):
        true, called = int(predictions.true[i]), int(predictions.predicted[i])
        probability = float(predictions.probabilities[i, called])
        words = f"is {predictions.classes[true]}, called {predictions.classes[called]} with {probability:.2f}"
        return words, "right" if true == called else "wrong"
    if isinstance(predictions, Values):
        unit = story.task.unit
        words = f"{predictions.true[i]:.1f}{unit}, predicted {predictions.predicted[i]:.1f}"
        return f"{words} ({predictions.errors[i]:+.1f})", ""
    of_scan = zip(predictions.classes, predictions.dice[i], strict=True)
    shares = ", ".join(f"{name} {value:.2f}" for name, value in of_scan if not np.isnan(value))
    return f"Dice {shares or 'not known'}", ""
