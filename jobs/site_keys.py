"""Keys of a site profile: partition, time, cores and memory per kind of job, and further options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from jobs import quantities
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


_OPTION = re.compile(r"--[a-z][a-z-]*(=[A-Za-z0-9_.,:;+@/%&|*!<>()\[\]{}=~^-]+)?")

_SCRIPT = "is set by the script itself"
_RANKS = "conflicts with the nodes, ranks, cores and GPUs that a job asks for"
_JOB = "belongs to the job: see the keys of the profile, and `options`"
_OUTPUT = "would change how ranks are started or what their output looks like, which the script relies on"


def _all(names: str, why: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), why)


# A second one would win: the job would not be found, not be started again, or have other ranks than it says.
_OF_SBATCH = {
    **_all(
        "array chdir comment cpus-per-task dependency error gpus gpus-per-node gpus-per-task help", _SCRIPT
    ),
    **_all("job-name kill-on-invalid-dep mem nodes no-requeue ntasks ntasks-per-node open-mode", _SCRIPT),
    **_all("output parsable requeue signal test-only time version wait wrap", _SCRIPT),
    **{key: f"is the key `{key}`" for key in ("partition", "account", "qos")},
    **_all(
        "cpus-per-gpu gpus-per-socket ntasks-per-core ntasks-per-gpu ntasks-per-socket overcommit", _RANKS
    ),
    **_all("mem-per-cpu mem-per-gpu", "conflicts with the key `memory`, which is per host"),
    "time-min": "conflicts with the key `minutes`",
}
_OF_SRUN = {
    **_all("mpi ntasks kill-on-bad-exit wait no-kill", _SCRIPT),
    **_all("chdir error exact export help immediate input jobid label multi-prog nodefile nodelist", _OUTPUT),
    **_all("open-mode output overlap preserve-env pty quiet test-only time unbuffered version", _OUTPUT),
    **_all("account comment dependency job-name partition qos reservation signal", _JOB),
    **_all("cpus-per-gpu cpus-per-task exclusive gpus gpus-per-node gpus-per-socket gpus-per-task", _RANKS),
    **_all("gres mem mem-per-cpu mem-per-gpu nodes ntasks-per-core ntasks-per-gpu ntasks-per-node", _RANKS),
    **_all("ntasks-per-socket overcommit relative", _RANKS),
}


def refuse_options(options: Sequence[str], *, of_srun: bool = False) -> None:
    """Check that these options may stand in a script beside our own.

    Raises:
        ValueError: one is not `--name` or `--name=value`, or competes with what the script or a key says.
    """
    reserved = _OF_SRUN if of_srun else _OF_SBATCH
    for option in options:
        if not _OPTION.fullmatch(option):
            raise ValueError(f"{option!r} is not --name or --name=value without blanks and quotes")
        name = option[2:].split("=")[0]
        # Slurm takes the beginning of a name for the whole.
        whole = next((one for one in (name, *reserved) if one in reserved and one.startswith(name)), None)
        if whole is not None:
            meant = f"--{name}" if whole == name else f"--{name} (--{whole})"
            raise ValueError(f"{meant} {reserved[whole]}")
