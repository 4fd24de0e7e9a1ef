"""A run's network on a cluster: what a rank computes, needs and reads, and what an epoch takes."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config import RunConfig, StrategySection
from trainer.config.strategy import BY_NAME
from trainer.errors import ConfigError
from trainer.forecast.forecasts import Forecast
from trainer.planning.exchange import ExchangePart
from trainer.planning.placement import costs, ways
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.memory import memory
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.units import place
from trainer.planning.profile import Profile
from trainer.planning.simulation import devices, epoch
from trainer.planning.simulation.cluster import Cluster
from trainer.planning.simulation.collectives import Exchanged
from trainer.planning.simulation.fabric import ClusterFabric
from trainer.planning.simulation.stepping import StepSeconds, Work
from trainer.runs import preparation
from trainer.strategies import optimizers, slots
from trainer.strategies.base import sizes_of
from trainer.strategies.placed import reading


@dataclass(frozen=True)
class Scenario:
    """What is to be simulated.

    Attributes:
        config: of the run.
        cluster: that it would run on.
        strategy: the one of `NAMES` that is wanted; None: all.
        batch_per_rank: samples of each rank in an update; None: `train.global_batch`, however many ranks.
        group: ranks that divide a network between them; None: those of a host, and 4 where it has one.
        profile: measured; None: seconds are computed from the cluster's devices.
        measured_on: device of the cluster's file that the profile was measured on; None: those of the hosts.
    """

    config: RunConfig
    cluster: Cluster
    strategy: str | None = None
    batch_per_rank: int | None = None
    group: int | None = None
    profile: Profile | None = None
    measured_on: str | None = None


class ForecastSubject:
    """What all strategies train.

    Attributes:
        asked: what is to be simulated.
        config: of the run.
        cluster: that it would run on.
        deviation: of a rank's computing, over its mean.
        model: the network.
        slots: numbers that the optimizer keeps for each parameter.

    Raises:
        InputError: the configuration, the data or the profile cannot be used.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.asked, self.config, self.cluster = scenario, scenario.config, scenario.cluster
        self.deviation = self.cluster.slowdown.value
        if scenario.measured_on is not None:
            if scenario.profile is None:
                raise ConfigError(
                    "--profiled-on says of what device a profile is.", cure="Give it: --profile FILE"
                )
            devices.device_of(self.cluster, scenario.measured_on)
        preparation.set_numerics(self.config)
        self.data = preparation.open_data(self.config)
        self.model = preparation.build_model(self.config, self.data, synchronised=False)
        self.slots = slots.per_parameter(
            optimizers.build(self.config.train, 1, self.model), self.model.trainable_variables
        )
        rows = self.data.rows("train")
        self._rows = len(rows)
        self._sample_bytes = statistics.mean(self.data.shards.volumes[row].nbytes for row in rows)
        self._networks: dict[int, OperationGraph] = {}
        if scenario.profile is not None:
            costs.check_profile(scenario.profile, self.network(1), 1)

    def on(self, scenario: Scenario) -> ForecastSubject:
        """Return the same network on another cluster, with other samples or another `train.strategy`.

        It is not built again, so that nothing else of the configuration may differ.
        """
        other = copy.copy(self)
        other.asked, other.config, other.cluster = scenario, scenario.config, scenario.cluster
        other.deviation = scenario.cluster.slowdown.value
        other.__dict__.pop("alone", None)
        return other

    def network(self, samples: int) -> OperationGraph:
        """Return the network for `samples` samples."""
        if samples not in self._networks:
            self._networks[samples] = reading.read(self.model, samples)
        return self._networks[samples]

    def sections(self) -> list[StrategySection]:
        """Return the sections of strategies by which ranks hold the whole network, the run's own in place."""
        own = self.config.train.strategy
        sections = [
            own if own.name == name else kind(name=name)
            for name, kind in BY_NAME.items()
            if kind.is_simulated and not kind.divides_network
        ]
        if not (own.stands_for_another or own.is_simulated):
            sections.append(own)
        return sections

    def samples(self, ranks: int) -> int:
        """Return the samples of an update."""
        each = self.asked.batch_per_rank
        return self.config.train.global_batch if each is None else each * ranks

    def profile(self, samples: int, fabric: ClusterFabric) -> Profile:
        """Return seconds on the ranks of a fabric."""
        if self.asked.profile is not None:
            return devices.scaled(self.asked.profile, fabric, measured_on=self.asked.measured_on)
        train = self.config.train
        return devices.computed(
            self.network(samples), fabric, name=self.config.model.name, precision=train.precision
        )

    def work(self, samples: int) -> Work:
        """Return what a rank of the slowest kind of device computes alone for `samples` samples."""
        per_kind = []
        for kind in self.cluster.hosts:
            alone = ClusterFabric(self.cluster.model_copy(update={"hosts": (kind,)}), 1)
            profile = self.profile(samples, alone)
            names = [one.name for one in profile.operations]
            tasks_s = profile.each_s(0) * sum(bool(one.readings) for one in self.network(1).operations)
            per_kind.append(
                Work(
                    tasks_s + math.fsum(profile.forward_s(name, 0, samples) for name in names),
                    tasks_s + math.fsum(profile.backward_s(name, 0, samples) for name in names),
                    profile.update.seconds[0],
                )
            )
        return max(per_kind, key=lambda one: one.seconds)

    @functools.cached_property
    def alone(self) -> float:
        """Samples per second of a rank that trains alone."""
        samples = self.samples(1)
        return samples / self.work(samples).seconds

    @functools.cached_property
    def variables(self) -> tuple[list[int], list[int]]:
        """Elements of each trainable variable, and bytes of each element."""
        return sizes_of(self.model)

    def accumulated(self, each: int) -> Work:
        """Return what a rank computes in an update; only the last backward pass hides anything."""
        one, times = self.work(each), self.config.train.accumulation
        before = (times - 1) * (one.forward_s + one.backward_s)
        return Work(before + one.forward_s, one.backward_s, one.update_s)

    def parts(self, sizes: Sequence[float]) -> tuple[ExchangePart, ...]:
        """Return parts of the gradients, and when the backward pass has computed them.

        Args:
            sizes: bytes of each part, in the order in which they leave: that of the backward pass.
        """
        profile = self.profile(1, ClusterFabric(self.cluster, 1))
        network, seconds = self.network(1), 0.0
        done: dict[str, float] = {}
        for one in reversed(network.operations):
            seconds += profile.backward_s(one.name, 0)
            done |= dict.fromkeys((weight.path for weight in one.weights), seconds)
        counts, widths = self.variables
        held = [count * width for count, width in zip(counts, widths, strict=True)]
        # Bytes that are there before a variable's gradient is, and when it is.
        variables = list(zip(reversed(self.model.trainable_variables), reversed(held), strict=True))
        before = itertools.accumulate((size for _, size in variables), initial=0)
        ready = [(there, done.get(v.path, seconds)) for there, (v, _) in zip(before, variables, strict=False)]
        whole, parts, until = math.fsum(sizes), [], 0.0
        for size in sizes:
            until += size
            last = max((at for there, at in ready if there / sum(held) < until / whole), default=0.0)
            parts.append(ExchangePart(last / seconds if seconds else 1.0, size / whole))
        return tuple(parts)

    def statistics(self, round_s: float) -> float:
        """Return the seconds in which an update waits for statistics of batch norm, both ways."""
        sums = sum(one.kind.endswith("_moments") for one in self.network(1).operations)
        return 2 * sums * self.config.train.accumulation * round_s

    @functools.cache  # noqa: B019 (of one call of `simulate`)
    def memory(self, each: int, slots: int) -> int:
        """Return the bytes that a rank needs which holds the whole network."""
        network = self.network(each)
        placement = place(network, ways.alone(network))
        return memory(placement, task_lists(placement), 1, slots=slots, whole_update=True)[0].total

    def forecast(
        self,
        label: str,
        way: str,
        fabric: ClusterFabric,
        samples: int,
        step: StepSeconds,
        exchanged: Exchanged,
        memory_bytes: int,
    ) -> Forecast:
        """Return a row, with what an epoch takes."""
        read = epoch.reading_s(self.cluster, fabric.hosts, samples * self._sample_bytes)
        step_s = max(step.step_s, read)
        state = 4 * self.network(1).parameters * (1 + self.slots)
        interrupted = epoch.interrupted(self.cluster, fabric.hosts, state)
        epoch_s = self._rows / samples * step_s * interrupted.factor
        used = epoch.used(fabric, epoch_s, step.busy_s / step_s)
        causes = {
            "computing": step.busy_s,
            "slow ranks": step.slow_s,
            exchanged.limit or "messages": step.waiting_s,
            "reading": read - step.step_s,
        }
        return Forecast(
            label=label,
            way=way,
            ranks=fabric.ranks,
            hosts=fabric.hosts,
            samples=samples,
            step=step,
            reading_s=read,
            efficiency=samples / step_s / fabric.ranks / self.alone,
            sent_bytes=exchanged.sent,
            all_sent_bytes=exchanged.all_sent,
            memory_bytes=memory_bytes,
            fits=all(
                memory_bytes <= self.cluster.devices[kind.device].memory_bytes.value
                for kind in self.cluster.hosts
            ),
            limit=max(causes, key=causes.__getitem__),
            epoch_s=epoch_s,
            joules=used.joules,
            dollars=used.dollars,
            interrupted=interrupted,
        )
