"""A study: what was asked for, its cells, and the lines that its plots are made of. Pure."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from trainer.bench.scaling.cells import Cell, cells, key
from trainer.bench.scaling.variants import variant


@dataclasses.dataclass(frozen=True)
class Study:
    """What `cingulum bench scaling` was asked for; see `cells.cells` for what the fields mean.

    Attributes:
        strategies: words that `cells.variant` understands.
    """

    models: tuple[str, ...]
    ranks: tuple[int, ...]
    strategies: tuple[str, ...]
    batch: int
    size: int
    width: int | None
    scalings: tuple[str, ...]
    hosts: tuple[int, ...]
    bandwidths: tuple[str | None, ...]
    steps: int
    repeats: int
    epochs: int
    emulated: bool
    cpus: float | None

    def cells(self) -> tuple[Cell, ...]:
        """All cells, in the order in which they are measured.

        Raises:
            InputError: a batch that some number of ranks cannot share evenly, or no such strategy.
        """
        return self._product()

    def lines(self) -> tuple[Line, ...]:
        """Return the lines of the plots, each once."""
        found: dict[tuple[str, ...], Line] = {}
        kinds = [(scaling, 0) for scaling in self.scalings]
        if self.epochs:
            kinds.append(("strong", self.epochs))
        for scaling, epochs in kinds:
            for model in self.models:
                for hosts in self.hosts:
                    for bandwidth in self.bandwidths:
                        for word in self.strategies:
                            mine = self._product(
                                models=(model,),
                                scalings=() if epochs else (scaling,),
                                hosts=(hosts,),
                                bandwidths=(bandwidth,),
                                strategies=(word,),
                                epochs=epochs,
                            )
                            if mine:
                                line = Line(variant(word).title, mine[0].place(hosts), hosts, mine)
                                found.setdefault(tuple(key(cell) for cell in mine), line)
        return tuple(found.values())

    def _product(self, **changes: Any) -> tuple[Cell, ...]:
        asked = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | changes
        words = asked.pop("strategies")
        return cells(variants=[variant(word) for word in words], **asked)

    def to_json(self) -> dict[str, Any]:
        """Return the study as `from_json` reads it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Study:
        """Return the study that `to_json` made, also after a trip through JSON.

        Raises:
            TypeError: these are not the fields of a study.
        """
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
        return cls(**values)


@dataclasses.dataclass(frozen=True)
class Line:
    """Cells that differ in their ranks (and repeats) only.

    Attributes:
        strategy: in words.
        place: where they run, in words.
        hosts: how many there are at most; 0: this host.
        cells: at least one.
    """

    strategy: str
    place: str
    hosts: int
    cells: tuple[Cell, ...]

    @property
    def first(self) -> Cell:
        """One of the cells, for what all of them have in common."""
        return self.cells[0]


def merged(studies: list[Study]) -> tuple[Line, ...]:
    """Return the lines of several studies, each once."""
    found: dict[str, Line] = {}
    for study in studies:
        for line in study.lines():
            found.setdefault(json.dumps([key(cell) for cell in line.cells]), line)
    return tuple(found.values())
