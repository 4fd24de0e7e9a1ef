"""What a run would take on ranks of a cluster that is not there, by each strategy."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence

from trainer.config import RingConfig, ServerConfig, StrategySection, micro_batch
from trainer.config.strategy import DIVIDING, SIMULATED, check
from trainer.errors import ConfigError, InputError
from trainer.forecast import forecasts, groups, plans
from trainer.forecast.forecasts import Events, Forecast, RefusedForecast, Simulation
from trainer.forecast.groups import PlayedGroup
from trainer.forecast.outlooks import Impossible, Outlook
from trainer.forecast.subject import Scenario, Subject
from trainer.models import own as own_code
from trainer.planning.communication import repeated
from trainer.planning.profile import Profile
from trainer.planning.simulation import collectives, stepping
from trainer.planning.simulation.collectives import Direct, Exchanged, Way
from trainer.planning.simulation.fabric import ClusterFabric
from trainer.planning.simulation.stepping import Work
from trainer.strategies import optimizers, registry
from trainer.strategies.reduction import bytes_on_wire
from trainer.strategies.servers import layout

# Flows of a round of servers; more take minutes.
MOST_FLOWS = 2_000_000
DEFAULT_GROUP = 4
# Of so many ranks, all groups are planned and played at once, as they train; of more, one of them.
MOST_AT_ONCE = 16
BY_HOST = "data, by host"
# A row, and what makes the events of its step.
Row = tuple[Forecast | RefusedForecast, Callable[[], Events] | None]
# See `Strategies`; with each label.
Plans = dict[tuple[str | None, int, int, int], list[tuple[str, Outlook | Impossible]]]
COMPUTED = "published FLOP/s and bandwidth of the cluster's devices"


def simulate(asked: Scenario, ranks: Sequence[int]) -> Simulation:
    """Build a run's network, and say what its updates and epochs would take.

    Raises:
        InputError: the configuration, the data, the profile or the cluster cannot be used.
    """
    own = asked.config.train.strategy
    check(asked.strategy, (*SIMULATED, *([own.name] if _is_by_plan(own) else [])), "simulated")
    return Strategies(Subject(asked)).all(ranks)


def _is_by_plan(section: StrategySection) -> bool:
    """Whether only a strategy's plan says what its updates move."""
    return not (section.is_simulated or section.stands_for_another)


class Strategies:
    """Rows of every strategy for a network on a cluster.

    Args:
        subject: the network and the cluster.
        planned: by strategy that is wanted, ranks that are played, their samples and replicas: plans that are
            played as they are, whatever the cluster; new ones are added.
        show: is told what is planned, which may take a minute.
    """

    def __init__(
        self, subject: Subject, planned: Plans | None = None, show: Callable[[str], None] = lambda what: None
    ) -> None:
        self.subject, self.asked = subject, subject.asked
        self.planned: Plans = {} if planned is None else planned
        self.show = show
        self.divided: dict[
            tuple[int, int, int], list[tuple[str, Outlook | Impossible, PlayedGroup | None]]
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
        wanted, own = self.asked.strategy, self.subject.config.train.strategy
        ring = self.subject.ring
        server = own if isinstance(own, ServerConfig) else ServerConfig(name="parameter-server")
        ways: list[tuple[str, str, Callable[[str], Row]]] = [
            ("data", "data", lambda label: self.of_data(label, fabric, ring, ring.algorithm)),
            ("data", BY_HOST, lambda label: self.of_data(label, fabric, ring, "by-host")),
            ("parameter-server", "server", lambda label: self.of_servers(label, fabric, server)),
        ]
        if fabric.hosts == 1 or fabric.kind(0).devices == 1:
            ways.pop(1)
        if _is_by_plan(own):
            ways.append((own.name, own.label, lambda label: self.of_plan(label, fabric)))
        for name, label, forecast in ways:
            if wanted in (None, name):
                try:
                    yield forecast(label)
                except InputError as error:
                    yield RefusedForecast(label, fabric.ranks, error.message), None
        if wanted in (None, *DIVIDING):
            yield from self.of_groups(fabric)

    def of_data(self, label: str, fabric: ClusterFabric, ring: RingConfig, way: Way) -> Row:
        """Return the row of data parallelism."""
        train, ranks = self.subject.config.train, fabric.ranks
        samples = self.subject.samples(ranks)
        each = micro_batch(samples, world_size=ranks, accumulation=train.accumulation)
        buckets = bytes_on_wire(
            *self.subject.variables, kind=ring.reduction, bucket_mb=ring.bucket_mb, wire=ring.compression
        )
        one_byte = collectives.all_reduce(way, fabric)
        exchanged = one_byte.of(sum(buckets), len(buckets))
        work = self.subject.accumulated(each)
        statistics_s = self.subject.statistics(one_byte.latency_s) if train.sync_batch_norm else 0.0
        parts = self.subject.parts(buckets)
        step = stepping.whole_network(
            work, exchanged, parts, ranks, self.subject.deviation, rounds_s=statistics_s
        )
        how = f"{each} sample(s) of each micro-batch on every rank; {way}"
        needs = self.subject.memory(each, self.subject.slots)
        row = self.subject.forecast(label, how, fabric, samples, step, exchanged, needs)
        return row, functools.partial(forecasts.of_whole, work, step, exchanged, parts)

    def of_servers(self, label: str, fabric: ClusterFabric, server: ServerConfig) -> Row:
        """Return the row of synchronous parameter servers."""
        colocated = server.placement == "colocated"
        workers = fabric.ranks if colocated else fabric.ranks - server.count
        if server.is_asynchronous:
            raise ConfigError("Workers that do not wait for each other are not simulated.")
        if workers < 1 or server.count > fabric.ranks:
            raise ConfigError(f"{server.count} server(s) leave no worker of {fabric.ranks} rank(s).")
        if workers * server.count > MOST_FLOWS:
            raise ConfigError(f"{workers:,} workers of {server.count} servers are too many to be simulated.")
        train, samples = self.subject.config.train, self.subject.samples(workers)
        each = micro_batch(samples, world_size=workers, accumulation=train.accumulation)
        moves = layout.exchange_of(server, self.subject.variables[0], workers, one_host=fabric.hosts == 1)
        exchanged = collectives.cost(repeated(moves.rounds), fabric)
        alone = self.subject.accumulated(each)
        work = Work(alone.forward_s, alone.backward_s)
        within = alone.update_s / server.count
        if train.sync_batch_norm:
            # Workers add statistics up among themselves.
            ring = collectives.all_reduce("ring", ClusterFabric(self.asked.cluster, workers))
            within += self.subject.statistics(ring.latency_s)
        parts = self.subject.parts([1.0] * moves.parts)
        step = stepping.whole_network(
            work, exchanged, parts, workers, self.subject.deviation, rounds_s=within
        )
        way = f"{workers} worker(s), {server.count} server(s), {server.placement}"
        needs = self.subject.memory(each, 0)
        row = self.subject.forecast(label, way, fabric, samples, step, exchanged, needs)
        return row, functools.partial(forecasts.of_whole, work, step, exchanged, parts)

    def of_plan(self, label: str, fabric: ClusterFabric) -> Row:
        """Return the row of another strategy, such as one of the user's own, by what its plan moves."""
        config, ranks, samples = self.subject.config, fabric.ranks, self.subject.samples(fabric.ranks)
        train = config.train.model_copy(update={"global_batch": samples})
        strategy = registry.of(config.model_copy(update={"train": train}))
        with own_code.errors_with_place(strategy.name, what="strategy", error=ConfigError):
            plan = strategy.plan(self.subject.model, optimizers.build(train, 1), ranks)
            moves, memory = plan.exchange(), plan.memory()
        if moves is None:
            raise ConfigError("Its plan does not say what an update moves: Plan.exchange().")
        if sum(len(flows) for flows in moves.rounds) > MOST_FLOWS:
            raise ConfigError(f"More than {MOST_FLOWS:,} messages are too many to be simulated.")
        exchanged = collectives.cost(repeated(moves.rounds), fabric)
        work, parts = self.subject.accumulated(plan.micro_batch), self.subject.parts([1.0] * moves.parts)
        within = 0.0
        if train.sync_batch_norm:
            within = self.subject.statistics(collectives.all_reduce("ring", fabric).latency_s)
        step = stepping.whole_network(work, exchanged, parts, ranks, self.subject.deviation, rounds_s=within)
        needs = self.subject.memory(plan.micro_batch, self.subject.slots)
        if memory is not None:
            needs = max(one.total for one in memory)
        way = f"{plan.micro_batch} sample(s) of each micro-batch on every rank; {strategy.name}"
        row = self.subject.forecast(label, way, fabric, samples, step, exchanged, needs)
        return row, functools.partial(forecasts.of_whole, work, step, exchanged, parts)

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
    ) -> list[tuple[str, Outlook | Impossible, PlayedGroup | None]]:
        """Return what each strategy makes of the samples of so many ranks; planned and played once."""
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
    ) -> list[tuple[str, Outlook | Impossible]]:
        """Divide the network by each strategy that is wanted."""
        train = self.subject.config.train.model_copy(update={"global_batch": samples})
        asked = plans.DivisionRequest(
            self.subject.config.model_copy(update={"train": train}),
            self.subject.model,
            self.subject.network(samples // train.accumulation),
            size,
            self.subject.slots,
            profile,
        )
        found = []
        each = size // replicas, asked.samples // replicas
        for section in plans.sections(asked.network, *each, asked.profile):
            if section.divides_network and self.asked.strategy in (None, section.name):
                label = section.label
                self.show(f"planning {label} on {size} rank(s), {samples} sample(s)")
                found.append(
                    (label, plans.tried(asked, self.with_own_keys(section, replicas), planners_too=False))
                )
        return found

    def with_own_keys(self, section: StrategySection, replicas: int) -> StrategySection:
        """Return a section with so many replicas; the configuration's own one in place of its equal."""
        own = self.subject.config.train.strategy
        if own.label == section.label and hasattr(own, "replicas"):
            section = own
        return section.model_copy(update={"replicas": replicas})
