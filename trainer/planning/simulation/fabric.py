"""Which links a message crosses: ranks on the hosts of a cluster, and what they share. Pure."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable
from typing import NamedTuple, Protocol

from trainer.errors import InputError
from trainer.planning.profile import Profile
from trainer.planning.simulation.cluster import Cluster, DeviceSection, HostsSection

Resource = Hashable


class Path(NamedTuple):
    """How a message goes from one rank to another.

    Attributes:
        latency_s: seconds before its first byte arrives.
        resources: that its bytes pass, each shared with other messages.
    """

    latency_s: float
    resources: tuple[Resource, ...]


class Fabric(Protocol):
    """What the engine needs to know of a network."""

    def path(self, source: int, target: int) -> Path:
        """Return the way from one rank to another."""
        ...

    def capacity(self, resource: Resource) -> float:
        """Return the bytes per second of a resource."""
        ...


class PairLinks:
    """A link for each pair of ranks that it shares with nobody, as a profile has measured it."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def path(self, source: int, target: int) -> Path:
        """Return the way from one rank to another."""
        return Path(self._profile.link(source, target).latency_s, ((source, target),))

    def capacity(self, resource: Resource) -> float:
        """Return the bytes per second of a link, named (source, target)."""
        assert isinstance(resource, tuple)  # noqa: S101 (for mypy; `path` makes no others)
        return self._profile.link(*resource).bytes_per_second


class HostLinks:
    """The links of a profile, and the interface of each host, which all that it sends to others shares.

    What it receives from others shares the interface, too, the other way. An interface is as fast as the
    fastest of the links that were measured through it.
    """

    def __init__(self, profile: Profile) -> None:
        self._links = PairLinks(profile)
        self._hosts = [device.host for device in profile.devices]
        self._capacity: dict[Resource, float] = {}
        for source, target in itertools.permutations(range(profile.ranks), 2):
            if self._hosts[source] != self._hosts[target]:
                for one in self._interfaces(source, target):
                    rate = profile.link(source, target).bytes_per_second
                    self._capacity[one] = max(rate, self._capacity.get(one, 0.0))

    def _interfaces(self, source: int, target: int) -> tuple[Resource, Resource]:
        return ("out of", self._hosts[source]), ("into", self._hosts[target])

    def path(self, source: int, target: int) -> Path:
        """Return the way from one rank to another."""
        own = self._links.path(source, target)
        if self._hosts[source] == self._hosts[target]:
            return own
        return Path(own.latency_s, (*own.resources, *self._interfaces(source, target)))

    def capacity(self, resource: Resource) -> float:
        """Return the bytes per second of a resource of some path."""
        return self._capacity.get(resource) or self._links.capacity(resource)


class ClusterFabric:
    """The first ranks of a cluster, which fill its hosts in their order.

    Args:
        cluster: to take hosts of.
        ranks: one on each device.

    Raises:
        InputError: the cluster has fewer devices.
    """

    def __init__(self, cluster: Cluster, ranks: int) -> None:
        if cluster.size is not None and ranks > cluster.size:
            raise InputError(
                f"{cluster.name} has {cluster.size:,} devices, fewer than {ranks:,} ranks.",
                cure="Give fewer --ranks, or raise `count` of its hosts in a cluster file of your own.",
                key="hosts",
            )
        self.cluster, self.ranks = cluster, ranks
        self._capacity: dict[Resource, float] = {}
        self._paths: dict[tuple[int, int], Path] = {}
        # First rank and first host of each kind of hosts.
        self._first_rank, self._first_host = [0], [0]
        for kind in cluster.hosts[:-1]:
            count = kind.count or 0
            self._first_rank.append(self._first_rank[-1] + count * kind.devices)
            self._first_host.append(self._first_host[-1] + count)

    @property
    def hosts(self) -> int:
        """Hosts that these ranks take."""
        return self.host(self.ranks - 1) + 1

    def kind(self, rank: int) -> HostsSection:
        """Return the kind of host of a rank."""
        return self.cluster.hosts[bisect.bisect_right(self._first_rank, rank) - 1]

    def device(self, rank: int) -> DeviceSection:
        """Return the device of a rank."""
        return self.cluster.devices[self.kind(rank).device]

    def host(self, rank: int) -> int:
        """Return the number of a rank's host."""
        number = bisect.bisect_right(self._first_rank, rank) - 1
        within = rank - self._first_rank[number]
        return self._first_host[number] + within // self.cluster.hosts[number].devices

    def place(self, rank: int) -> int:
        """Return which of its host's devices a rank has."""
        number = bisect.bisect_right(self._first_rank, rank) - 1
        return (rank - self._first_rank[number]) % self.cluster.hosts[number].devices

    def path(self, source: int, target: int) -> Path:
        """Return the way from one rank to another."""
        if (source, target) not in self._paths:
            self._paths[source, target] = self._found(source, target)
        return self._paths[source, target]

    def _found(self, source: int, target: int) -> Path:
        hosts = (self.host(source), self.host(target))
        if hosts[0] == hosts[1]:
            return self._inside(source, target, hosts[0])
        resources: list[Resource] = [self._interface(source, hosts[0], "out")]
        latency = max(self.kind(rank).interface.latency_s.value for rank in (source, target))
        network = self.cluster.network
        down: list[Resource] = []
        for number, level in enumerate(network.levels):
            groups = (hosts[0] // level.hosts, hosts[1] // level.hosts)
            if groups[0] == groups[1]:
                break
            latency += level.latency_s.value
            rate = level.bytes_per_second.value
            if network.kind == "dragonfly":
                resources.append(self._of("between groups", *groups, rate=rate))
            else:
                resources.append(self._of(f"level {number + 1} up", groups[0], rate=rate))
                down.append(self._of(f"level {number + 1} down", groups[1], rate=rate))
        resources += [*reversed(down), self._interface(target, hosts[1], "in")]
        return Path(latency, tuple(resources))

    def capacity(self, resource: Resource) -> float:
        """Return the bytes per second of a resource of some path."""
        return self._capacity[resource]

    def _inside(self, source: int, target: int, host: int) -> Path:
        inside = self.kind(source).inside
        rate, latency = inside.bytes_per_second.value, inside.latency_s.value
        if inside.kind == "bus":
            return Path(latency, (self._of("bus of host", host, rate=rate),))
        if inside.kind == "pairs":
            return Path(latency, (self._of("link", source, target, rate=rate),))
        ends = (("port out of rank", source), ("port into rank", target))
        return Path(latency, tuple(self._of(name, rank, rate=rate) for name, rank in ends))

    def _interface(self, rank: int, host: int, way: str) -> Resource:
        interface = self.kind(rank).interface
        number = self.place(rank) % interface.count
        return self._of(f"interface {way} of host", host, number, rate=interface.bytes_per_second.value)

    def _of(self, *name: str | int, rate: float) -> Resource:
        self._capacity[name] = rate
        return name
