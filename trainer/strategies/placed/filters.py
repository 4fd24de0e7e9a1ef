"""`strategy: filters`: each rank computes some of the filters of every convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from trainer.config import FiltersConfig, RunConfig
from trainer.errors import ConfigError
from trainer.strategies.base import Plan
from trainer.strategies.placed.strategy import Placed

if TYPE_CHECKING:
    import keras

    from trainer.planning.placement.balance import Measured
    from trainer.planning.placement.operations import Network
    from trainer.planning.placement.shares import Split
    from trainer.planning.placement.ways import Layouts
    from trainer.ranks.world import World


class Filters(Placed):
    """Every rank computes some of the filters of each convolution (Marques et al., arXiv 1712.02546).

    Attributes:
        measured: what the ranks' devices and links can do, where shares depend on it; see `calibrate`.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.measured: Measured | None = None
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
        from trainer.strategies.placed.filters_plan import measured_in
        from trainer.strategies.placed.reading import read

        replicas = self._filters.replicas
        if self._filters.balance == "equal" or world.size % replicas or world.size == replicas:
            return
        devices = calibration.devices(world)
        known = measured_in(recorded)
        # Links are measured to the first rank of each replica.
        same = recorded is not None and recorded.get("replicas") == replicas
        if known is not None and known.devices == devices and same:
            self.measured = known
            return
        network = agree(world, lambda: read(model, self._samples))
        self.measured = calibration.measure(
            world, calibration.sample_of(network, model), devices, replicas=replicas
        )

    @property
    def _samples(self) -> int:
        """Samples that one replica takes of a micro-batch."""
        return max(
            1, self.config.train.global_batch // self.config.train.accumulation // self._filters.replicas
        )

    def plan(self, model: keras.Model, optimizer: keras.Optimizer, world_size: int) -> Plan:
        """Divide an update by what was measured; see `Placed.plan`.

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
                "measured": self.measured.model_dump(mode="json"),
                "filters": {name: list(split) for name, split in self._splits.items()},
                "convolutions_s": seconds,
                "imbalance": imbalance,
            }
        return FiltersPlan.from_placed(cast(PlacedPlan, super().plan(model, optimizer, world_size)), about)

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

    def layouts(self, network: Network, ranks: int) -> Layouts:
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
