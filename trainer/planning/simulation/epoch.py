"""From a step to an epoch: slow ranks, reading, checkpoints, failures, energy and cost. Pure."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from scipy import integrate, stats

from trainer.planning.simulation.cluster import Cluster
from trainer.planning.simulation.fabric import ClusterFabric

HOUR = 3600.0


@functools.lru_cache(maxsize=256)
def largest_of(count: int) -> float:
    """Return the expected largest of `count` standard normal numbers: 0.56 of two, 3.24 of 1,024."""
    if count <= 1:
        return 0.0
    normal = stats.norm

    def above(x: float) -> float:
        return float(-math.expm1(count * normal.logcdf(x)))

    def below(x: float) -> float:
        return float(math.exp(count * normal.logcdf(x)))

    return float(integrate.quad(above, 0, 12)[0] - integrate.quad(below, -12, 0)[0])


def slowest(ranks: int, deviation: float) -> float:
    """Return by what the slowest of `ranks` ranks computes longer than the mean, in expectation."""
    return 1.0 + deviation * largest_of(ranks)


def reading_s(cluster: Cluster, hosts: int, step_bytes: float) -> float:
    """Return the seconds in which hosts read the volumes of a step."""
    storage = cluster.storage
    rate = hosts * storage.read_bytes_per_second.value
    if storage.shared_read_bytes_per_second is not None:
        rate = min(rate, storage.shared_read_bytes_per_second.value)
    return step_bytes / rate


@dataclass(frozen=True)
class Interrupted:
    """What checkpoints and failures make of seconds of training.

    Attributes:
        between_failures_s: mean time between failures of any host.
        interval_s: of training between two checkpoints, the best by Daly's estimate.
        checkpoint_s: that one takes.
        factor: by what a training takes longer, checkpoints, lost work and restarts included.
    """

    between_failures_s: float
    interval_s: float
    checkpoint_s: float
    factor: float


def young(checkpoint_s: float, between_failures_s: float) -> float:
    """Return Young's interval of checkpoints, seconds of training (Young, CACM 17(9), 1974)."""
    return math.sqrt(2 * checkpoint_s * between_failures_s)


def daly(checkpoint_s: float, between_failures_s: float) -> float:
    """Return Daly's interval of checkpoints, seconds of training (Daly, FGCS 22(3), 2006, equation 37)."""
    if checkpoint_s >= 2 * between_failures_s:
        return between_failures_s
    part = checkpoint_s / (2 * between_failures_s)
    return young(checkpoint_s, between_failures_s) * (1 + math.sqrt(part) / 3 + part / 9) - checkpoint_s


def lengthened(interval_s: float, checkpoint_s: float, restart_s: float, between_failures_s: float) -> float:
    """Return by what training takes longer, with failures at an even rate (Daly 2006, equation 20).

    Args:
        interval_s: of training between two checkpoints, above 0.
        checkpoint_s: that one takes.
        restart_s: from a failure to the first step.
        between_failures_s: mean time between failures.
    """
    mean = between_failures_s
    exponent = (interval_s + checkpoint_s) / mean
    if exponent > 500:
        return math.inf
    return mean / interval_s * math.exp(restart_s / mean) * math.expm1(exponent)


def interrupted(cluster: Cluster, hosts: int, checkpoint_bytes: float) -> Interrupted:
    """Return what checkpoints and failures make of a training on `hosts` hosts."""
    mean = cluster.failures.hours_between.value * HOUR / hosts
    takes = checkpoint_bytes / cluster.storage.write_bytes_per_second.value
    every = daly(takes, mean)
    restart = cluster.failures.restart_s.value
    return Interrupted(mean, every, takes, lengthened(every, takes, restart, mean))


@dataclass(frozen=True)
class Used:
    """What some time takes.

    Attributes:
        joules: of devices and hosts.
        dollars: of devices; None where one has no price.
    """

    joules: float
    dollars: float | None


def used(fabric: ClusterFabric, seconds: float, busy: float) -> Used:
    """Return what all ranks' devices and hosts take.

    Args:
        fabric: of the ranks.
        seconds: of the clock.
        busy: part of it in which devices compute, mean over ranks.
    """
    joules, dollars = 0.0, 0.0
    priced = True
    left = fabric.ranks
    for kind in fabric.cluster.hosts:
        ranks = left if kind.count is None else min(left, kind.count * kind.devices)
        left -= ranks
        if not ranks:
            continue
        device = fabric.cluster.devices[kind.device]
        watts = busy * device.busy_watts.value + (1 - busy) * device.idle_watts.value
        hosts = -(-ranks // kind.devices)
        joules += seconds * (ranks * watts + hosts * kind.watts.value)
        if device.dollars_per_hour is None:
            priced = False
        else:
            dollars += seconds / HOUR * ranks * device.dollars_per_hour.value
    return Used(joules, dollars if priced else None)
