"""What to change before a run is paid for: how many ranks, which link, device, disk or batch; how long."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trainer.config.strategy import SIMULATED, check
from trainer.errors import ConfigError, InputError
from trainer.forecast.forecasts import Forecast, RefusedForecast
from trainer.forecast.simulating import Plans, Strategies
from trainer.forecast.subject import ForecastSubject, Scenario
from trainer.planning.simulation import epoch
from trainer.planning.simulation.cluster import (
    Cluster,
    faster_devices,
    faster_disks,
    faster_links,
    faster_profile,
    quicker_links,
)
from trainer.planning.simulation.fabric import ClusterFabric

# More ranks are useful while twice as many are so many times as fast.
USEFUL = 1.5
# Links, or the batch, are large enough when ranks wait this part of a step at most.
WAITING = 0.1
# Doublings that are tried for either.
MOST_DOUBLINGS = 20
# MiB of a bucket that are tried, and how many times as fast one must make a step to be worth a word:
# predictions are off by two or three in a hundred.
BUCKETS_MB = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
WORTH = 1.03
# Seconds after which no further batch is planned.
WITHIN_S = 120.0


@dataclass(frozen=True)
class Advice:
    """Advice about a run on the ranks of `row`.

    Attributes:
        growth: rows for ranks in powers of two, as many as were asked for at most.
        useful: the most ranks of these that are `USEFUL`.
        row: the forecast for the ranks that the rest is about.
        links_factor: how many times as fast all links must be for ranks to wait `WAITING` of a step at most;
            None: no links are fast enough.
        batch: samples of each rank with which they wait as little; None: no batch is large enough.
        upgrades: samples per second over those now, if one thing were twice as good; the best first.
        bucket: MiB for `train.strategy.bucket_mb`, and how many times as fast they make it, at least `WORTH`;
            None: those that are set are as good, or nothing goes from host to host in buckets.
        epochs: that the following are for.
        seconds: of them, with checkpoints and failures.
        dollars: of them; None where a device has no price.
        joules: in them.
        young_s: Young's interval of checkpoints; Daly's is in `row.interrupted`.
        break_even: against another strategy; None: none was asked for.
        is_cut_short: whether planning took so long that larger batches were not looked at.
    """

    growth: tuple[Forecast, ...]
    useful: int
    row: Forecast
    links_factor: float | None
    batch: int | None
    upgrades: tuple[tuple[str, float], ...]
    bucket: tuple[float, float] | None
    epochs: int
    seconds: float
    dollars: float | None
    joules: float
    young_s: float
    break_even: BreakEven | None
    is_cut_short: bool


def advise(
    scenario: Scenario,
    *,
    most: int,
    ranks: int | None = None,
    epochs: int | None = None,
    against: str | None = None,
    within_s: float = WITHIN_S,
    show: Callable[[str], None] = lambda what: None,
) -> Advice:
    """Say what would change a run most.

    Args:
        scenario: its strategy is one of `SIMULATED`.
        most: ranks that are thought of.
        ranks: what is asked for in particular; default: the most that are useful.
        epochs: that time, energy and cost are for; default: `train.epochs`.
        against: strategy to compare with.
        within_s: seconds after which no further batch is planned.
        show: is told what is planned.

    Raises:
        InputError: the run cannot be simulated, or on none of these ranks.
    """
    for name in (scenario.strategy, against):
        check(name, SIMULATED, "simulated")
    if against == scenario.strategy:
        raise ConfigError(f"--against {against}: is the strategy itself.", cure="Name another one.")
    subject = ForecastSubject(scenario)
    rows = Rows(subject, within_s, show)
    counts = [2**power for power in range(most.bit_length()) if 2**power <= most]
    tried = [rows.of(count) for count in counts]
    growth = tuple(one for one in tried if isinstance(one, Forecast))
    if not growth:
        refused = next(one for one in tried if isinstance(one, RefusedForecast))
        raise InputError(f"On none of {counts[0]} to {counts[-1]} ranks: {refused.reason}")
    useful = _useful(growth)
    row = rows.of(ranks or useful)
    if isinstance(row, RefusedForecast):
        raise InputError(f"On {row.ranks} rank(s): {row.reason}")
    epochs = epochs or scenario.config.train.epochs
    upgraded, batch = _upgrades(rows, row), _batch(rows, row)
    compared = None
    if against is not None:
        others = Rows(subject.on(dataclasses.replace(scenario, strategy=against)), within_s, show)
        compared = break_even(rows, others, row.ranks)
        rows.is_cut_short |= others.is_cut_short
    return Advice(
        growth=growth,
        useful=useful,
        row=row,
        links_factor=_until(rows, row.ranks, faster_links),
        batch=batch,
        upgrades=upgraded,
        bucket=_bucket(rows, row),
        epochs=epochs,
        seconds=epochs * row.epoch_s,
        dollars=None if row.dollars is None else epochs * row.dollars,
        joules=epochs * row.joules,
        young_s=epoch.young(row.interrupted.checkpoint_s, row.interrupted.between_failures_s),
        break_even=compared,
        is_cut_short=rows.is_cut_short,
    )


def tree(advice: Advice) -> dict[str, Any]:
    """Return advice for JSON."""
    fields = {
        field.name: getattr(advice, field.name)
        for field in dataclasses.fields(advice)
        if field.name not in ("growth", "row", "break_even")
    }
    fields["break_even"] = advice.break_even and dataclasses.asdict(advice.break_even)
    fields["upgrades"] = dict(advice.upgrades)
    fields["growth"] = [
        {"ranks": one.ranks, "samples_per_s": one.samples_per_s, "efficiency": one.efficiency}
        for one in advice.growth
    ]
    fields["ranks"], fields["step_s"] = advice.row.ranks, advice.row.step_s
    fields["limit"], fields["label"] = advice.row.limit, advice.row.label
    return fields | dataclasses.asdict(advice.row.interrupted)


def _useful(growth: tuple[Forecast, ...]) -> int:
    best = growth[0]
    for row in growth[1:]:
        doublings = math.log2(row.ranks / best.ranks)
        if row.samples_per_s < USEFUL**doublings * best.samples_per_s:
            break
        best = row
    return best.ranks


def _waits(row: Forecast | RefusedForecast) -> bool:
    return isinstance(row, RefusedForecast) or row.step.waiting_s > WAITING * row.step.step_s


def _until(rows: Rows, ranks: int, changed: Callable[[Cluster, float], Cluster]) -> float | None:
    """The least power of two by which a thing must be better for ranks to wait little; below 1: worse."""

    def waits(power: int) -> bool:
        return _waits(rows.of(ranks, cluster=changed(rows.subject.cluster, 2.0**power)))

    powers = range(-MOST_DOUBLINGS, MOST_DOUBLINGS + 1)
    if waits(powers[-1]):
        return None
    low, high = powers[0] - 1, powers[-1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if waits(middle) else (low, middle)
    return 2.0**high


def _batch(rows: Rows, row: Forecast) -> int | None:
    """Samples of each rank, a power of two that fits into memory, with which ranks wait little."""
    for power in range(MOST_DOUBLINGS // 2):
        if not rows.has_time():
            return None
        each = 2**power * rows.subject.config.train.accumulation
        found = rows.of(row.ranks, batch_per_rank=each)
        if isinstance(found, Forecast) and not found.fits:
            return None
        if not _waits(found):
            return each
    return None


def _upgrades(rows: Rows, row: Forecast) -> tuple[tuple[str, float], ...]:
    now, cluster = rows.subject.asked, rows.subject.cluster
    batch = 2 * (now.batch_per_rank or max(1, row.samples // row.ranks))
    tried: dict[str, dict[str, Any]] = {
        "links twice as fast": {"cluster": faster_links(cluster, 2.0)},
        "links of half the latency": {"cluster": quicker_links(cluster, 2.0)},
        "devices twice as fast": {
            "cluster": faster_devices(cluster, 2.0),
            "profile": now.profile and faster_profile(now.profile, 2.0),
        },
        "disks twice as fast": {"cluster": faster_disks(cluster, 2.0)},
        "twice the batch": {"batch_per_rank": batch},
    }
    gains = []
    for what, changes in tried.items():
        other = rows.of(row.ranks, **changes)
        if isinstance(other, Forecast):
            gains.append((what, other.samples_per_s / row.samples_per_s))
    return tuple(sorted(gains, key=lambda one: -one[1]))


def _bucket(rows: Rows, row: Forecast) -> tuple[float, float] | None:
    """The size of a bucket that is fastest, and how many times as fast as the one that is set."""
    scenario = rows.subject.asked
    several_hosts = ClusterFabric(rows.subject.cluster, row.ranks).hosts > 1
    buckets = [
        one
        for one in rows.subject.sections()
        if one.name == scenario.strategy and getattr(one, "reduction", None) == "buckets"
    ]
    if not (buckets and several_hosts):
        return None
    gains = []
    for size in BUCKETS_MB:
        section = buckets[0].model_copy(update={"bucket_mb": size})
        train = scenario.config.train.model_copy(update={"strategy": section})
        other = rows.of(row.ranks, config=scenario.config.model_copy(update={"train": train}))
        if isinstance(other, Forecast):
            gains.append((other.samples_per_s / row.samples_per_s, size))
    # Of sizes that are as good, the largest: fewer messages.
    factor, size = max(gains)
    return (size, factor) if factor >= WORTH else None


# From which rate of links, and from which batch on, one strategy is faster than another.


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
    """Compare two strategies on `ranks` ranks.

    Args:
        own: rows of the first strategy.
        other: rows of the second one.
        ranks: that train.
    """
    cluster, times = own.subject.cluster, own.subject.config.train.accumulation
    names = tuple(str(rows.subject.asked.strategy) for rows in (own, other))

    def over_links() -> Iterator[tuple[float, Forecast, Forecast]]:
        for power in POWERS:
            changed = faster_links(cluster, 2.0**power)
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
    at: float, own: Forecast | RefusedForecast, other: Forecast | RefusedForecast
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


# The row of one strategy under changes of cluster and batch; nothing is planned twice, nor for ever.


class Rows:
    """What a strategy takes on some ranks, if something were otherwise.

    A network that is divided is planned once for each number of samples: on other links or devices the same
    plan is played.

    Args:
        subject: the network and the cluster.
        within_s: seconds after which no further number of samples is looked at.
        show: is told what is planned.

    Attributes:
        is_cut_short: whether something was not looked at for want of time.
    """

    def __init__(self, subject: ForecastSubject, within_s: float, show: Callable[[str], None]) -> None:
        self.subject, self._show = subject, show
        self._end = time.monotonic() + within_s
        self._planned: Plans = {}
        self.is_cut_short = False

    def of(self, ranks: int, **changes: Any) -> Forecast | RefusedForecast:
        """Return the faster of a strategy's rows.

        Args:
            ranks: that train.
            changes: of what is asked, such as `cluster` or `batch_per_rank`.
        """
        subject = self.subject.on(dataclasses.replace(self.subject.asked, **changes))
        fabric = ClusterFabric(subject.cluster, ranks)
        rows = [row for row, _ in Strategies(subject, self._planned, self._show).strategies(fabric)]
        possible = [row for row in rows if isinstance(row, Forecast)]
        return max(possible, key=lambda row: row.samples_per_s) if possible else rows[0]

    def has_time(self) -> bool:
        """Return whether there is time to look at another number of samples; notes where there is none."""
        self.is_cut_short |= time.monotonic() > self._end
        return not self.is_cut_short
