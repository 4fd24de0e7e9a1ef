"""What a site gives each kind of job: a training and the import before it want different hosts and times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from jobs import quantities
from jobs.site_options import refuse_options
from jobs.spec import Resources
from trainer.errors import JobError

if TYPE_CHECKING:
    from jobs.sites import Site

# What Slurm takes for a name, without any sign that a shell, or its own reader of #SBATCH lines, knows.
_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.,:+@/-]*$"
Name = Annotated[str, Field(pattern=_NAME, max_length=200)]
Texts = Annotated[tuple[str, ...], Field(strict=False)]
KindName = Literal["train", "crossval", "import", "evaluate", "report"]


class PerKind(BaseModel):
    """Keys of a profile that may differ from kind to kind."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    partition: Name | None = Field(None, description="sbatch --partition; several: a,b")
    account: Name | None = Field(None, description="sbatch --account: who pays")
    qos: Name | None = Field(None, description="sbatch --qos")
    minutes: int | None = Field(None, ge=1, description="longest time to run where a job names none, minutes")
    grace_s: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="sbatch --signal: seconds before the time limit to save in, where a job names none; "
        "default 120",
    )
    gpus_per_node: int | None = Field(None, ge=0, description="GPUs on each host where a job names none")
    cpus_per_rank: int | None = Field(
        None, ge=1, description="cores of each rank, or of the one process, where a job names none"
    )
    memory: str | None = Field(None, description="memory on each host, such as 64G, where a job names none")
    options: Texts = Field((), description="further options of sbatch, such as --constraint=a100")

    @field_validator("options")
    @classmethod
    def _options_are_plain(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        refuse_options(options)
        return options

    @field_validator("memory")
    @classmethod
    def _memory_is_a_size(cls, memory: str | None) -> str | None:
        try:
            _mebibytes(memory)
        except JobError:
            raise ValueError(f"{memory!r} is no size: give MiB, or a unit, such as '4000' or 16G") from None
        return memory

    @property
    def memory_mib(self) -> int | None:
        """`memory` in MiB."""
        return _mebibytes(self.memory)


class Kind(PerKind):
    """What is special about one kind of job; what is not written is as for all."""


@dataclass(frozen=True)
class Asked:
    """What was asked for, in the words of `Resources`; None: not said."""

    nodes: int = 1
    least_nodes: int | None = None
    ranks_per_node: int | None = None
    gpus_per_node: int | None = None
    cpus_per_rank: int | None = None
    memory_mib: int | None = None
    minutes: int | None = None


@dataclass(frozen=True)
class Side:
    """What a job before or after the main one is given.

    Attributes:
        cpus_per_rank, gpus_per_node: None: as it follows from the main job.
        memory_mib, minutes: None: the site's default.
    """

    cpus_per_rank: int | None
    gpus_per_node: int | None
    memory_mib: int | None
    minutes: int | None


def main(asked: Asked, site: Site, kind: str) -> Resources:
    """Of the job that was asked for: what was said counts, then the profile's for its kind, then for all.

    Raises:
        JobError: impossible numbers.
    """
    here = site.of(kind)
    gpus = _first(asked.gpus_per_node, here.gpus_per_node, 0)
    return Resources(
        nodes=asked.nodes,
        least_nodes=asked.least_nodes,
        ranks_per_node=asked.ranks_per_node or gpus or 1,
        gpus_per_node=gpus,
        cpus_per_rank=_first(asked.cpus_per_rank, here.cpus_per_rank, 1),
        memory_mib=asked.memory_mib or here.memory_mib,
        minutes=asked.minutes,
    )


def side(asked: Asked, site: Site, kind: str) -> Side:
    """Of a job before or after it: what the profile has for its kind counts, also against what was said.

    `--time 36h` is for the training; where the profile gives imports four hours, they are to have four.
    """
    own = site.kinds.get(kind)  # type: ignore[call-overload]
    said = own.model_fields_set if own is not None else frozenset()
    return Side(
        cpus_per_rank=own.cpus_per_rank if "cpus_per_rank" in said else None,
        gpus_per_node=own.gpus_per_node if "gpus_per_node" in said else None,
        memory_mib=own.memory_mib if "memory" in said else asked.memory_mib or site.memory_mib,
        minutes=own.minutes if "minutes" in said else asked.minutes,
    )


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _mebibytes(text: str | None) -> int | None:
    return None if text is None else quantities.mebibytes(text)
