"""`strategy: filters`: every rank computes some of the filters of each convolution."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from trainer.config import FiltersConfig, RunConfig
from trainer.errors import ConfigError
from trainer.strategies.base import Plan
from trainer.strategies.learner import Learner
from trainer.strategies.placed.strategy import PlacedStrategy

if TYPE_CHECKING:
    import keras

    from trainer.planning.placement.balance import RankSpeeds
    from trainer.planning.placement.operations import OperationGraph
    from trainer.planning.placement.shares import Split
    from trainer.planning.placement.ways import Layouts
    from trainer.ranks.world import World
    from trainer.strategies.placed.filters_plan import FiltersPlan, Recalibration
    from trainer.strategies.placed.learner import PlacedModel


class Filters(PlacedStrategy):
    """Every rank computes some of the filters of each convolution (Marques et al., arXiv 1712.02546).

    Attributes:
        measured: what the ranks' devices and links can do, where shares depend on it; see `calibrate`.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.measured: RankSpeeds | None = None
        self._divisions: tuple[Recalibration, ...] = ()
        self._splits: dict[str, Split] = {}

    @property
    def _filters(self) -> FiltersConfig:
        return cast(FiltersConfig, self.section)

    @property
    def _has_master(self) -> bool:
        return self._filters.mode == "master"

    def calibrate(self, model: keras.Model, world: World, recorded: dict[str, Any] | None) -> None:
        """Measure devices and links, or take what was recorded of the same ones; see `Strategy.calibrate`."""
        from trainer.ranks.agreement import agree
        from trainer.strategies.placed import calibration
        from trainer.strategies.placed.filters_plan import measured_in, recalibrated_in
        from trainer.strategies.placed.reading import read

        super().calibrate(model, world, recorded)
        replicas = self._filters.replicas
        if self._filters.balance == "equal" or world.size % replicas or world.size == replicas:
            return
        devices = calibration.devices(world)
        speeds = measured_in(recorded)
        # Links are measured to the first rank of each replica.
        if recorded and speeds and speeds.devices == devices and recorded.get("replicas") == replicas:
            if self._decided(recorded["balance"]):
                self._divisions = recalibrated_in(recorded, devices)
            speeds = self._divisions[0].measured if self._divisions else speeds
        else:
            network = agree(world, lambda: read(model, self._samples))
            sample = calibration.sample_of(network, model)
            speeds = calibration.measure(world, sample, devices, replicas=replicas)
        self.measured = speeds

    def _decided(self, about: dict[str, Any]) -> bool:
        """Whether a plan's `balance` was decided by the rule of this configuration."""
        return (about.get("by"), about.get("mode")) == (self._filters.balance, self._filters.mode)

    def plan(self, model: keras.Model, optimizer: keras.Optimizer, world_size: int) -> Plan:
        """Divide an update by what was measured; see `PlacedStrategy.plan`.

        Raises:
            ConfigError: as there, and where shares must be measured and were not.
        """
        from trainer.planning.placement import balance
        from trainer.strategies.placed.filters_plan import FiltersPlan
        from trainer.strategies.placed.plan import PlacedPlan
        from trainer.strategies.placed.reading import read

        by, replicas, about = self._filters.balance, self._filters.replicas, None
        if by != "equal" and world_size > replicas and not world_size % replicas:
            if self.measured is None or len(self.measured.devices) != world_size:
                raise ConfigError(
                    f"train.strategy.balance: {by} needs to measure {world_size} ranks first.",
                    cure="Start it on these ranks, or give shares: train.strategy.shares=[1, 0.5]",
                    key="train.strategy.balance",
                )
            network, one = read(model, self._samples), self.measured.of_a_replica(replicas)
            self._splits = balance.splits(network, one, by, master=self._has_master)
            seconds, imbalance = balance.slowest(network, one, self._splits, master=self._has_master)
            about = {
                "by": by,
                "mode": self._filters.mode,
                "measured": self.measured.model_dump(mode="json"),
                "filters": {name: list(split) for name, split in self._splits.items()},
                "convolutions_s": seconds,
                "imbalance": imbalance,
            }
        return FiltersPlan.from_placed(
            cast(PlacedPlan, super().plan(model, optimizer, world_size)),
            balance=about,
            recalibrated=self._divisions,
            may_change=about is not None and bool(self._filters.recalibrate_every or self._divisions),
        )

    def replan(self, learner: Learner, plan: Plan, step: int, left: int) -> Plan | None:
        """Divide filters as plan.json has it of this step, or anew where that is worth it.

        See `Strategy.replan`. Steps that plan.json has a later division of were taken before: nothing is
        measured until these are done again.
        """
        from trainer.strategies.placed.filters_plan import FiltersPlan
        from trainer.strategies.placed.learner import PlacedModel

        if self.measured is None or not isinstance(plan, FiltersPlan) or not isinstance(learner, PlacedModel):
            return None
        recorded = next((one.measured for one in reversed(self._divisions) if one.step <= step), None)
        if recorded is not None and recorded != self.measured:
            return self._follow(recorded, learner, plan)
        every, known = self._filters.recalibrate_every, max((one.step for one in self._divisions), default=0)
        if every is None or step % every or step <= known or not left:
            return None
        found = self._changed(learner, left)
        return None if found is None else self._follow(found, learner, plan, step)

    def _changed(self, learner: PlacedModel, left: int) -> RankSpeeds | None:
        """What the ranks can do now, where another division is worth it; a collective."""
        from trainer.planning.placement import balance
        from trainer.strategies.placed import calibration, filters_plan
        from trainer.strategies.placed.reading import read

        by, replicas, speeds = self._filters.balance, self._filters.replicas, self.measured
        if by == "equal" or speeds is None:
            return None
        network = read(learner.model, self._samples)
        found = filters_plan.look(learner, speeds, calibration.sample_of(network, learner.model))
        if found is None:
            return None
        measured, cost_s = found
        is_worth_it = balance.is_worth_dividing(
            network,
            measured.of_a_replica(replicas),
            self._splits,
            by,
            master=self._has_master,
            times=left * self.config.train.accumulation,
            cost_s=cost_s,
        )
        return measured if is_worth_it else None

    def _follow(
        self, measured: RankSpeeds, learner: PlacedModel, plan: FiltersPlan, step: int | None = None
    ) -> FiltersPlan | None:
        """Divide by other figures; a collective. `step`: where the division is a new one, updates done."""
        from trainer.strategies.placed.filters_plan import FiltersPlan, Recalibration

        before = self.measured, self._splits
        self.measured = measured
        try:
            replanned = cast(FiltersPlan, self.plan(learner.model, learner.optimizer, learner.world.size))
        except ConfigError:  # on all ranks, such as for a message of 2 GiB: training goes on as it is divided
            self.measured, self._splits = before
            return None
        if step is not None:
            first = Recalibration(0, cast("RankSpeeds", before[0]), plan.told(0))
            new = Recalibration(step, measured, replanned.told(step))
            self._divisions = (*(self._divisions or (first,)), new)
        replanned = dataclasses.replace(replanned, recalibrated=self._divisions)
        learner.divide(replanned)
        return replanned

    def shares(self, ranks: int) -> list[float]:
        """Return each rank's share of the filters; as measured, of all filters together.

        Raises:
            ConfigError: there are not as many as ranks.
        """
        if self._splits:
            return [float(sum(counts)) for counts in zip(*self._splits.values(), strict=True)]
        shares = self._filters.shares or [1.0] * ranks
        if len(shares) != ranks:
            raise ConfigError(
                f"train.strategy.shares: {len(shares)} shares, and a replica has {ranks} rank(s).",
                cure=f"Give {ranks} numbers, or leave them out for equal shares.",
                key="train.strategy.shares",
            )
        return shares

    def layouts(self, network: OperationGraph, ranks: int) -> Layouts:
        """Cut channels."""
        from trainer.planning.placement import ways

        shares = dict(enumerate(self.shares(ranks)))
        return ways.filters(network, shares, master=self._has_master, splits=self._splits)

    def way(self, ranks: int) -> str:
        """Return the shares."""
        shares = self.shares(ranks)
        said = ":".join(f"{share:g}" for share in shares)
        measured = f" by {self._filters.balance}" if self._splits else ""
        rest = "all else on the first rank" if self._has_master else "no master"
        return f"filters divided {said}{measured}, {rest}"
