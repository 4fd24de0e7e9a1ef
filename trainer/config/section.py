"""What every part of the configuration has in common, and what every strategy's section has."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

# Bounds of keys. NumPy's generators take no larger seed; no wait is longer than Python's clocks can count.
LARGEST_SEED = 2**32 - 1
MOST_SAMPLES = 1_000_000
MONTH_S = 31 * 24 * 3600

# Marks of a field that may have another value when a run goes on: it changes how a run is done, or how long,
# and none of the steps already taken. What changes only the order of a sum over ranks may be marked, since
# another number of ranks changes it, too. A field without a mark must not change.
MAY_CHANGE: JsonDict = {"on_resume": "may change"}
MAY_GROW: JsonDict = {"on_resume": "may grow"}


def may_change(default: Any, **rest: Any) -> Any:
    """Return a pydantic `Field` with this default that may have another value when a run is resumed."""
    return Field(default, json_schema_extra=MAY_CHANGE, **rest)


# YAML 1.1 takes 1e-4 for text; 1.0e-4 is a number there.
_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


class Section(BaseModel):
    """A part of the configuration; immutable, unknown keys refused, types not bent, numbers finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_meant(cls, value: Any, info: ValidationInfo) -> Any:
        """Take 1e-4 for the number that it is; refuse true as 1.0, and texts that no file name can hold."""
        if isinstance(value, str) and "\0" in value:
            raise PydanticCustomError("holds_nul", "must not hold the character U+0000")
        if _holds(cls.model_fields[str(info.field_name)].annotation, float):
            return number(value)
        return value


def number(value: Any) -> Any:
    """Return the value of a key for a number, before it is checked: 1e-4 becomes a float, true is refused."""
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "must be a number")
    if isinstance(value, str) and len(value) < 100 and _FLOAT.fullmatch(value):
        return float(value)
    return value


def _holds(annotation: Any, kind: type) -> bool:
    """Whether a value of this type may be the whole of a field."""
    return annotation is kind or kind in typing.get_args(annotation)


# What a proposal is for: less waiting for messages, of any size, large, or small and many; ranks that compute
# equally long by the plan; slow ranks.
Remedy = Literal["messages", "large messages", "small messages", "uneven", "straggler"]
Remedies = Mapping[Remedy, Sequence[tuple[Mapping[str, Any], str]]]


class StrategySection(Section):
    """What the sections of all strategies have in common."""

    name: str
    # Whether workers do not wait for each other, and outlive each other.
    is_asynchronous: ClassVar[bool] = False
    # Whether every rank takes its own samples of a batch, so that the number of ranks must divide it.
    divides_samples: ClassVar[bool] = True
    # Whether it only chooses another one, which trains.
    stands_for_another: ClassVar[bool] = False
    # Whether ranks hold parts of one network, and wait for each other within each pass.
    divides_network: ClassVar[bool] = False
    # Whether it can be said beforehand what it costs: laid out by `plan`, or on a cluster by `simulate`.
    is_planned: ClassVar[bool] = False
    is_simulated: ClassVar[bool] = False
    # Whether there are servers, `count` of them, beside or among the ranks.
    has_servers: ClassVar[bool] = False
    # Whether ranks are stages, through which micro-batches follow each other.
    has_stages: ClassVar[bool] = False
    # Whether it plans for more ranks than messages are listed of, one of many like replicas then.
    plans_many: ClassVar[bool] = False
    # Whether its plan may leave ranks without work on purpose.
    may_leave_idle: ClassVar[bool] = False
    # What `diagnose` proposes, the most promising first, by what it is for: keys to change, and why. What a
    # run has already, and what its configuration does not take, is not proposed.
    remedies: ClassVar[Remedies] = {}
    # Of each label of its rows the colour, line and marker, told apart from all others in grey, too.
    lines: ClassVar[Mapping[str, str]] = {}

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that a run by it reads."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return tuple(value for value in values if isinstance(value, Path))

    @property
    def label(self) -> str:
        """What tells a row of this strategy from those of others."""
        return self.name

    @property
    def labels(self) -> tuple[str, ...]:
        """Those of its rows where it has several, as of `lines`."""
        return tuple(self.lines) or (self.label,)

    @classmethod
    def compared(cls, ranks: int, samples: int, speeds: Sequence[float] | None) -> Sequence[StrategySection]:
        """Return the sections with which it is compared with other strategies; pure.

        Args:
            ranks: that would train.
            samples: of a micro-batch, over all ranks.
            speeds: of each rank, relative to the fastest; None: devices are alike, and bytes count.
        """
        return ()

    @classmethod
    def tried(
        cls, replicas: int, ranks: int, samples: int, *, normalised: bool, speeds: Sequence[float]
    ) -> Sequence[StrategySection]:
        """Return the sections that `auto` tries with `replicas` replicas; pure.

        None of them changes what an update is: batch norm takes its statistics of the samples of which it
        takes them in one process, so that a network with batch norm has one micro-batch.

        Args:
            replicas: of the network, in whole or in parts.
            ranks: of a replica.
            samples: that a replica takes of a micro-batch.
            normalised: whether the network has batch norm.
            speeds: of each rank of all replicas, relative to the fastest.
        """
        return ()

    def readers(self, processes: int) -> int:
        """Return how many parts each micro-batch is divided into where `processes` processes are launched.

        Raises:
            ValueError: the strategy cannot train with that number of processes.
        """
        return processes

    def check(self, config: Any) -> None:
        """Refuse what this strategy cannot do of the rest of a RunConfig.

        Raises:
            ValueError: says which key is wrong.
        """
