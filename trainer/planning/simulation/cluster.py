"""A cluster file: devices, hosts, the network between them, storage, failures; each figure has its source.

Read within the bounds of `yaml_reader`; docs/how-to/simulate.md says what each key is. Pure but for `load`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from trainer.config import yaml_reader
from trainer.config.explaining import apart, explain, screenful
from trainer.config.section import Section
from trainer.errors import InputError
from trainer.planning.profile import Profile

# Of ranks: a host is a few numbers, and a rank that trains alone is not looked at.
MOST_RANKS = 1_000_000
_CURE = "Name a YAML file, or a cluster that is shipped: "


class SourcedFigure(Section):
    """A number and where it comes from; one that was not published says so."""

    value: float = Field(ge=0, strict=False, description="in the unit of the key")
    source: str = Field(
        min_length=1, max_length=500, description="title and year, or `estimated` with the reason"
    )


class Positive(SourcedFigure):
    """A figure above 0."""

    value: float = Field(gt=0, strict=False, description="in the unit of the key, more than 0")


class DeviceSection(Section):
    """A device that a rank computes on."""

    flops_per_second: Positive = Field(description="most float32 operations in a second, as published")
    half_flops_per_second: Positive | None = Field(
        None,
        description="the same in float16 or bfloat16, under `train.precision` mixed; default: as float32",
    )
    efficiency: Positive = Field(
        description="part of it that convolutions reach, 0 to 1; not used beside a measured profile"
    )
    memory_bytes_per_second: Positive = Field(description="of the device's memory")
    operation_s: SourcedFigure = Field(
        description="that an operation takes besides, such as to be launched; not used beside a profile"
    )
    memory_bytes: Positive = Field(description="of the device's memory")
    busy_watts: SourcedFigure = Field(description="while it computes")
    idle_watts: SourcedFigure = Field(description="while it waits")
    dollars_per_hour: SourcedFigure | None = Field(
        None, description="price of the device with its part of a host; default: no cost is predicted"
    )

    @field_validator("efficiency")
    @classmethod
    def _is_a_part(cls, efficiency: Positive) -> Positive:
        if efficiency.value > 1:
            raise ValueError(f"value must be at most 1, not {efficiency.value:g}")
        return efficiency


class LinkSection(Section):
    """What carries messages, each way at once."""

    latency_s: SourcedFigure = Field(description="seconds before the first byte arrives")
    bytes_per_second: Positive = Field(description="each way")


class InsideSection(LinkSection):
    """Links between the devices of a host."""

    kind: Literal["switch", "bus", "pairs"] = Field(
        description="switch: each device has a port of this rate each way (NVSwitch); bus: all messages of "
        "the host share it (memory, PCIe); pairs: each pair has a link of its own"
    )


class InterfaceSection(LinkSection):
    """A host's way to the network."""

    count: int = Field(
        1, ge=1, le=64, description="interfaces of this rate; devices take them in turn, one each"
    )


class HostsSection(Section):
    """Hosts that are alike."""

    device: str = Field(description="name of one of `devices`")
    count: int | None = Field(
        None, ge=1, le=MOST_RANKS, description="hosts of this kind; default, for the last kind: no limit"
    )
    devices: int = Field(1, ge=1, le=64, description="devices of a host, each of a rank")
    inside: InsideSection
    interface: InterfaceSection
    watts: SourcedFigure = Field(description="of a host without its devices: processors, memory, fans")


class LevelSection(Section):
    """Groups of hosts and how each is linked to the rest."""

    hosts: int = Field(ge=1, le=MOST_RANKS, description="of a group, those of all levels below included")
    bytes_per_second: Positive = Field(
        description="tree: of a group's links to the level above together; dragonfly: of the link between "
        "each two groups"
    )
    latency_s: SourcedFigure = Field(description="that a message takes more when it leaves its group")


class NetworkSection(Section):
    """What is between hosts. Without levels: one switch that is never the bottleneck."""

    kind: Literal["tree", "dragonfly"] = Field(
        "tree", description="tree: fat trees, Ethernet with a switch for each rack; dragonfly: one level"
    )
    levels: Annotated[tuple[LevelSection, ...], Field(strict=False, max_length=8)] = Field(
        (), description="from the hosts up; without any, one switch"
    )

    @model_validator(mode="after")
    def _levels_contain_each_other(self) -> NetworkSection:
        for lower, upper in zip(self.levels, self.levels[1:], strict=False):
            if upper.hosts <= lower.hosts or upper.hosts % lower.hosts:
                raise ValueError(
                    f"levels: groups of {upper.hosts} hosts are not made of groups of {lower.hosts}"
                )
        if self.kind == "dragonfly" and len(self.levels) != 1:
            raise ValueError(f"levels: a dragonfly has one, not {len(self.levels)}")
        return self


class StorageSection(Section):
    """Where volumes come from and checkpoints go."""

    read_bytes_per_second: Positive = Field(description="that each host reads at most")
    shared_read_bytes_per_second: Positive | None = Field(
        None, description="that all hosts read together at most; default: no limit"
    )
    write_bytes_per_second: Positive = Field(description="of a checkpoint, which one rank writes")


class FailuresSection(Section):
    """How often hosts fail."""

    hours_between: Positive = Field(description="mean time between two failures of a host")
    restart_s: SourcedFigure = Field(description="from a failure to the first step: queue, start, loading")


class Cluster(Section):
    """Content of a cluster file."""

    name: str = Field(min_length=1, max_length=100, description="for people; default: that of the file")
    about: str = Field("", max_length=2000, description="what it stands for")
    devices: dict[str, DeviceSection] = Field(min_length=1, description="by name")
    hosts: Annotated[tuple[HostsSection, ...], Field(strict=False, min_length=1, max_length=1000)]
    network: NetworkSection = NetworkSection()
    storage: StorageSection
    failures: FailuresSection
    slowdown: SourcedFigure = Field(
        description="of a step: standard deviation of a rank's computing over its mean, 0 to 1"
    )

    @field_validator("slowdown")
    @classmethod
    def _is_a_part(cls, slowdown: SourcedFigure) -> SourcedFigure:
        if slowdown.value > 1:
            raise ValueError(f"value must be at most 1, not {slowdown.value:g}")
        return slowdown

    @model_validator(mode="after")
    def _fits_together(self) -> Cluster:
        for number, kind in enumerate(self.hosts):
            if kind.device not in self.devices:
                raise ValueError(
                    f"hosts, entry {number + 1}: there is no device {kind.device!r} among "
                    f"{', '.join(self.devices)}"
                )
            if kind.count is None and number + 1 < len(self.hosts):
                raise ValueError(f"hosts, entry {number + 1}: only the last kind may have no count")
        return self

    @property
    def size(self) -> int | None:
        """Devices of all hosts; None where there is no limit."""
        if self.hosts[-1].count is None:
            return None
        return sum((kind.count or 0) * kind.devices for kind in self.hosts)


def load(name_or_path: str) -> Cluster:
    """Return the cluster of a file, or one that is shipped.

    Args:
        name_or_path: a path, or the name of a shipped cluster; a path has a slash or the ending `.yaml`.

    Raises:
        InputError: there is none, it cannot be read, or a key is unknown or impossible.
    """
    paths = dict(shipped())
    is_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    if not is_path and name_or_path not in paths:
        close = difflib.get_close_matches(name_or_path, paths, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"There is no cluster {name_or_path!r}.{hint}", cure=f"{_CURE}{', '.join(paths)}")
    path = Path(name_or_path) if is_path else paths[name_or_path]
    return parse(yaml_reader.read_text(path, error=InputError, cure=f"{_CURE}{', '.join(paths)}"), path)


def parse(text: str, path: Path) -> Cluster:
    """Return the cluster that a YAML text describes; `path` is for messages. Raises as `load`."""
    document = yaml_reader.parse(text, source=str(path), error=InputError)
    where = "docs/how-to/simulate.md has every key"
    if not isinstance(document.tree, dict):
        raise InputError(f"{path}: holds no keys.", cure=where, path=path)
    try:
        return Cluster.model_validate({"name": path.stem, **document.tree})
    except ValidationError as error:
        found = apart(error.errors())
    said = (explain(str(path), problem, Cluster, document.written) for problem in found)
    raise InputError(screenful(said, len(found)), cure=where, path=path)


def shipped() -> Iterator[tuple[str, Path]]:
    """Yield name and file of every cluster that is shipped."""
    folder = Path(str(resources.files("trainer.planning.simulation"))) / "clusters"
    for path in sorted(folder.glob("*.yaml")):
        yield path.stem, path


# Clusters and profiles of which one thing is better. Pure.


def faster_links(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with links of `factor` times the bytes per second."""
    return _all(cluster, ("bytes_per_second",), factor)


def quicker_links(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with links whose latency is divided by a factor."""
    return _all(cluster, ("latency_s",), 1 / factor)


def faster_devices(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with devices that are `factor` times as fast."""
    keys = {"flops_per_second": factor, "half_flops_per_second": factor, "memory_bytes_per_second": factor}
    keys["operation_s"] = 1 / factor
    devices = {
        name: device.model_copy(update={key: _times(getattr(device, key), by) for key, by in keys.items()})
        for name, device in cluster.devices.items()
    }
    return cluster.model_copy(update={"devices": devices})


def faster_disks(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with storage that reads and writes `factor` times as fast."""
    keys = ("read_bytes_per_second", "shared_read_bytes_per_second", "write_bytes_per_second")
    storage = cluster.storage
    faster = {key: _times(getattr(storage, key), factor) for key in keys}
    return cluster.model_copy(update={"storage": storage.model_copy(update=faster)})


def faster_profile(profile: Profile, factor: float) -> Profile:
    """Return the profile with devices that are `factor` times as fast."""
    operations = tuple(
        one.model_copy(
            update={key: tuple(s / factor for s in getattr(one, key)) for key in ("forward_s", "backward_s")}
        )
        for one in profile.operations
    )
    seconds = tuple(one / factor for one in profile.update.seconds)
    update = profile.update.model_copy(update={"seconds": seconds})
    # A copy would keep the operations that the profile has looked up.
    return Profile(**{**dict(profile), "operations": operations, "update": update})


def _times(figure: Any, factor: float) -> Any:
    return (
        figure.model_copy(update={"value": figure.value * factor})
        if isinstance(figure, SourcedFigure)
        else figure
    )


def _all(cluster: Cluster, keys: tuple[str, ...], factor: float) -> Cluster:
    """The cluster with some keys of all links changed."""

    def link(section: Any) -> Any:
        return section.model_copy(update={key: _times(getattr(section, key), factor) for key in keys})

    hosts = tuple(
        kind.model_copy(update={"inside": link(kind.inside), "interface": link(kind.interface)})
        for kind in cluster.hosts
    )
    network = cluster.network.model_copy(update={"levels": tuple(map(link, cluster.network.levels))})
    return cluster.model_copy(update={"hosts": hosts, "network": network})
