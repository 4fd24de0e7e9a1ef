"""What a run would take on ranks of a cluster that is not there, by each strategy."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from trainer.config import StrategySection
from trainer.config.strategy import DIVIDING, NAMES, SIMULATED, check
from trainer.errors import ConfigError, InputError
from trainer.forecast import forecasts, groups, plans
from trainer.forecast.forecasts import Events, Forecast, RefusedForecast, Simulation
from trainer.forecast.groups import PlayedGroup
from trainer.forecast.outlooks import Impossible, StrategyOutlook
from trainer.forecast.subject import ForecastSubject, Scenario
from trainer.models import own as own_code
from trainer.planning import choice
from trainer.planning.profile import Profile
from trainer.planning.simulation import stepping
from trainer.planning.simulation.collectives import Direct, Exchanged, WholeUpdate
from trainer.planning.simulation.fabric import ClusterFabric
from trainer.planning.simulation.stepping import Work
from trainer.strategies import registry

DEFAULT_GROUP = 4
# Of so many ranks, all groups are planned and played at once, as they train; of more, one of them.
MOST_AT_ONCE = 16
# A row, and what makes the events of its step.
Row = tuple[Forecast | RefusedForecast, Callable[[], Events] | None]
# See `Strategies`; with each label.
Plans = dict[tuple[str | None, int, int, int], list[tuple[str, StrategyOutlook | Impossible]]]
COMPUTED = "published FLOP/s and bandwidth of the cluster's devices"


def simulate(scenario: Scenario, ranks: Sequence[int]) -> Simulation:
    """Build a run's network, and say what its updates and epochs would take.

    Raises:
        InputError: the configuration, the data, the profile or the cluster cannot be used.
    """
    check(scenario.strategy, SIMULATED, "simulated", scenario.config.train.strategy)
    return Strategies(ForecastSubject(scenario)).all(ranks)


class Strategies:
    """Rows of every strategy for a network on a cluster.

    Args:
        subject: the network and the cluster.
        planned: by strategy that is wanted, ranks that are played, their samples and replicas: plans that are
            played as they are, whatever the cluster; new ones are added.
        show: is told what is planned, which may take a minute.
    """

    def __init__(
        self,
        subject: ForecastSubject,
        planned: Plans | None = None,
        show: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.subject, self.asked = subject, subject.asked
        self.planned: Plans = {} if planned is None else planned
        self.show = show
        self.divided: dict[
            tuple[int, int, int], list[tuple[str, StrategyOutlook | Impossible, PlayedGroup | None]]
        ] = {}

    def all(self, ranks: Sequence[int]) -> Simulation:
        """Return every row."""
        rows: list[Forecast | RefusedForecast] = []
        traces: dict[tuple[str, int], Callable[[], Events]] = {}
        for count in ranks:
            fabric = ClusterFabric(self.asked.cluster, count)
            for row, events in self.strategies(fabric):
                rows.append(row)
                if events is not None:
                    traces[row.label, count] = events
        scale = f"of {self.asked.measured_on}, scaled" if self.asked.measured_on else "as it was measured"
        return Simulation(
            network=self.subject.config.model.name,
            sample_shape=self.subject.data.sample_shape,
            precision=self.subject.config.train.precision,
            parameters=self.subject.network(1).parameters,
            cluster=self.asked.cluster.name,
            seconds_from=f"the profile, {scale}" if self.asked.profile else self._computed(),
            rows=tuple(rows),
            traces=traces,
        )

    def _computed(self) -> str:
        """Say what seconds are from, the floor under each operation too."""
        devices = self.asked.cluster.devices.values()
        each = max((device.operation_s for device in devices), key=lambda one: one.value)
        kind = re.split(r"\W", each.source)[0]
        return f"{COMPUTED}, {each.value * 1e6:g} us for handing over each operation ({kind})"

    def strategies(self, fabric: ClusterFabric) -> Iterator[Row]:
        """Yield the row of each strategy, and what a group of ranks does."""
        for section in self.subject.sections():
            if self.asked.strategy in (None, section.name):
                yield from self.of_whole(section, fabric)
        if self.asked.strategy in (None, *DIVIDING):
            yield from self.of_groups(fabric)

    def of_whole(self, section: StrategySection, fabric: ClusterFabric) -> Iterator[Row]:
        """Yield the rows of a strategy by which each rank that computes holds the whole network."""
        config = self.subject.config
        try:
            samples = self.subject.samples(section.readers(fabric.ranks))
            train = config.train.model_copy(update={"strategy": section, "global_batch": samples})
            strategy = registry.of(config.model_copy(update={"train": train}))
        except (ValueError, InputError) as error:
            why = error.message if isinstance(error, InputError) else f"{error}."
            yield RefusedForecast(section.labels[0], fabric.ranks, why), None
            return
        for label in strategy.rows(fabric):
            try:
                with self._errors_of(section):
                    update = strategy.on_cluster(label, self.subject.model, fabric)
                yield self._row(label, fabric, samples, update)
            except InputError as error:
                yield RefusedForecast(label, fabric.ranks, error.message), None

    def _errors_of(self, section: StrategySection) -> AbstractContextManager[None]:
        """Of code of the user's own, whatever it raises, with its place."""
        if section.name in NAMES:
            return contextlib.nullcontext()
        return own_code.errors_with_place(section.name, what="strategy", error=ConfigError)

    def _row(self, label: str, fabric: ClusterFabric, samples: int, update: WholeUpdate) -> Row:
        subject = self.subject
        work, rounds_s = subject.accumulated(update.micro_batch), 0.0
        slots = subject.slots
        if update.servers:
            rounds_s, slots = work.update_s / update.servers, 0
            work = Work(work.forward_s, work.backward_s)
        if subject.config.train.sync_batch_norm:
            rounds_s += subject.statistics(update.sum_s)
        parts = subject.parts(update.parts)
        step = stepping.whole_network(
            work, update.exchanged, parts, update.workers, subject.deviation, rounds_s=rounds_s
        )
        needs = update.memory_bytes or subject.memory(update.micro_batch, slots)
        row = subject.forecast(label, update.way, fabric, samples, step, update.exchanged, needs)
        return row, functools.partial(forecasts.of_whole, work, step, update.exchanged, parts)

    def of_groups(self, fabric: ClusterFabric) -> Iterator[Row]:
        """Yield the rows of strategies that divide the network itself, over groups of ranks."""
        ranks, train = fabric.ranks, self.subject.config.train
        own = fabric.kind(0).devices
        size = min(ranks, self.asked.group or (own if own > 1 else DEFAULT_GROUP))
        samples = self.subject.samples(ranks)
        parts = ranks // size * train.accumulation
        reason = ""
        if ranks % size:
            reason = f"{ranks} ranks cannot be divided into groups of {size}: give --group."
        elif samples % parts:
            reason = f"{samples} samples cannot be shared evenly by {ranks // size} group(s) of {size} ranks."
        elif ranks // size > groups.MOST_GROUPS:
            reason = f"more than {groups.MOST_GROUPS:,} groups of {size} ranks are not simulated."
        elif ranks == 1:
            reason = "one rank has nobody to divide the network with."
        if reason:
            names = DIVIDING if self.asked.strategy is None else (self.asked.strategy,)
            yield from ((RefusedForecast(name, ranks, reason), None) for name in names)
            return
        replicas = ranks // size if ranks <= MOST_AT_ONCE else 1
        played = size * replicas
        between = Direct(played, ranks // played, fabric)
        for label, outlook, group in self.of_one_group(played, samples * played // ranks, replicas, fabric):
            if isinstance(outlook, Impossible) or group is None:
                reason = outlook.reason if isinstance(outlook, Impossible) else ""
                yield RefusedForecast(label, ranks, reason), None
                continue
            step, crossed = groups.together(group, outlook, fabric, between)
            sent = Exchanged(
                0.0, 0.0,
                max(one.bytes for one in outlook.sent) + crossed.sent,
                ranks // played * sum(one.bytes for one in outlook.sent) + crossed.all_sent,
            )  # fmt: skip
            way = f"{ranks // size} group(s) of {size}: {outlook.way}"
            most = max(one.total for one in outlook.memory)
            row = self.subject.forecast(label, way, fabric, samples, step, sent, most)
            yield row, functools.partial(forecasts.of_played, group.played)

    def of_one_group(
        self, size: int, samples: int, replicas: int, fabric: ClusterFabric
    ) -> list[tuple[str, StrategyOutlook | Impossible, PlayedGroup | None]]:
        """Return what each strategy makes of `samples` samples on `size` ranks; planned and played once."""
        key = size, samples, replicas
        if key not in self.divided:
            profile = self.subject.profile(samples, ClusterFabric(self.asked.cluster, size))
            wanted = self.asked.strategy, *key
            if wanted not in self.planned:
                self.planned[wanted] = self.plans(size, samples, replicas, profile)
            least_s = 0.0 if self.asked.profile else fabric.device(0).operation_s.value
            self.divided[key] = [
                (
                    label,
                    outlook,
                    None
                    if isinstance(outlook, Impossible)
                    else groups.play(
                        outlook, profile, fabric, deviation=self.subject.deviation, least_s=least_s
                    ),
                )
                for label, outlook in self.planned[wanted]
            ]
        return self.divided[key]

    def plans(
        self, size: int, samples: int, replicas: int, profile: Profile
    ) -> list[tuple[str, StrategyOutlook | Impossible]]:
        """Divide the network by each strategy that is wanted."""
        train = self.subject.config.train.model_copy(update={"global_batch": samples})
        request = plans.DivisionRequest(
            self.subject.config.model_copy(update={"train": train}),
            self.subject.model,
            self.subject.network(samples // train.accumulation),
            size,
            self.subject.slots,
            profile,
        )
        outlooks = []
        each = size // replicas, request.samples // replicas
        for section in choice.compared(request.network, *each, request.profile):
            if section.divides_network and self.asked.strategy in (None, section.name):
                label = section.label
                self.show(f"planning {label} on {size} rank(s), {samples} sample(s)")
                outlooks.append(
                    (label, plans.tried(request, self.with_own_keys(section, replicas), planners_too=False))
                )
        return outlooks

    def with_own_keys(self, section: StrategySection, replicas: int) -> StrategySection:
        """Return a section with `replicas` replicas; the configuration's own in place of its equal."""
        own = self.subject.config.train.strategy
        if own.label == section.label and hasattr(own, "replicas"):
            section = own
        return section.model_copy(update={"replicas": replicas})
