"""A plan as a file: which rank computes which boxes of every operation; written, edited by hand, read again.

`cingulum plan --out` writes it, `train.strategy.plan` trains with it. Pure but for reading the file: it knows
neither TensorFlow nor ranks. docs/how-to/plan.md says what each key is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from trainer.errors import ConfigError
from trainer.planning.kept_files import FilePart, KeptFile, Name
from trainer.planning.placement import checking, ways
from trainer.planning.placement.boxes import Box
from trainer.planning.placement.layouts import Piece, TensorLayout, layout, replicated
from trainer.planning.placement.listing import Pipeline, task_lists
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.tasks import TaskLists
from trainer.planning.placement.units import Placement, Unit, place
from trainer.planning.placement.ways import Layouts, placed_shape

# Of the file's form.
VERSION = 1

Index = Annotated[int, Field(ge=0, le=2**31)]
Length = Annotated[int, Field(ge=1, le=2**31)]
Ranks = Annotated[int, Field(ge=1, le=2**16)]
Ranges = Annotated[tuple[tuple[Index, Index], ...], Field(max_length=16)]
# A box on a rank: `[rank, [[start, stop], ...]]`.
RankAndBox = tuple[Index, Ranges]


class PlannedOperation(FilePart):
    """Who computes one operation.

    Attributes:
        name: as in the `OperationGraph`.
        kind: what it computes, for people; reading takes it from the network.
        shape: of what is divided, samples first: the output, or, of an operation that sums, its input.
        pieces: which rank computes which box of it.
    """

    name: Name
    kind: Annotated[str, Field(max_length=1000)]
    shape: Annotated[tuple[Length, ...], Field(max_length=16)]
    pieces: Annotated[tuple[RankAndBox, ...], Field(min_length=1, max_length=4096)]

    def divided(self) -> TensorLayout:
        """Return the layout; pieces of one rank that touch become one.

        Raises:
            ConfigError: a box is empty, outside, or overlaps another one of its rank, or not all is covered.
        """
        try:
            pieces = [Piece(rank, Box(ranges)) for rank, ranges in self.pieces]
        except ValueError as error:
            raise ConfigError(
                f"{self.name}: {error}.", cure="Write [start, stop] with stop > start."
            ) from None
        TensorLayout(self.shape, tuple(sorted(pieces))).check(self.name)
        held: dict[int, list[Box]] = {}
        for piece in pieces:
            held.setdefault(piece.rank, []).append(piece.box)
        return layout(self.shape, held)


class PlanFile(KeptFile):
    """Content of a plan's file.

    Attributes:
        strategy: that divided the network before anything was edited, for people.
        network: name of the network.
        ranks: how many it is divided over, in all replicas.
        replicas: groups of ranks of which each takes samples of its own.
        operations: all but inputs, in an order in which they can be computed.
    """

    VERSION: ClassVar[int] = VERSION
    WHAT: ClassVar[str] = "plan"
    REMAKE: ClassVar[str] = "cingulum plan CONFIG --ranks K --out FILE"

    strategy: Annotated[str, Field(max_length=1000)]
    network: Name
    ranks: Ranks
    replicas: Ranks
    operations: Annotated[tuple[PlannedOperation, ...], Field(min_length=1, max_length=100_000)]

    @model_validator(mode="after")
    def _fits_together(self) -> PlanFile:
        seen: set[str] = set()
        for operation in self.operations:
            if operation.name in seen:
                raise ValueError(f"operations.{operation.name}: is there twice")
            seen.add(operation.name)
            for rank, _ in operation.pieces:
                if rank >= self.ranks:
                    raise ValueError(
                        f"operations.{operation.name}: rank {rank} is not one of 0 to {self.ranks - 1}, "
                        f"since the plan is for {self.ranks}"
                    )
        return self

    @classmethod
    def of(cls, placement: Placement, *, name: str, strategy: str, ranks: int, replicas: int = 1) -> PlanFile:
        """Return the file of a placement.

        Args:
            placement: of a network whose shapes hold the samples of a micro-batch of all replicas.
            name: of the network.
            strategy: that made it.
            ranks: in all replicas; some may have nothing to do.
            replicas: see `PlanFile`.
        """
        layouts = layouts_of(placement)
        return cls.of_layouts(
            placement.network, layouts, name=name, strategy=strategy, ranks=ranks, replicas=replicas
        )

    @classmethod
    def of_layouts(
        cls,
        network: OperationGraph,
        layouts: Layouts,
        *,
        name: str,
        strategy: str,
        ranks: int,
        replicas: int = 1,
    ) -> PlanFile:
        """Return the file of layouts of a network's operations; see `of`."""
        return cls(
            version=VERSION,
            strategy=strategy,
            network=name,
            ranks=ranks,
            replicas=replicas,
            operations=tuple(
                PlannedOperation(
                    name=one.name,
                    kind=one.kind,
                    shape=layouts[one.name].shape,
                    pieces=tuple((piece.rank, piece.box.ranges) for piece in layouts[one.name].pieces),
                )
                for one in network.operations
                if one.readings
            ),
        )

    @property
    def sha256(self) -> str:
        """Of what the file says, however it is laid out."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def layouts(self, network: OperationGraph) -> Layouts:
        """Return the layouts of this network.

        Raises:
            ConfigError: an operation is missing or unknown, its shape differs, or a box is wrong; the key
                names the operation.
        """
        divided = {one.name: one for one in network.operations if one.readings}
        for name in (one.name for one in self.operations):
            if name not in divided:
                raise ConfigError(
                    f"the network has no operation {name}.",
                    cure=f"Make the plan anew with this configuration: {self.REMAKE}",
                    key=f"operations.{name}",
                )
        planned = {one.name: one for one in self.operations}
        layouts: Layouts = {}
        for name, operation in divided.items():
            key = f"operations.{name}"
            if name not in planned:
                raise ConfigError(
                    f"does not say which ranks compute {name}.",
                    cure="Add the operation to the plan.",
                    key=key,
                )
            shape = placed_shape(operation)
            if planned[name].shape != shape:
                raise ConfigError(
                    f"{name} is of shape {list(planned[name].shape)}, here {list(shape)}, "
                    "of which samples of a micro-batch are first.",
                    cure=f"Make the plan anew with this configuration and all key=value: {self.REMAKE}",
                    key=key,
                )
            try:
                layouts[name] = planned[name].divided()
            except ConfigError as error:
                raise ConfigError(error.message, cure=error.cure, key=key) from None
        return layouts


def layouts_of(placement: Placement) -> Layouts:
    """Return the layouts that a placement was made of."""
    held: dict[str, dict[int, list[Box]]] = {}
    operations = {one.name: one for one in placement.network.operations if one.readings}
    for unit in placement.units:
        if unit.operation in operations:
            part = unit.reads[0] if operations[unit.operation].sums else unit.box
            if part is not None:
                held.setdefault(unit.operation, {}).setdefault(unit.rank, []).append(part)
    return {name: layout(placed_shape(one), held[name]) for name, one in operations.items()}


@dataclass(frozen=True)
class PlannedNetwork:
    """A network divided as a file says.

    Attributes:
        layouts: of its operations.
        placement: that follows.
        lists: the tasks of every rank, which were found to be possible.
        sha256: of `PlanFile`.
    """

    layouts: Layouts
    placement: Placement
    lists: TaskLists
    sha256: str


def for_ranks(path: Path, ranks: int) -> PlanFile:
    """Return what a file says, whatever the network.

    Raises:
        InputError: the file cannot be read, or is for other ranks.
    """
    file = PlanFile.read(path)
    if file.ranks != ranks:
        launch = f"Launch {file.ranks} rank(s), or make another plan: {_again(path, ranks)}"
        raise _for_another(path, "ranks", f"{file.ranks} rank(s), and {ranks} would train", launch)
    return file


def read(
    path: Path,
    network: OperationGraph,
    *,
    name: str,
    ranks: int,
    replicas: int = 1,
    pipeline: Callable[[Layouts], Pipeline | None] = lambda _: None,
) -> PlannedNetwork:
    """Divide a network as a file says.

    Args:
        path: of the file.
        network: to be divided; its shapes hold the samples of a micro-batch of all replicas.
        name: of the network.
        ranks: that train.
        replicas: groups of ranks; those of one read the same samples.
        pipeline: from the file's layouts to the order in which their stages work; see `task_lists`.

    Raises:
        InputError: the file cannot be read, is for another network or other ranks, does not say of every
            element of every operation who computes it, or the ranks would wait for each other for ever.
    """
    file = for_ranks(path, ranks)
    again = _again(path, ranks)
    if file.network != name:
        raise _for_another(path, "network", f"the network {file.network}, not for {name}", again)
    if file.replicas != replicas:
        setting = f"Set train.strategy.replicas={file.replicas}, or make another plan: {again}"
        raise _for_another(path, "replicas", f"{file.replicas} replica(s), not {replicas}", setting)
    try:
        layouts = file.layouts(network)
        placement = place(network, layouts)
        lists = task_lists(placement, pipeline(layouts))
        checking.check(placement, lists)
        _check_samples(placement, ranks, replicas)
    except ConfigError as error:
        cure = error.cure or f"Mend it there, or make the file anew: {again}"
        raise ConfigError(f"{path}: {error.message}", cure=cure, path=path, key=error.key) from None
    return PlannedNetwork(layouts, placement, lists, file.sha256)


def to_evaluate(layouts: Layouts, network: OperationGraph) -> Layouts:
    """Return layouts by which the same network is evaluated: every rank has the weights that it uses.

    Args:
        layouts: of an update.
        network: with the samples of a batch that is evaluated. Its outputs are gathered on rank 0.
    """
    loss = network.operations[-1]
    return ways.resampled(layouts, network) | {loss.name: replicated(loss.shape, [0])}


def _again(path: Path, ranks: int) -> str:
    return PlanFile.REMAKE.replace("K", str(ranks)).replace("FILE", str(path))


def _for_another(path: Path, key: str, said: str, cure: str) -> ConfigError:
    return ConfigError(f"{path}: is a plan for {said}.", cure=cure, path=path, key=key)


def _check_samples(placement: Placement, ranks: int, replicas: int) -> None:
    """See that no rank needs inputs or targets of samples that another replica reads.

    Raises:
        ConfigError: names operation, rank and samples.
    """
    samples = placement.network.operations[-1].shape[0]
    size, group = samples // replicas, ranks // replicas
    for unit in _reading_samples(placement):
        first = unit.rank // group * size
        start, stop = unit.box.ranges[0]
        if start < first or stop > first + size:
            raise ConfigError(
                f"{unit.operation}: rank {unit.rank} needs samples {start}:{stop}, and its replica reads "
                f"{first}:{first + size}.",
                cure="Give these samples to a rank of their replica, or plan with train.strategy.replicas=1.",
                key=f"operations.{unit.operation}",
            )


def _reading_samples(placement: Placement) -> Iterator[Unit]:
    loss = placement.network.operations[-1].name
    names = {loss, *(one.name for one in placement.network.inputs)}
    return (unit for unit in placement.units if unit.operation in names)
