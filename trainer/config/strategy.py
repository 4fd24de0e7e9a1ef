"""`train.strategy`: how training is divided over processes; each strategy has a section of its own."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

from pydantic import AfterValidator, Discriminator, Field, Tag, TypeAdapter, model_validator

from trainer.config.placed import FiltersConfig, HybridConfig, HypergraphConfig, SpatialConfig
from trainer.config.section import MAY_CHANGE, Remedies, StrategySection, may_change
from trainer.errors import ConfigError

# How gradients are summed over ranks: the one list of these names.
Algorithm = Literal["ring", "segmented-ring", "recursive-doubling", "tree", "reduce-broadcast", "gather"]


class RingConfig(StrategySection):
    """`name: data`. Every rank holds the whole network; gradients are combined over ranks."""

    is_planned: ClassVar[bool] = True
    is_simulated: ClassVar[bool] = True
    lines: ClassVar[Mapping[str, str]] = {"data": "s1 marked", "data, by host": "s7 marked long square"}
    remedies: ClassVar[Remedies] = {
        "large messages": (
            ({"train.strategy.algorithm": "ring"}, "each link carries the least there is"),
            ({"train.strategy.compression": "float16"}, "half the bytes; gradients are rounded to 11 bits"),
            ({"train.strategy.reduction": "buckets"}, "gradients leave while the backward pass still runs"),
        ),
        "small messages": (
            ({"train.strategy.algorithm": "ring"}, "each link carries the least there is"),
            ({"train.strategy.reduction": "grouped"}, "all gradients in one message"),
        ),
        "straggler": (
            (
                {"train.strategy": "parameter-server", "train.strategy.mode": "async"},
                "quick ranks take more samples instead of waiting; one process more, the server, and updates "
                "use older weights",
            ),
        ),
    }
    name: Literal["data"] = may_change("data", description="this strategy")
    algorithm: Algorithm = may_change(
        "ring", description="algorithm of the all-reduce; the others are slower, for comparison"
    )
    reduction: Literal["buckets", "per_tensor", "grouped"] = may_change(
        "buckets", description="`buckets`: sent in reverse layer order while the backward pass runs"
    )
    bucket_mb: float = may_change(
        4.0, gt=0, le=4096, strict=False, description="size of a bucket, in MiB of gradients"
    )
    compression: Literal["none", "float16", "bfloat16"] = Field(
        "none", description="type of gradients on the wire"
    )
    fusion_mb: float | None = may_change(
        None,
        ge=0,
        le=4096,
        strict=False,
        description="buckets that are ready together are sent as one message of up to so many MiB "
        "(HOROVOD_FUSION_THRESHOLD); default: Horovod's own",
    )
    cycle_ms: float | None = may_change(
        None,
        gt=0,
        le=60_000,
        strict=False,
        description="milliseconds between two checks for ready gradients (HOROVOD_CYCLE_TIME); "
        "default: Horovod's own",
    )
    autotune: bool = may_change(
        False,
        description="let Horovod tune its settings during training, and write them into the run folder "
        "(HOROVOD_AUTOTUNE)",
    )
    timeline: bool = may_change(
        False,
        description="write Horovod's timeline of every collective into the run folder (HOROVOD_TIMELINE)",
    )

    @classmethod
    def compared(cls, ranks: int, samples: int, speeds: Sequence[float] | None) -> Sequence[StrategySection]:
        """Return it; see `StrategySection.compared`."""
        return [cls()]

    @classmethod
    def tried(
        cls, replicas: int, ranks: int, samples: int, *, normalised: bool, speeds: Sequence[float]
    ) -> Sequence[StrategySection]:
        """Return it where every rank is a replica; see `StrategySection.tried`."""
        return [cls()] if ranks == 1 else []

    @model_validator(mode="after")
    def _bits_have_their_own_route(self) -> RingConfig:
        if self.compression == "bfloat16" and self.algorithm not in ("ring", "gather"):
            raise ValueError(
                f"compression=bfloat16 uses an all-to-all, not algorithm={self.algorithm}; "
                "use compression=float16 or none"
            )
        return self


class ServerConfig(StrategySection):
    """`name: parameter-server`. Servers hold the weights and apply the updates."""

    is_simulated: ClassVar[bool] = True
    has_servers: ClassVar[bool] = True
    lines: ClassVar[Mapping[str, str]] = {"server": "s8 marked short diamond"}
    remedies: ClassVar[Remedies] = {
        "messages": (({"train.strategy": "data"}, "the ring sends 2(n-1)/n of the gradients on each link"),),
        "straggler": (
            ({"train.strategy.mode": "async"}, "quick workers take more samples instead of waiting"),
        ),
    }
    name: Literal["parameter-server"] = may_change("parameter-server", description="this strategy")
    count: int = may_change(
        1, ge=1, le=1024, description="servers; the weights are divided among them by bytes"
    )
    placement: Literal["separate", "colocated"] = may_change(
        "separate",
        description="separate: the last `count` launched processes are servers only; "
        "colocated: the first `count` ranks are servers, too",
    )
    mode: Literal["sync", "async"] = may_change(
        "sync", description="sync: an update waits for the gradients of all workers"
    )
    staleness: int | None = may_change(
        None,
        ge=0,
        le=10**6,
        description="async: updates that a worker may be ahead of the slowest; default: no bound",
    )
    piece_mb: float | None = may_change(
        None,
        gt=0,
        le=1024,
        strict=False,
        description="largest message, in MiB; larger variables are cut into pieces; default: a sixteenth of "
        "what a server holds, 1/16 at least, 1 at most; 1 where all processes share a host",
    )

    @property
    def is_asynchronous(self) -> bool:  # type: ignore[override]  # decided by a key, here
        """Whether workers do not wait for each other."""
        return self.mode == "async"

    @model_validator(mode="after")
    def _staleness_is_for_async(self) -> ServerConfig:
        if self.staleness is not None and self.mode != "async":
            raise ValueError("staleness is for mode=async: synchronous workers are never ahead")
        return self

    def readers(self, processes: int) -> int:
        """Return the number of workers; see `StrategySection.readers`."""
        workers = processes - self.count if self.placement == "separate" else processes
        if workers < 1:
            raise ValueError(f"no process is left for a worker ({processes} launched, {self.count} servers)")
        return workers

    def check(self, config: Any) -> None:
        """Refuse what asynchronous workers cannot do."""
        if not self.is_asynchronous:
            return
        if self.placement == "colocated":
            raise ValueError(
                "train.strategy.placement: asynchronous servers are separate processes, since a worker "
                "may fail and a server may not; use placement=separate, and launch train.strategy.count more"
            )
        if config.train.precision == "mixed_float16":
            raise ValueError(
                "train.precision: mixed_float16 needs one loss scale for all workers, which "
                "asynchronous workers "
                "do not share; use mixed_bfloat16"
            )
        if config.data.cache == "node-local":
            raise ValueError(
                "data.cache: asynchronous workers do not share a copy per host; use none or memory"
            )


_SHARING = (RingConfig, ServerConfig, SpatialConfig, FiltersConfig, HybridConfig, HypergraphConfig)
# Those that can be planned, which all make the same update: `auto` chooses among them.
PLANNED = tuple(str(one.model_fields["name"].default) for one in _SHARING if one.is_planned)
_OWN = r"^.+:[A-Za-z_]\w*$"


def _can_be_chosen(name: str) -> str:
    if name not in PLANNED and not re.fullmatch(_OWN, name):
        raise ValueError(f"must be {', '.join(map(repr, PLANNED))}, or 'file.py:Class' of your own")
    return name


class AutoConfig(StrategySection):
    """`name: auto`. All are planned when the run starts; the fastest that fits into memory trains."""

    divides_samples: ClassVar[bool] = False
    stands_for_another: ClassVar[bool] = True
    name: Literal["auto"] = may_change("auto", description="this strategy")
    among: list[Annotated[str, Field(max_length=1000), AfterValidator(_can_be_chosen)]] = may_change(
        list(PLANNED),
        min_length=1,
        description="the strategies that are tried; beside those of the default 'file.py:Class' of your own, "
        "with the defaults of its options",
    )
    profile: Path | None = may_change(
        None,
        strict=False,
        description="file of `cingulum profile --out` by which steps are predicted; default: operations and "
        "links are measured when the run starts",
    )
    reconsider_after: int | None = may_change(
        20,
        ge=3,
        le=10**6,
        description="updates after which, at the next checkpoint, the measured step is compared with what "
        "others promise, and another strategy goes on where it wins more than the change costs; "
        "null: the choice stays",
    )

    def readers(self, processes: int) -> int:
        """Return 1: which numbers of samples fit is known when a strategy is chosen."""
        return 1

    def check(self, config: Any) -> None:
        """Refuse what would make updates of one strategy others than those of the next."""
        if not config.train.sync_batch_norm:
            raise ValueError(
                "train.sync_batch_norm: auto chooses among strategies that take batch norm over the same "
                "samples; leave it at true, or name a strategy"
            )


class OwnStrategyConfig(StrategySection):
    """`name: FILE.py:CLASS`. A strategy of your own: [how to write one](../how-to/own-strategy.md)."""

    name: str = Field(
        pattern=_OWN,
        max_length=1000,
        description="'file.py:Class' or 'module:Class': a subclass of trainer.strategies.base.Strategy",
        json_schema_extra=MAY_CHANGE,
    )
    options: dict[str, Any] = Field({}, description="keys of its own, as its class describes them")

    @property
    def label(self) -> str:
        """The name of its class."""
        return self.name.rpartition(":")[2]


SECTIONS: tuple[type[StrategySection], ...] = (*_SHARING, AutoConfig)
# Every strategy of ours, by the name that its section has.
BY_NAME = {str(one.model_fields["name"].default): one for one in SECTIONS}
NAMES = tuple(BY_NAME)
DEFAULT = NAMES[0]
SIMULATED = tuple(name for name, one in BY_NAME.items() if one.is_simulated)
DIVIDING = tuple(name for name, one in BY_NAME.items() if one.divides_network)


def _tag(value: Any) -> str:
    name = value.get("name", "data") if isinstance(value, dict) else getattr(value, "name", "data")
    return name if name in NAMES else "own"


if TYPE_CHECKING:
    AnyStrategy = StrategySection
else:
    _tagged = {**BY_NAME, "own": OwnStrategyConfig}
    AnyStrategy = Annotated[
        Union[tuple(Annotated[one, Tag(name)] for name, one in _tagged.items())],  # noqa: UP007 - at run time
        Discriminator(_tag),
    ]
_ANY: TypeAdapter[StrategySection] = TypeAdapter(AnyStrategy)


def owner(key: str) -> str | None:
    """Return the name of the strategy that has this key, or None."""
    for name, section in BY_NAME.items():
        if key in section.model_fields:
            return name
    return None


def section(value: dict[str, Any]) -> StrategySection:
    """Return the section that these keys are.

    Raises:
        pydantic.ValidationError: they are none.
    """
    return _ANY.validate_python(value)


def check(name: str | None, allowed: Sequence[str], done: str, own: StrategySection | None = None) -> None:
    """Refuse a strategy that a command cannot plan or simulate.

    Args:
        name: of a strategy; None: any.
        allowed: names of the strategies that it can.
        done: what it does with them, for the message: planned, simulated.
        own: that of the configuration, which is allowed, too, where it is the user's own.

    Raises:
        ConfigError: the strategy is not allowed.
    """
    if own is not None and own.name not in NAMES:
        allowed = (*allowed, own.name)
    if name is not None and name not in allowed:
        close = difflib.get_close_matches(name, allowed, n=1)
        raise ConfigError(
            f"train.strategy: {name} is not one that can be {done}."
            + (f" Did you mean {close[0]!r}?" if close else ""),
            cure="Name one of these: " + ", ".join(f"--strategy {one}" for one in allowed),
            key="train.strategy.name",
        )


def named(value: Any) -> Any:
    """Return a strategy's section; a bare name becomes a section with that name.

    Raises:
        ValueError: no strategy has this name.
    """
    if isinstance(value, str):
        value = {"name": value}
    name = value.get("name", "data") if isinstance(value, dict) else None
    if isinstance(name, str) and name not in NAMES and ":" not in name:
        raise ValueError(f"must be {', '.join(map(repr, NAMES))}, or 'file.py:Class' of your own")
    return value
