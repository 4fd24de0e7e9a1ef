"""A study: what was asked for, its cells, and the lines that its plots are made of. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

from trainer.bench.scaling.cells import SCALINGS, Cell, key
from trainer.bench.scaling.variants import variant
from trainer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Study:
    """What `cingulum bench scaling` was asked for.

    Attributes:
        models: registered networks.
        ranks: world sizes.
        strategies: words that `variants.variant` understands.
        batch: see `Cell`; weak scaling has it on every rank.
        size: edge of the volumes, in voxels.
        width: channels of the first stage.
        scalings: of `SCALINGS`.
        hosts: numbers of hosts; 0: this host.
        bandwidths: rates of the links between hosts.
        steps: timed steps.
        repeats: measurements of each.
        epochs: of one short training of each cell of strong scaling; 0: no trainings.
        emulated: whether hosts are those of a testbed.
        cpus: cores whose time each emulated host gets at most.
    """

    models: tuple[str, ...]
    ranks: tuple[int, ...]
    strategies: tuple[str, ...]
    batch: int
    size: int = 32
    width: int | None = 8
    scalings: tuple[str, ...] = SCALINGS
    hosts: tuple[int, ...] = (0,)
    bandwidths: tuple[str | None, ...] = (None,)
    steps: int = 10
    repeats: int = 1
    epochs: int = 0
    emulated: bool = False
    cpus: float | None = None

    def cells(self) -> tuple[Cell, ...]:
        """Return the cells, each once, in the order in which they are measured.

        Repeats are outermost: what is compared is measured in turn. A cell of n ranks takes min(n, hosts)
        hosts; on this host (0) no link is shaped. Trainings come last. `OTHERS` are not trained;
        asynchronous servers and strategies that divide the network are trained only.

        Raises:
            InputError: a batch that some number of ranks cannot share evenly, or no such strategy.
        """
        uneven = [number for number in self.ranks if self.batch % number]
        if uneven and ("strong" in self.scalings or self.epochs):
            raise InputError(
                f"--ranks {uneven[0]}: cannot share a batch of {self.batch} evenly.",
                cure=f"Give a --batch that {', '.join(map(str, self.ranks))} divide, or --scaling weak.",
            )
        kinds = [(repeat, scaling, 0) for repeat in range(self.repeats) for scaling in self.scalings]
        if self.epochs:
            kinds.append((0, "strong", self.epochs))
        variants = [variant(word) for word in self.strategies]
        product = (
            Cell(
                model,
                self.size,
                self.width,
                self.batch,
                scaling,
                how.strategy,
                how.options,
                number,
                how.servers_for(number),
                hosts=min(number, among),
                bandwidth=bandwidth if among else None,
                steps=0 if trained else self.steps,
                repeat=repeat,
                epochs=trained,
                emulated=self.emulated and among > 0,
                cpus=self.cpus if among else None,
            )
            for (repeat, scaling, trained), model, among, bandwidth, number, how in itertools.product(
                kinds, self.models, self.hosts, self.bandwidths, self.ranks, variants
            )
            if (how.can_train if trained else how.can_be_timed)
        )
        return tuple({key(cell): cell for cell in product}.values())

    def lines(self) -> tuple[StudyLine, ...]:
        """Return the lines of the plots, each once."""
        lines: dict[tuple[str, ...], StudyLine] = {}
        kinds: list[tuple[tuple[str, ...], int]] = [((scaling,), 0) for scaling in self.scalings]
        if self.epochs:
            kinds.append(((), self.epochs))
        for (scalings, epochs), model, hosts, bandwidth, word in itertools.product(
            kinds, self.models, self.hosts, self.bandwidths, self.strategies
        ):
            cells = dataclasses.replace(
                self,
                models=(model,),
                scalings=scalings,
                hosts=(hosts,),
                bandwidths=(bandwidth,),
                strategies=(word,),
                epochs=epochs,
            ).cells()
            if cells:
                line = StudyLine(variant(word).title, cells[0].place(hosts), hosts, cells)
                lines.setdefault(tuple(key(cell) for cell in cells), line)
        return tuple(lines.values())

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
class StudyLine:
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


def merged(studies: list[Study]) -> tuple[StudyLine, ...]:
    """Return the lines of several studies, each once."""
    lines: dict[str, StudyLine] = {}
    for study in studies:
        for line in study.lines():
            lines.setdefault(json.dumps([key(cell) for cell in line.cells]), line)
    return tuple(lines.values())
