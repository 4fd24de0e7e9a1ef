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


def worst(found: Found) -> list[tuple[int, str]]:
    """Return positions of the scans that the network did worst on, and why; the worst first, at most
    six, one of a subject.

    Classification: mistakes, the surest first. Regression: the largest errors. Segmentation: the lowest Dice.
    """
    if isinstance(found, ClassPredictions):
        sure, right = found.probabilities.max(axis=1), found.predicted == found.true
        wrong = _of_subjects(found, [int(i) for i in np.argsort(-sure, kind="stable") if not right[i]])
        return [
            (i, "surest mistake" if place == 0 else "another sure mistake" if sure[i] > 0.8 else "a mistake")
            for place, i in enumerate(wrong[:MOST])
        ]
    if isinstance(found, Values):
        order, words = np.argsort(-np.abs(found.errors), kind="stable"), ("largest error", "large error")
    else:
        order, words = np.argsort(found.mean_dice, kind="stable"), ("lowest Dice", "low Dice")
    return [(i, words[place > 0]) for place, i in enumerate(_of_subjects(found, order.tolist())[:MOST])]


def _of_subjects(found: Found, order: list[int]) -> list[int]:
    """The first position of each subject."""
    first: dict[str, int] = {}
    for i in order:
        first.setdefault(found.subjects[i], i)
    return list(first.values())


def typical(found: Found) -> list[tuple[int, str]]:
    """Return positions of other scans worth seeing, and why.

    Classification: the surest right answer of each class and two that the network was unsure of. Otherwise
    the best and the middle one.
    """
    if isinstance(found, ClassPredictions):
        sure, right = found.probabilities.max(axis=1), found.predicted == found.true
        falling = [int(i) for i in np.argsort(-sure, kind="stable") if right[i]]
        chosen: dict[int, str] = {}
        for k in range(len(found.classes)):
            hits = [i for i in falling if found.true[i] == k]
            if hits:
                chosen[hits[0]] = "surest right answer"
        for i in falling[::-1][:2]:
            chosen.setdefault(i, "right, but hardly sure")
        return list(chosen.items())[:MOST]
    if isinstance(found, Values):
        order, words = np.argsort(np.abs(found.errors), kind="stable"), ("smallest error", "median error")
    else:
        order, words = np.argsort(-found.mean_dice, kind="stable"), ("highest Dice", "median Dice")
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
    told = read(run_folder)
    found = told.predictions.get(told.judged or "")
    if not isinstance(found, Overlaps):
        return []
    return [int(found.rows[i]) for i, _ in (*worst(found), *typical(found))]


def pictures(story: ReportMaterial, found: Found, chosen: list[tuple[int, str]]) -> list[Case]:
    """Return the cases with their pictures; none where the shard set is not at hand.

    Raises:
        ShardError: a volume is damaged.
        IndexError: the shard set has no such row.
    """
    if story.shards is None:
        return []
    draw = functools.partial(_picture, story, found)
    cases = []
    for i, why in chosen:
        picture = draw(int(found.rows[i]))
        says, mark = _says(story, found, i)
        cases.append(
            Case(
                subject=found.names[i],
                row=int(found.rows[i]),
                says=says,
                why=why,
                mark=mark,
                picture=slices.png(picture),
                size=(picture.shape[1], picture.shape[0]),
            )
        )
    return cases


def _picture(story: ReportMaterial, found: Found, row: int) -> np.ndarray:
    shards = story.shards
    assert shards is not None  # noqa: S101  pictures() has looked
    volume = shards.read(row)
    if not isinstance(found, Overlaps):
        return slices.three_planes(volume, shards.voxel_size)
    predicted = case_maps.read(story.folder, row, volume.shape[:3])
    true = shards.read_map(row) if shards.maps else None
    if predicted is None:
        return slices.three_planes(volume, shards.voxel_size)
    at = None if true is None else slices.where_they_differ(true, predicted)
    return slices.with_contours(volume, shards.voxel_size, true, predicted, at)


def _says(story: ReportMaterial, found: Found, i: int) -> tuple[str, str]:
    """What is so and what the network said, and whether that is right."""
    if isinstance(found, ClassPredictions):
        true, called = int(found.true[i]), int(found.predicted[i])
        probability = float(found.probabilities[i, called])
        words = f"is {found.classes[true]}, called {found.classes[called]} with {probability:.2f}"
        return words, "right" if true == called else "wrong"
    if isinstance(found, Values):
        unit = story.task.unit
        return f"{found.true[i]:.1f}{unit}, predicted {found.predicted[i]:.1f} ({found.errors[i]:+.1f})", ""
    of_scan = zip(found.classes, found.dice[i], strict=True)
    shares = ", ".join(f"{name} {value:.2f}" for name, value in of_scan if not np.isnan(value))
    return f"Dice {shares or 'not known'}", ""
