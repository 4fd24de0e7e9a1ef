"""From which rate of links, and from which batch on, one strategy is faster than another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainer.planning.simulation import upgrades
from trainer.profiling.forecasts import Forecast, Refused
from trainer.profiling.rows import Rows

# Powers of two times the links' rate that are looked at.
POWERS = range(-6, 7)
# Samples of each rank that are looked at: powers of two below this one.
BATCHES = 8


@dataclass(frozen=True)
class Turn:
    """Where another strategy becomes the faster one.

    Attributes:
        since: times the links' rate, or samples of each rank, from which on it is, as far as was looked.
        faster: its name.
        factor: samples per second over those of the other, there.
    """

    since: float
    faster: str
    factor: float


@dataclass(frozen=True)
class BreakEven:
    """Two strategies against each other.

    Attributes:
        against: the other one.
        links: in the order of rates; the first at the lowest.
        batch: in the order of samples of each rank; empty where at none both are possible and fit.
        rates: lowest and highest times the links' rate that were looked at.
        batches: the same of samples of each rank.
    """

    against: str
    links: tuple[Turn, ...]
    batch: tuple[Turn, ...]
    rates: tuple[float, float] | None
    batches: tuple[float, float] | None


def break_even(own: Rows, other: Rows, ranks: int) -> BreakEven:
    """Compare two strategies on so many ranks.

    Args:
        own: of the one.
        other: of the other.
        ranks: that train.
    """
    cluster, times = own.subject.cluster, own.subject.config.train.accumulation
    names = tuple(str(rows.subject.asked.strategy) for rows in (own, other))

    def over_links() -> Iterator[tuple[float, Forecast, Forecast]]:
        for power in POWERS:
            changed = upgrades.faster_links(cluster, 2.0**power)
            yield from _both(2.0**power, own.of(ranks, cluster=changed), other.of(ranks, cluster=changed))

    def over_batches() -> Iterator[tuple[float, Forecast, Forecast]]:
        for each in (2**power * times for power in range(BATCHES)):
            if not (own.has_time() and other.has_time()):
                return
            pair = own.of(ranks, batch_per_rank=each), other.of(ranks, batch_per_rank=each)
            if any(isinstance(one, Forecast) and not one.fits for one in pair):
                return
            yield from _both(each, *pair)

    links, batches = list(over_links()), list(over_batches())
    return BreakEven(
        names[1], tuple(_turns(links, *names)), tuple(_turns(batches, *names)), _ends(links), _ends(batches)
    )


def _both(
    at: float, own: Forecast | Refused, other: Forecast | Refused
) -> Iterator[tuple[float, Forecast, Forecast]]:
    if isinstance(own, Forecast) and isinstance(other, Forecast):
        yield at, own, other


def _turns(pairs: Iterable[tuple[float, Forecast, Forecast]], own: str, other: str) -> Iterator[Turn]:
    before = None
    for at, one, two in pairs:
        factor = one.samples_per_s / two.samples_per_s
        faster = own if factor >= 1 else other
        if faster != before:
            yield Turn(at, faster, max(factor, 1 / factor))
        before = faster


def _ends(pairs: list[tuple[float, Forecast, Forecast]]) -> tuple[float, float] | None:
    return (pairs[0][0], pairs[-1][0]) if pairs else None
