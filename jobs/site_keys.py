"""Keys of a site profile: partition, time, cores and memory per kind of job, and further options."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from jobs import quantities
from trainer.errors import JobError

# Without any sign that a shell, or a scheduler that reads its directives in a script, knows.
_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.,:+@/-]*$"
Name = Annotated[str, Field(pattern=_NAME, max_length=200)]
Texts = Annotated[tuple[str, ...], Field(strict=False)]
KindName = Literal["train", "crossval", "import", "evaluate", "report"]


class PerKind(BaseModel):
    """Keys of a profile that may differ from kind to kind."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    partition: Name | None = Field(None, description="partition, or queue, of jobs; several: a,b")
    account: Name | None = Field(None, description="the account charged")
    qos: Name | None = Field(None, description="quality of service")
    minutes: int | None = Field(None, ge=1, description="time limit where a job sets none, minutes")
    grace_s: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="seconds before the time limit at which to save, where a job sets none; default 120",
    )
    gpus_per_node: int | None = Field(None, ge=0, description="GPUs on each host where a job sets none")
    cpus_per_rank: int | None = Field(
        None, ge=1, description="cores of each rank, or of the one process, where a job sets none"
    )
    memory: str | None = Field(None, description="memory on each host, such as 64G, where a job sets none")
    options: Texts = Field(
        (), description="further options of the scheduler's command, such as --constraint=a100"
    )

    @field_validator("options")
    @classmethod
    def _options_areplain(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        return plain(options)

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


_OPTION = re.compile(r"--[A-Za-z][A-Za-z_-]*(=[A-Za-z0-9_.,:;+@/%&|*!<>()\[\]{}=~^-]+)?")


def plain(options: tuple[str, ...]) -> tuple[str, ...]:
    """Raise ValueError for what a script cannot hold; what competes with its own, a scheduler refuses."""
    for option in options:
        if not _OPTION.fullmatch(option):
            raise ValueError(f"{option!r} is not --name or --name=value without blanks and quotes")
    return options


def _mebibytes(text: str | None) -> int | None:
    return None if text is None else quantities.mebibytes(text)
