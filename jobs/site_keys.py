"""Keys of a site profile that may differ between kinds of job: partition, time, cores, memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from jobs import quantities
from jobs.site_options import refuse_options
from trainer.errors import JobError

# What Slurm takes for a name, without any sign that a shell, or its own reader of #SBATCH lines, knows.
_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.,:+@/-]*$"
Name = Annotated[str, Field(pattern=_NAME, max_length=200)]
Texts = Annotated[tuple[str, ...], Field(strict=False)]
KindName = Literal["train", "crossval", "import", "evaluate", "report"]


class PerKind(BaseModel):
    """Keys of a profile that may differ from kind to kind."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    partition: Name | None = Field(None, description="sbatch --partition; several: a,b")
    account: Name | None = Field(None, description="sbatch --account: the account charged")
    qos: Name | None = Field(None, description="sbatch --qos")
    minutes: int | None = Field(None, ge=1, description="time limit where a job sets none, minutes")
    grace_s: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="sbatch --signal: seconds before the time limit at which to save, where a job sets none; "
        "default 120",
    )
    gpus_per_node: int | None = Field(None, ge=0, description="GPUs on each host where a job sets none")
    cpus_per_rank: int | None = Field(
        None, ge=1, description="cores of each rank, or of the one process, where a job sets none"
    )
    memory: str | None = Field(None, description="memory on each host, such as 64G, where a job sets none")
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
            raise ValueError(f"{memory!r} is not a size: give MiB or a unit, such as '4000' or 16G") from None
        return memory

    @property
    def memory_mib(self) -> int | None:
        """`memory` in MiB."""
        return _mebibytes(self.memory)


class Kind(PerKind):
    """Overrides for one kind of job; keys not given are as for all."""


def _mebibytes(text: str | None) -> int | None:
    return None if text is None else quantities.mebibytes(text)
