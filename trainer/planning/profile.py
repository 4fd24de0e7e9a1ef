"""What a network costs on the devices of some ranks, and their links: measured once, kept, edited, reused.

`cingulum profile` makes it; planners and the simulator read it. Pure but for `read`: it knows neither
TensorFlow nor ranks. docs/how-to/profile.md says what each key is.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from trainer.errors import InputError
from trainer.planning.kept_files import FilePart, KeptFile, Name
from trainer.planning.links import HostLink

# Of the file's form.
VERSION = 1

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
# One number for each rank.
PerRank = tuple[Seconds, ...]


class Made(FilePart):
    """When a profile was made, and by which versions of what."""

    time: str
    versions: dict[str, str]


class Device(FilePart):
    """What a rank computes on: its host, the name of the GPU or processor, and compute threads."""

    host: str
    name: str
    threads: Annotated[int, Field(ge=1)]


class ProfiledOperation(FilePart):
    """One operation of the network.

    Attributes:
        name: as in the `Network`; also that of its output.
        kind: what it computes, such as `convolution`.
        layer: name of the Keras layer that it is, or is a part of.
        measured: the equal operation that was timed, often itself; empty where there is nothing to compute.
        flops: of the forward pass.
        parameter_bytes: of its variables; one that several operations use counts at the last of them.
        output_bytes: of its output.
        forward_s: median seconds of the forward pass on each rank, for the whole output.
        forward_spread_s: from the fastest to the slowest repeat.
        backward_s: the same of the gradients of inputs and weights.
        backward_spread_s: see `forward_spread_s`.
    """

    name: Name
    kind: Name
    layer: Annotated[str, Field(max_length=1000)]
    measured: Annotated[str, Field(max_length=1000)]
    flops: Annotated[float, Field(ge=0)]
    parameter_bytes: Count
    output_bytes: Count
    forward_s: PerRank
    forward_spread_s: PerRank
    backward_s: PerRank
    backward_spread_s: PerRank


class ProfiledUpdate(FilePart):
    """The optimizer's update of all trainable parameters, in seconds on each rank."""

    parameters: Count
    seconds: PerRank
    spread_s: PerRank


class ProfiledLink(FilePart):
    """From one rank to another: seconds before the first byte arrives, and bytes per second after it."""

    latency_s: Seconds
    bytes_per_second: Annotated[float, Field(gt=0)]


class ProfiledHandling(FilePart):
    """What a rank does for each bundle that it sends or receives, besides waiting: seconds on each rank.

    Attributes:
        message_s: whatever its size.
        byte_s: for each byte: joining boxes to send them, and cutting what was received.
    """

    message_s: PerRank
    byte_s: PerRank


class Profile(KeptFile):
    """Content of a profile's file.

    Attributes:
        version: of the file's form.
        network: name of the network.
        sample_shape: of what the network takes, channels last.
        batch: samples for which seconds, FLOPs and output bytes hold.
        precision: Keras' dtype policy.
        made: when, and by which versions.
        devices: of each rank.
        operations: in an order in which they can be computed; inputs first, the loss last.
        update: of the weights.
        links: `links[source][target]`; null from a rank to itself.
        handling: of messages; None where it was not measured, and counts as nothing.
        task_s: that each rank takes for every task that computes, besides, however small a part of its
            operation it is and however many samples it has; None where it was not measured, and counts as
            nothing.
    """

    VERSION: ClassVar[int] = VERSION
    WHAT: ClassVar[str] = "profile"
    REMAKE: ClassVar[str] = "cingulum profile CONFIG --out FILE"

    network: Name
    sample_shape: tuple[Annotated[int, Field(ge=1)], ...]
    batch: Annotated[int, Field(ge=1)]
    precision: str
    made: Made
    devices: Annotated[tuple[Device, ...], Field(min_length=1)]
    operations: Annotated[tuple[ProfiledOperation, ...], Field(min_length=1)]
    update: ProfiledUpdate
    links: tuple[tuple[ProfiledLink | None, ...], ...]
    handling: ProfiledHandling | None = None
    task_s: PerRank | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Profile:
        ranks = len(self.devices)
        lists: dict[str, Sequence[Any]] = {
            f"operations.{one.name}.{key}": getattr(one, key)
            for one in self.operations
            for key in ("forward_s", "forward_spread_s", "backward_s", "backward_spread_s")
        }
        lists |= {f"update.{key}": getattr(self.update, key) for key in ("seconds", "spread_s")}
        if self.handling is not None:
            lists |= {f"handling.{key}": getattr(self.handling, key) for key in ("message_s", "byte_s")}
        lists |= {} if self.task_s is None else {"task_s": self.task_s}
        lists |= {"links": self.links, **{f"links.{rank}": row for rank, row in enumerate(self.links)}}
        for key, values in lists.items():
            if len(values) != ranks:
                raise ValueError(f"{key}: has {len(values)} entries for {ranks} ranks")
        for source, row in enumerate(self.links):
            for target, link in enumerate(row):
                if (link is None) != (source == target):
                    told = "must be null" if link else "is missing"
                    raise ValueError(f"links.{source}.{target}: the link of these ranks {told}")
        names = [one.name for one in self.operations]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"operations.{twice}: is there twice")
        for one in self.operations:
            if one.measured and one.measured not in self._by_name:
                raise ValueError(f"operations.{one.name}.measured: there is no operation {one.measured}")
        return self

    @functools.cached_property
    def _by_name(self) -> dict[str, ProfiledOperation]:
        return {one.name: one for one in self.operations}

    @property
    def ranks(self) -> int:
        """Number of ranks that were measured."""
        return len(self.devices)

    def operation(self, name: str) -> ProfiledOperation:
        """Return the operation of that name.

        Raises:
            InputError: there is none: the profile is of another network.
        """
        try:
            return self._by_name[name]
        except KeyError:
            raise InputError(
                f"The profile of {self.network} has no operation {name}.",
                cure="Make a profile of this configuration: cingulum profile CONFIG --out FILE",
                key=f"operations.{name}",
            ) from None

    def forward_s(self, name: str, rank: int, batch: int | None = None) -> float:
        """Return seconds of an operation's forward pass on a rank.

        Args:
            name: of the operation.
            rank: whose device.
            batch: samples; seconds are taken as proportional to it. Default: the profile's own.
        """
        return self.operation(name).forward_s[rank] * (batch or self.batch) / self.batch

    def backward_s(self, name: str, rank: int, batch: int | None = None) -> float:
        """Return seconds of an operation's backward pass on a rank; arguments as of `forward_s`."""
        return self.operation(name).backward_s[rank] * (batch or self.batch) / self.batch

    def update_s(self, rank: int, parameters: float) -> float:
        """Return the seconds in which a rank updates `parameters` parameters."""
        return self.update.seconds[rank] * parameters / max(1, self.update.parameters)

    def handling_s(self, rank: int, size: int) -> float:
        """Return the seconds in which a rank hands over a bundle of `size` bytes, or takes it."""
        if self.handling is None:
            return 0.0
        return self.handling.message_s[rank] + size * self.handling.byte_s[rank]

    def each_s(self, rank: int) -> float:
        """Return seconds that a rank takes for a task besides those of its operation."""
        return 0.0 if self.task_s is None else self.task_s[rank]

    def step_s(self, rank: int) -> float:
        """Return seconds of a step of `batch` samples on a rank alone: all operations, and the update."""
        passes = sum(one.forward_s[rank] + one.backward_s[rank] for one in self.operations)
        return passes + self.update.seconds[rank]

    def link(self, source: int, target: int) -> HostLink:
        """Return the link from one rank to another.

        Raises:
            ValueError: they are the same rank.
        """
        found = self.links[source][target]
        if found is None:
            raise ValueError(f"rank {source} has no link to itself")
        return HostLink(found.latency_s, found.bytes_per_second)
