"""Who is in which split: numbers, age, sex and site, from the shard set's index."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.data.shards.index import Volume
from trainer.report.figure import FigureTable, table
from trainer.report.story import ReportMaterial

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class CohortGroup:
    """The scans of a split, or of one class in it; people are counted once.

    Attributes:
        split: train, validation or test.
        label: the class, or `all`.
        scans: number of volumes.
        subjects: number of people; None where the shard set is not at hand, as is all below.
        age: mean and standard deviation (n - 1) over people with a known age, in years.
        ages: youngest and oldest.
        sex: how many people of each sex, as the source writes it.
        sites: how many people of each site.
    """

    split: str
    label: str
    scans: int
    subjects: int | None = None
    age: tuple[float, float | None] | None = None
    ages: tuple[float, float] | None = None
    sex: tuple[tuple[str, int], ...] = ()
    sites: tuple[tuple[str, int], ...] = ()

    @property
    def age_words(self) -> str:
        """Return mean (SD), range."""
        if self.age is None or self.ages is None:
            return "–"
        mean, sd = self.age
        spread = "" if sd is None else f" ({sd:.1f})"
        return f"{mean:.1f}{spread}, {self.ages[0]:.0f}–{self.ages[1]:.0f}"

    @property
    def sex_words(self) -> str:
        """Such as `12 F, 10 M`."""
        return ", ".join(f"{n} {name}" for name, n in self.sex) or "–"

    @property
    def site_words(self) -> str:
        """Return the sites with their numbers, or how many there are."""
        if len(self.sites) > 4:
            return f"{len(self.sites)} sites"
        return ", ".join(f"{n} {name}" for name, n in self.sites) or "–"


def groups(story: ReportMaterial) -> list[CohortGroup]:
    """Return each split as a whole, then class by class; only numbers of scans where the shards are not at
    hand.
    """
    summaries = []
    splits = story.facts.split
    for name in SPLITS:
        rows = splits.get(name)
        if not rows:
            continue
        volumes = _volumes(story, rows)
        if volumes is None:
            summaries.append(CohortGroup(name, "all", len(rows)))
            continue
        summaries.append(_group(name, "all", volumes))
        if story.task.name == "classification":
            for label in story.task.classes:
                summaries.append(_group(name, label, [v for v in volumes if v.label == label]))
    return summaries


def as_table(summaries: Sequence[CohortGroup]) -> FigureTable:
    """Return the groups as numbers, for a CSV file."""
    header = (
        "split", "class", "scans", "subjects", "age_mean", "age_sd", "age_min", "age_max", "sex", "sites"
    )  # fmt: skip
    rows = []
    for g in summaries:
        age, ages = g.age or (None, None), g.ages or (None, None)
        people = "; ".join(f"{name}={n}" for name, n in g.sex), "; ".join(f"{s}={n}" for s, n in g.sites)
        rows.append((g.split, g.label, g.scans, g.subjects, *age, *ages, *people))
    return table(header, rows)


def subjects_apart(story: ReportMaterial) -> bool | None:
    """Return whether no subject is in two splits; None when that cannot be seen from here."""
    seen: list[str] = []
    for rows in story.facts.split.values():
        volumes = _volumes(story, rows)
        if volumes is None:
            return None
        seen += {volume.subject for volume in volumes}
    return len(seen) == len(set(seen)) if seen else None


def _volumes(story: ReportMaterial, rows: Sequence[object]) -> list[Volume] | None:
    if story.shards is None:
        return None
    volumes = story.shards.volumes
    places = [row for row in rows if isinstance(row, int) and 0 <= row < len(volumes)]
    return [volumes[place] for place in places] if len(places) == len(rows) else None


def _group(split: str, label: str, volumes: Sequence[Volume]) -> CohortGroup:
    people: dict[str, Volume] = {}
    for volume in volumes:
        people.setdefault(volume.subject, volume)  # someone scanned twice counts as at the first scan
    ages = [volume.age for volume in people.values() if volume.age is not None]
    spread = float(np.std(ages, ddof=1)) if len(ages) > 1 else None
    return CohortGroup(
        split,
        label,
        len(volumes),
        len(people),
        (float(np.mean(ages)), spread) if ages else None,
        (min(ages), max(ages)) if ages else None,
        _counted(volume.sex for volume in people.values()),
        _counted(volume.site for volume in people.values()),
    )


def _counted(names: object) -> tuple[tuple[str, int], ...]:
    """How often each name occurs; nothing where none is known."""
    counts = collections.Counter(names)  # type: ignore[call-overload]
    if set(counts) <= {None}:
        return ()
    return tuple(sorted((name or "unknown", n) for name, n in counts.items()))
