"""What to change before a run is paid for: how many ranks, which link, device, disk or batch; how long."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.errors import ConfigError, InputError
from trainer.planning.simulation import epoch, upgrades
from trainer.planning.simulation.cluster import Cluster
from trainer.planning.simulation.fabric import ClusterFabric
from trainer.profiling.forecasts import Forecast, Refused
from trainer.profiling.simulating import Strategies
from trainer.profiling.subject import Asked, Subject

# More ranks are useful while twice as many are so many times as fast.
USEFUL = 1.5
# Links, or the batch, are large enough when ranks wait this part of a step at most.
WAITING = 0.1
# Doublings that are tried for either.
MOST_DOUBLINGS = 20


@dataclass(frozen=True)
class Advice:
    """What holds on so many ranks.

    Attributes:
        growth: rows for ranks in powers of two, as many as were asked for at most.
        useful: the most ranks of these that are `USEFUL`.
        row: on the ranks that the rest is about.
        links_factor: how many times as fast all links must be for ranks to wait `WAITING` of a step at most;
            None: no links are fast enough.
        batch: samples of each rank with which they wait as little; None: no batch is large enough.
        upgrades: samples per second over those now, if one thing were twice as good; the best first.
        epochs: that the following are for.
        seconds: of them, with checkpoints and failures.
        dollars: of them; None where a device has no price.
        joules: in them.
        young_s: Young's interval of checkpoints; Daly's is in `row.interrupted`.
    """

    growth: tuple[Forecast, ...]
    useful: int
    row: Forecast
    links_factor: float | None
    batch: int | None
    upgrades: tuple[tuple[str, float], ...]
    epochs: int
    seconds: float
    dollars: float | None
    joules: float
    young_s: float


def advise(asked: Asked, *, most: int, ranks: int | None = None) -> Advice:
    """Say what would change a run most.

    Args:
        asked: its strategy is `data` or `parameter-server`.
        most: ranks that are thought of.
        ranks: what is asked for in particular; default: the most that are useful.

    Raises:
        InputError: the run cannot be simulated, or on none of these ranks.
    """
    if asked.strategy not in ("data", "parameter-server"):
        raise ConfigError(
            f"There is no advice on the strategy {asked.strategy}.",
            cure="Take --strategy data, and compare the others: cingulum simulate CONFIG",
        )
    subject = Subject(asked)
    counts = [2**power for power in range(most.bit_length()) if 2**power <= most]
    tried = [_row(subject, count) for count in counts]
    growth = tuple(one for one in tried if isinstance(one, Forecast))
    if not growth:
        refused = next(one for one in tried if isinstance(one, Refused))
        raise InputError(f"On none of {counts[0]} to {counts[-1]} ranks: {refused.reason}")
    useful = _useful(growth)
    row = _row(subject, ranks or useful)
    if isinstance(row, Refused):
        raise InputError(f"On {row.ranks} rank(s): {row.reason}")
    epochs = asked.config.train.epochs
    return Advice(
        growth=growth,
        useful=useful,
        row=row,
        links_factor=_until(subject, row.ranks, upgrades.faster_links),
        batch=_batch(subject, row),
        upgrades=_upgrades(subject, row),
        epochs=epochs,
        seconds=epochs * row.epoch_s,
        dollars=None if row.dollars is None else epochs * row.dollars,
        joules=epochs * row.joules,
        young_s=epoch.young(row.interrupted.checkpoint_s, row.interrupted.between_failures_s),
    )


def tree(advice: Advice) -> dict[str, Any]:
    """Return advice for JSON."""
    found = {
        field.name: getattr(advice, field.name)
        for field in dataclasses.fields(advice)
        if field.name not in ("growth", "row")
    }
    found["upgrades"] = dict(advice.upgrades)
    found["growth"] = [
        {"ranks": one.ranks, "samples_per_s": one.samples_per_s, "efficiency": one.efficiency}
        for one in advice.growth
    ]
    found["ranks"], found["step_s"] = advice.row.ranks, advice.row.step_s
    found["limit"], found["label"] = advice.row.limit, advice.row.label
    return found | dataclasses.asdict(advice.row.interrupted)


def _row(subject: Subject, ranks: int) -> Forecast | Refused:
    """The faster of a strategy's rows."""
    rows = [row for row, _ in Strategies(subject).strategies(ClusterFabric(subject.cluster, ranks))]
    possible = [row for row in rows if isinstance(row, Forecast)]
    return max(possible, key=lambda row: row.samples_per_s) if possible else rows[0]


def _useful(growth: tuple[Forecast, ...]) -> int:
    best = growth[0]
    for one in growth[1:]:
        doublings = math.log2(one.ranks / best.ranks)
        if one.samples_per_s < USEFUL**doublings * best.samples_per_s:
            break
        best = one
    return best.ranks


def _waits(row: Forecast | Refused) -> bool:
    return isinstance(row, Refused) or row.step.waiting_s > WAITING * row.step.step_s


def _until(subject: Subject, ranks: int, changed: Callable[[Cluster, float], Cluster]) -> float | None:
    """The least power of two by which a thing must be better for ranks to wait little; below 1: worse."""

    def waits(power: int) -> bool:
        cluster = changed(subject.cluster, 2.0**power)
        return _waits(_row(subject.on(dataclasses.replace(subject.asked, cluster=cluster)), ranks))

    powers = range(-MOST_DOUBLINGS, MOST_DOUBLINGS + 1)
    if waits(powers[-1]):
        return None
    low, high = powers[0] - 1, powers[-1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if waits(middle) else (low, middle)
    return 2.0**high


def _batch(subject: Subject, row: Forecast) -> int | None:
    """Samples of each rank, a power of two that fits into memory, with which ranks wait little."""
    for power in range(MOST_DOUBLINGS // 2):
        each = 2**power * subject.config.train.accumulation
        asked = dataclasses.replace(subject.asked, batch_per_rank=each)
        found = _row(subject.on(asked), row.ranks)
        if isinstance(found, Forecast) and not found.fits:
            return None
        if not _waits(found):
            return each
    return None


def _upgrades(subject: Subject, row: Forecast) -> tuple[tuple[str, float], ...]:
    now, cluster = subject.asked, subject.cluster
    batch = 2 * (now.batch_per_rank or max(1, row.samples // row.ranks))
    tried = {
        "links twice as fast": dataclasses.replace(now, cluster=upgrades.faster_links(cluster, 2.0)),
        "links of half the latency": dataclasses.replace(now, cluster=upgrades.quicker_links(cluster, 2.0)),
        "devices twice as fast": dataclasses.replace(
            now,
            cluster=upgrades.faster_devices(cluster, 2.0),
            profile=now.profile and upgrades.faster_profile(now.profile, 2.0),
        ),
        "disks twice as fast": dataclasses.replace(now, cluster=upgrades.faster_disks(cluster, 2.0)),
        "twice the batch": dataclasses.replace(now, batch_per_rank=batch),
    }
    found = []
    for what, asked in tried.items():
        other = _row(subject.on(asked), row.ranks)
        if isinstance(other, Forecast):
            found.append((what, other.samples_per_s / row.samples_per_s))
    return tuple(sorted(found, key=lambda one: -one[1]))
