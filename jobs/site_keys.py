"""Keys of a site profile: partition, time, cores and memory per kind of job, and further options."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from jobs import quantities
from trainer.errors import JobError

# Without any sign that a shell, or a scheduler that reads its directives in a script, knows.
_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.,:+@/-]*$"
Name = Annotated[str, Field(pattern=_NAME, max_length=200)]
Texts = Annotated[tuple[str, ...], Field(strict=False)]
# The folder with batch scripts to edit and example profiles.
SHIPPED = "slurm"
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
    def _options_are_plain(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        return _plain(options)

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


class SchedulerKeys(BaseModel):
    """Keys that Slurm alone reads. They are here, below all schedulers, since a profile is one for all."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    gpu_request: Literal["gpus-per-node", "gres", "gpus-per-task"] = Field(
        "gpus-per-node", description="sbatch's option for GPUs; `gpus-per-task` needs `launcher: srun`"
    )
    launcher: Literal["mpirun", "srun"] = Field(
        "mpirun", description="what starts ranks in an allocation; `mpirun` is that of Open MPI, 4 or 5"
    )
    mpi: Name = Field("pmix", description="srun --mpi=, of the kind pmix; see `srun --mpi=list`")
    srun_options: Texts = Field(
        (), description="further options of the srun that starts ranks, such as --cpu-bind=cores"
    )

    @field_validator("mpi")
    @classmethod
    def _ranks_find_each_other(cls, mpi: str) -> str:
        if not mpi.startswith("pmix"):
            whose = "starts ranks of Cray MPICH" if mpi.startswith("cray") else "is not for Open MPI"
            raise ValueError(
                f"{mpi} {whose}; Horovod is built with Open MPI here, whose ranks find each other by pmix "
                "alone, or with launcher: mpirun"
            )
        return mpi

    @field_validator("srun_options")
    @classmethod
    def _options_of_srun_are_plain(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        return _plain(options)

    @model_validator(mode="after")
    def _srun_is_the_launcher(self) -> SchedulerKeys:
        if self.gpu_request == "gpus-per-task" and self.launcher == "mpirun":
            raise ValueError(
                "gpu_request: gpus-per-task needs launcher: srun; mpirun's daemon is one task on each "
                "host, and would get the GPU of one rank"
            )
        if self.srun_options and self.launcher != "srun":
            raise ValueError("srun_options need launcher: srun")
        return self


_OPTION = re.compile(r"--[A-Za-z][A-Za-z_-]*(=[A-Za-z0-9_.,:;+@/%&|*!<>()\[\]{}=~^-]+)?")


def _plain(options: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what a script cannot hold; what competes with its own options, the scheduler refuses."""
    for option in options:
        if not _OPTION.fullmatch(option):
            raise ValueError(f"{option!r} is not --name or --name=value without blanks and quotes")
    return options


def _mebibytes(text: str | None) -> int | None:
    return None if text is None else quantities.mebibytes(text)
