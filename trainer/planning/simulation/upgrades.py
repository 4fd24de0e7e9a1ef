"""Clusters and profiles of which one thing is better. Pure."""

from __future__ import annotations

from typing import Any

from trainer.planning.profile import Profile
from trainer.planning.simulation.cluster import Cluster, SourcedFigure


def faster_links(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with links of so many times the bytes per second."""
    return _all(cluster, ("bytes_per_second",), factor)


def quicker_links(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with links whose latency is divided by a factor."""
    return _all(cluster, ("latency_s",), 1 / factor)


def faster_devices(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with devices that are so many times as fast."""
    keys = {"flops_per_second": factor, "half_flops_per_second": factor, "memory_bytes_per_second": factor}
    keys["operation_s"] = 1 / factor
    devices = {
        name: device.model_copy(update={key: _times(getattr(device, key), by) for key, by in keys.items()})
        for name, device in cluster.devices.items()
    }
    return cluster.model_copy(update={"devices": devices})


def faster_disks(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with storage that reads and writes so many times as fast."""
    keys = ("read_bytes_per_second", "shared_read_bytes_per_second", "write_bytes_per_second")
    storage = cluster.storage
    faster = {key: _times(getattr(storage, key), factor) for key in keys}
    return cluster.model_copy(update={"storage": storage.model_copy(update=faster)})


def faster_profile(profile: Profile, factor: float) -> Profile:
    """Return the profile with devices that are so many times as fast."""
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
