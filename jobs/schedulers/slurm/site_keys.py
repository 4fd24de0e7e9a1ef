"""Keys of a site profile that Slurm alone reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from jobs.site_keys import Name, Texts, plain
from jobs.sites import Site


class SlurmSite(Site):
    """A site, with the keys that Slurm alone reads."""

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
    def _options_of_srun_areplain(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        return plain(options)

    @model_validator(mode="after")
    def _srun_is_the_launcher(self) -> SlurmSite:
        if self.gpu_request == "gpus-per-task" and self.launcher == "mpirun":
            raise ValueError(
                "gpu_request: gpus-per-task needs launcher: srun; mpirun's daemon is one task on each "
                "host, and would get the GPU of one rank"
            )
        if self.srun_options and self.launcher != "srun":
            raise ValueError("srun_options need launcher: srun")
        return self


def of(site: Site) -> SlurmSite:
    """Return a site with Slurm's keys: its own, else their defaults."""
    return site if isinstance(site, SlurmSite) else SlurmSite.model_construct(**dict(site))
