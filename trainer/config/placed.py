"""`train.strategy` of strategies that divide the network itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from trainer.config.section import Remedies, StrategySection, may_change

Part = Annotated[int, Field(ge=1, le=1024)]
ShareOfFilters = Annotated[float, Field(ge=0, le=1e6)]
# Ranks of a replica over which a hypergraph is planned in seconds, not minutes.
MOST_TRIED = 8
# Micro-batches for each rank of a replica, at most: more hide less than they cost.
_MICRO_BATCHES = 4
# Speeds that differ by less are taken for equal: two measurements of one device do.
_ALIKE = 0.1


def _micro_batches(ranks: int, samples: int) -> int:
    """As many as divide the samples, of those that help."""
    return max(n for n in range(1, min(samples, _MICRO_BATCHES * ranks) + 1) if samples % n == 0)


class PlacedConfig(StrategySection):
    """What strategies that divide the network itself have in common."""

    divides_samples: ClassVar[bool] = False
    divides_network: ClassVar[bool] = True
    is_planned: ClassVar[bool] = True
    is_simulated: ClassVar[bool] = True
    replicas: int = may_change(
        1, ge=1, le=1024, description="groups of ranks that each hold a whole network and take other samples"
    )
    plan: Path | None = may_change(
        None,
        strict=False,
        description="file of `cingulum plan --out`, perhaps edited, that says which rank computes what, "
        "instead of the strategy's own rule",
    )

    def readers(self, processes: int) -> int:
        """Return the number of replicas; see `StrategySection.readers`."""
        if processes % self.replicas:
            raise ValueError(f"{processes} rank(s) cannot be divided into {self.replicas} replicas")
        fixed = self.of_a_replica()
        if fixed is not None and processes != fixed * self.replicas:
            raise ValueError(
                f"{fixed} parts or shares in {self.replicas} replica(s) do not fit {processes} rank(s)"
            )
        return self.replicas

    def check(self, config: Any) -> None:
        """Refuse samples that replicas and micro-batches cannot share, which no number of ranks mends."""
        super().check(config)
        train, replicas = config.train, self.replicas if isinstance(self.replicas, int) else 1
        takers, micro_batches = train.accumulation * replicas, getattr(self, "micro_batches", 1)
        samples, rest = divmod(train.global_batch, takers)
        multiple = f"a multiple of {takers * micro_batches}"
        if rest:
            raise ValueError(
                f"train.global_batch: {train.global_batch} sample(s) cannot be shared evenly by {replicas} "
                f"replica(s) with {train.accumulation} micro-batch(es) each; use {multiple}"
            )
        if samples % micro_batches:
            raise ValueError(
                f"train.strategy.micro_batches: {samples} sample(s) of a replica cannot be divided into "
                f"{micro_batches} micro-batches; set train.global_batch to {multiple}, or take fewer "
                "micro-batches"
            )

    def of_a_replica(self) -> int | None:
        """Return how many ranks a replica must have; None for any number."""
        return None


class SpatialConfig(PlacedConfig):
    """`name: spatial`. Depth, height and width are cut over ranks, which swap halos."""

    lines: ClassVar[Mapping[str, str]] = {"spatial": "s3 marked triangle"}
    name: Literal["spatial"] = may_change("spatial", description="this strategy")
    parts: list[Part] | None = may_change(
        None,
        min_length=3,
        max_length=3,
        description="parts along depth, height and width, such as [2, 2, 1]; their product is the number of "
        "ranks of a replica; default: all along depth",
    )

    small_maps: Literal["channels", "space"] = may_change(
        "channels",
        description="how feature maps are cut whose convolutions have more weights than they have values: "
        "along channels, so that each rank has some of the weights, or in space as all others",
    )

    @classmethod
    def compared(cls, ranks: int, samples: int, speeds: Sequence[float] | None) -> Sequence[StrategySection]:
        """Return it; see `StrategySection.compared`."""
        return [cls(name="spatial")]

    @classmethod
    def tried(
        cls, replicas: int, ranks: int, samples: int, *, normalised: bool, speeds: Sequence[float]
    ) -> Sequence[StrategySection]:
        """Return it; see `StrategySection.tried`."""
        return [cls(name="spatial", replicas=replicas)] if ranks > 1 else []

    def of_a_replica(self) -> int | None:
        """Return the number of parts."""
        return None if self.parts is None else math.prod(self.parts)


class FiltersConfig(PlacedConfig):
    """`name: filters`. Every rank computes some of the filters of each convolution."""

    lines: ClassVar[Mapping[str, str]] = {
        "filters": "s2 marked long turned",
        "filters, master": "s5 marked short cross",
    }
    remedies: ClassVar[Remedies] = {
        "messages": (({"train.strategy": "spatial"}, "borders cross instead of whole feature maps"),),
        "uneven": (
            ({"train.strategy.mode": "masterless"}, "the first rank no longer computes all else alone"),
            (
                {"train.strategy.balance": "speed", "train.strategy.shares": None},
                "filters in proportion to what each rank is measured to compute",
            ),
            (
                {"train.strategy.balance": "bandwidth", "train.strategy.shares": None},
                "as measured, and with the links in mind",
            ),
        ),
    }
    name: Literal["filters"] = may_change("filters", description="this strategy")
    mode: Literal["master", "masterless"] = may_change(
        "masterless",
        description="master: everything but convolutions is on the first rank of a replica, as published; "
        "masterless: channels stay where they were computed",
    )
    shares: list[ShareOfFilters] | None = may_change(
        None,
        max_length=1024,
        description="how much of the filters each rank of a replica takes, such as [1, 0.5]; 0 is allowed; "
        "default: as `balance` says",
    )
    balance: Literal["equal", "speed", "bandwidth"] = may_change(
        "equal",
        description="without `shares`: equal shares, or measured when the run starts: in proportion to each "
        "device's speed, or those with which the slowest rank is done first, messages included",
    )
    recalibrate_every: int | None = may_change(
        None,
        ge=1,
        le=10**6,
        description="with `balance` by speed or bandwidth: updates between two looks at whether devices have "
        "become slower or faster; where that is worth it, filters are divided anew; default: never",
    )

    @property
    def label(self) -> str:
        """Its name, and its mode where that is not the default."""
        return f"{self.name}, master" if self.mode == "master" else self.name

    @classmethod
    def compared(cls, ranks: int, samples: int, speeds: Sequence[float] | None) -> Sequence[StrategySection]:
        """Return both modes, with shares by speed; see `StrategySection.compared`."""
        shares = None if speeds is None else list(speeds)
        return [cls(name="filters", shares=shares), cls(name="filters", mode="master", shares=shares)]

    @classmethod
    def tried(
        cls, replicas: int, ranks: int, samples: int, *, normalised: bool, speeds: Sequence[float]
    ) -> Sequence[StrategySection]:
        """Return it with shares by speed, those of every replica; see `StrategySection.tried`."""
        # Ranks of the same place in each replica must be alike.
        places = [list(speeds[place::ranks]) for place in range(ranks)]
        if ranks == 1 or any(max(place) - min(place) > _ALIKE * max(place) for place in places):
            return []
        shares = [round(min(place), 2) for place in places]
        equal = max(shares) - min(shares) <= _ALIKE * max(shares)
        return [cls(name="filters", replicas=replicas, shares=None if equal else shares)]

    def of_a_replica(self) -> int | None:
        """Return the number of shares."""
        return None if self.shares is None else len(self.shares)

    @model_validator(mode="after")
    def _shares_are_shares(self) -> FiltersConfig:
        if self.shares is not None and not sum(self.shares) > 0:
            raise ValueError(f"shares must not all be 0, as in {self.shares}")
        if self.plan is not None and (self.shares is not None or self.balance != "equal"):
            raise ValueError(f"plan={self.plan} says who computes what; leave shares and balance out")
        if self.shares is not None and self.balance != "equal":
            raise ValueError(
                f"balance={self.balance} measures what shares={self.shares} say; leave one of them out"
            )
        if self.recalibrate_every is not None and self.balance == "equal":
            fixed = (name for name in ("plan", "shares") if getattr(self, name) is not None)
            raise ValueError(
                f"recalibrate_every={self.recalibrate_every} measures devices again, and "
                f"{next(fixed, 'balance=equal')} divides filters by no measurement; use balance=speed or "
                "balance=bandwidth instead, or leave recalibrate_every out"
            )
        return self


class HybridConfig(PlacedConfig):
    """`name: hybrid`. The network is cut into stages, through which micro-batches follow each other."""

    has_stages: ClassVar[bool] = True
    lines: ClassVar[Mapping[str, str]] = {"hybrid": "s4 marked mixed square"}
    name: Literal["hybrid"] = may_change("hybrid", description="this strategy")
    partitions: int | None = may_change(
        None,
        ge=1,
        le=256,
        description="parts, in the order of the network, that the planner gives to ranks; those that follow "
        "each other on one rank are a stage; default: four for each rank of a replica",
    )
    micro_batches: int = may_change(
        4,
        ge=1,
        le=1024,
        description="parts of a replica's samples that follow each other through the stages; batch norm "
        "takes the statistics of one of them, over all replicas",
    )
    schedule: Literal["gpipe", "1f1b"] = may_change(
        "1f1b",
        description="gpipe: all forward passes, then all backward passes; 1f1b: in turn, as soon as a stage "
        "can, which keeps fewer activations",
    )
    recompute: bool = may_change(
        False,
        description="keep only what other ranks have sent between a stage's two passes over a micro-batch, "
        "and compute the rest again before the backward pass: less memory, up to half more to compute",
    )
    planner: Literal["gabra", "dynamic", "milp"] = may_change(
        "gabra",
        description="what gives partitions to ranks: a genetic algorithm, the best cuts into as many stages "
        "as ranks at most, or a mixed-integer program that balances work",
    )
    profile: Path | None = may_change(
        None,
        strict=False,
        description="file of `cingulum profile --out` that the planner goes by; default: operations and "
        "links are measured when the run starts",
    )

    @classmethod
    def compared(cls, ranks: int, samples: int, speeds: Sequence[float] | None) -> Sequence[StrategySection]:
        """Return it with as many micro-batches as help; see `StrategySection.compared`."""
        return [cls(name="hybrid", micro_batches=_micro_batches(ranks, samples))]

    @classmethod
    def tried(
        cls, replicas: int, ranks: int, samples: int, *, normalised: bool, speeds: Sequence[float]
    ) -> Sequence[StrategySection]:
        """Return it with one and with many micro-batches; see `StrategySection.tried`."""
        if ranks == 1:
            return []
        counts = {1, 1 if normalised else _micro_batches(ranks, samples)}
        return [cls(name="hybrid", replicas=replicas, micro_batches=count) for count in sorted(counts)]

    @model_validator(mode="after")
    def _plan_says_all(self) -> HybridConfig:
        if self.plan is not None and self.partitions is not None:
            raise ValueError(f"plan={self.plan} says who computes what; leave partitions out")
        if self.plan is not None and self.profile is not None:
            raise ValueError(f"plan={self.plan} says who computes what; leave profile={self.profile} out")
        return self


class HypergraphConfig(PlacedConfig):
    """`name: hypergraph`. Who computes what follows from partitions of the network's hypergraph."""

    plans_many: ClassVar[bool] = True
    may_leave_idle: ClassVar[bool] = True
    lines: ClassVar[Mapping[str, str]] = {"hypergraph": "s6 marked mixed diamond"}
    name: Literal["hypergraph"] = may_change("hypergraph", description="this strategy")
    replicas: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = may_change(  # type: ignore[assignment]
        1,
        description="groups of ranks that each hold a whole network and take other samples; auto: as many as "
        "are predicted to take least",
    )
    objective: Literal["time", "volume"] = may_change(
        "time", description="what is to be least: seconds of an update, or the bytes that it sends"
    )
    balance: Literal["total", "layers"] = may_change(
        "total",
        description="with `objective: volume`, what keeps to `imbalance`: the work of each rank, or that of "
        "each layer, too; with the work alone whole layers are on one rank, and ranks wait for each other",
    )
    imbalance: float = may_change(
        0.1,
        ge=0,
        le=10,
        description="with `objective: volume`, how much longer than the mean the busiest rank may compute",
    )
    granularity: int | None = may_change(
        None,
        ge=1,
        le=64,
        description="tiles along an axis that is cut, which the partitioner gives to ranks; default: as many "
        "as ranks of a replica, and twice as many",
    )
    micro_batches: int = may_change(
        1,
        ge=1,
        le=1024,
        description="parts of a replica's samples that follow each other where layers are on different "
        "ranks; batch norm takes the statistics of one of them, over all replicas",
    )
    schedule: Literal["gpipe", "1f1b"] = may_change("1f1b", description="of micro-batches; see `hybrid`")
    profile: Path | None = may_change(
        None,
        strict=False,
        description="file of `cingulum profile --out` that seconds come from; default: with "
        "`objective: time`, operations and links are measured when the run starts; with `volume`, "
        "FLOPs count",
    )

    @classmethod
    def compared(cls, ranks: int, samples: int, speeds: Sequence[float] | None) -> Sequence[StrategySection]:
        """Return it, by seconds where these are known; see `StrategySection.compared`."""
        return [cls(name="hypergraph", objective="volume" if speeds is None else "time")]

    @classmethod
    def tried(
        cls, replicas: int, ranks: int, samples: int, *, normalised: bool, speeds: Sequence[float]
    ) -> Sequence[StrategySection]:
        """Return it for few ranks; see `StrategySection.tried`."""
        is_quick = 1 < ranks <= MOST_TRIED
        return [cls(name="hypergraph", replicas=replicas)] if is_quick else []

    def readers(self, processes: int) -> int:
        """Return the number of replicas, one where it is open; see `StrategySection.readers`."""
        return 1 if self.replicas == "auto" else super().readers(processes)

    @model_validator(mode="after")
    def _plan_says_all(self) -> HypergraphConfig:
        if self.plan is not None and self.replicas == "auto":
            raise ValueError(f"plan={self.plan} is for a number of replicas; set replicas in place of auto")
        if self.plan is not None and self.profile is not None:
            raise ValueError(f"plan={self.plan} says who computes what; leave profile={self.profile} out")
        if self.plan is not None and self.granularity is not None:
            raise ValueError(f"plan={self.plan} says who computes what; leave granularity out")
        return self
