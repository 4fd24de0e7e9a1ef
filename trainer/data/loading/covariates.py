"""Covariates of a network: age and sex, as numbers of mean 0 and deviation 1."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.data.shards.index import Volume
from trainer.data.sources import tables
from trainer.errors import CohortError


@dataclass(frozen=True)
class Column:
    """One number per subject.

    Attributes:
        name: of the covariate.
        level: for a word such as sex: the word that counts 1, others 0; None for a number.
        mean, deviation: of the training split, before standardising.
    """

    name: str
    level: str | None
    mean: float
    deviation: float


@dataclass(frozen=True)
class Covariates:
    """Encoding of covariates as numbers; learned from the training split alone.

    A missing value becomes the mean of the training split: 0 after standardising.

    Attributes:
        names: covariates in the order of `data.covariates`.
        columns: one number each; a word with L levels makes L - 1 columns.
        levels: the words known of each covariate that is a word.
    """

    names: tuple[str, ...]
    columns: tuple[Column, ...]
    levels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @classmethod
    def fit(cls, names: Sequence[str], volumes: Iterable[Volume]) -> Covariates:
        """Learn means, deviations and words from the training volumes.

        Raises:
            CohortError: a covariate is the same in all of them, or missing.
        """
        volumes = list(volumes)
        columns: list[Column] = []
        levels: dict[str, tuple[str, ...]] = {}
        for name in names:
            values = [value for volume in volumes if (value := getattr(volume, name)) is not None]
            if len(set(values)) < 2:
                what = f"the same ({values[0]})" if values else "missing"
                raise CohortError(
                    f"data.covariates: {name!r} is {what} in all training volumes.",
                    cure="Leave it out, or give participants.tsv a column of that name and import again.",
                )
            if all(isinstance(value, str) for value in values):
                levels[name] = tuple(sorted(set(values)))
                for level in levels[name][1:]:
                    columns.append(_column(name, level, [float(value == level) for value in values]))
            else:
                columns.append(_column(name, None, [float(value) for value in values]))
        return cls(tuple(names), tuple(columns), levels)

    def encode(self, subjects: Iterable[Mapping[str, Any]]) -> np.ndarray:
        """Return float32 (n, columns), from mappings of covariate to value.

        Missing, empty and `n/a` count as unknown.

        Raises:
            CohortError: an unknown word, or no number where one is needed.
        """
        return np.array(
            [[self._number(c, subject) for c in self.columns] for subject in subjects], np.float32
        )

    def of(self, volumes: Iterable[Volume]) -> np.ndarray:
        """Return float32 (n, columns) of volumes of a shard set."""
        return self.encode({name: getattr(volume, name) for name in self.names} for volume in volumes)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON for run.json."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Covariates:
        """Rebuild it from JSON."""
        return cls(
            tuple(value["names"]),
            tuple(Column(**column) for column in value["columns"]),
            {name: tuple(words) for name, words in value["levels"].items()},
        )

    def _number(self, column: Column, subject: Mapping[str, Any]) -> float:
        value = subject.get(column.name)
        if value is None or (isinstance(value, str) and tables.value(value) is None):
            return 0.0
        if column.level is not None:
            levels = self.levels[column.name]
            if value not in levels:
                raise CohortError(
                    f"{column.name} {value!r} is unknown to this network.",
                    cure=f"Known: {', '.join(levels)}.",
                )
            number = float(value == column.level)
        else:
            try:
                number = float(value)
            except (TypeError, ValueError):
                number = math.nan
            if not math.isfinite(number):
                raise CohortError(
                    f"{column.name} {value!r} is not a number.", cure="Leave it empty where unknown."
                )
        return (number - column.mean) / column.deviation


def _column(name: str, level: str | None, values: Sequence[float]) -> Column:
    return Column(name, level, float(np.mean(values)), float(np.std(values)))
