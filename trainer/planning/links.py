"""From timed all-reduces to the latency and rate of the links that they crossed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainer.config.strategy import Algorithm
from trainer.planning import communication
from trainer.planning.frames import BARE, InterfaceBytes


class HostLink(NamedTuple):
    """What the cost model needs to know of each host's link.

    Attributes:
        latency_s: seconds that each round of messages takes besides its bytes.
        bytes_per_second: of payload, each way.
    """

    latency_s: float
    bytes_per_second: float


class Timed(NamedTuple):
    """An all-reduce of `size` bytes per rank, and the seconds that it took on the slowest rank."""

    size: int
    seconds: float


def places(hosts: Sequence[str]) -> list[int]:
    """Return where each process's link is: its host; on one host, each process is a place of its own.

    Processes of one host exchange through its memory, whose rate is then that of a process.
    """
    if len(set(hosts)) == 1:
        return list(range(len(hosts)))
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    return [numbers[host] for host in hosts]


def fit(timed: Sequence[Timed], algorithm: Algorithm, hosts: Sequence[str]) -> HostLink:
    """Return the link for which the cost model gives the seconds of the smallest and the largest all-reduce.

    Args:
        timed: two sizes at least, ascending.
        algorithm: of the all-reduce.
        hosts: of each rank.
    """
    small, large = timed[0], timed[-1]
    crossed = [_crossing(size, algorithm, hosts) for size, _ in (small, large)]
    rounds = len(communication.reduction(algorithm, 1.0, len(hosts)))
    longer = large.seconds - small.seconds
    if longer <= 0:  # noise: the small one says nothing
        return HostLink(0.0, crossed[1] / large.seconds)
    rate = (crossed[1] - crossed[0]) / longer
    return HostLink(max(0.0, small.seconds - crossed[0] / rate) / rounds, rate)


def of_round_trips(timed: Sequence[Timed]) -> HostLink:
    """Return the link from messages of some sizes, each timed until an answer of next to nothing came back.

    Args:
        timed: two sizes at least, ascending.
    """
    latency, rate = of_exchanges(timed)
    return HostLink(latency / 2, rate)


def of_exchanges(timed: Sequence[Timed]) -> HostLink:
    """Return the link from messages of some sizes that went both ways at the same time.

    Args:
        timed: two sizes at least, ascending.
    """
    small, large = timed[0], timed[-1]
    longer = large.seconds - small.seconds
    if longer <= 0:  # noise: the small one says nothing
        return HostLink(0.0, large.size / large.seconds)
    rate = (large.size - small.size) / longer
    return HostLink(max(0.0, small.seconds - small.size / rate), rate)


def seconds(rounds: communication.Rounds, hosts: Sequence[str], link: HostLink) -> float:
    """Return the seconds of an exchange between processes on these hosts."""
    return communication.predict(
        rounds,
        places(hosts),
        bytes_per_second=link.bytes_per_second,
        frames=BARE,
        latency_s=link.latency_s,
    ).seconds


def crossing(rounds: communication.Rounds, places: Sequence[int]) -> tuple[InterfaceBytes, ...]:
    """Return the bytes of payload that each place's link carries, without headers."""
    return communication.predict(rounds, places, bytes_per_second=1.0, frames=BARE).interfaces


def _crossing(size: int, algorithm: Algorithm, hosts: Sequence[str]) -> float:
    """Bytes that the busiest direction of a link carries, over all rounds one after the other."""
    return seconds(communication.reduction(algorithm, size, len(hosts)), hosts, HostLink(0.0, 1.0))
