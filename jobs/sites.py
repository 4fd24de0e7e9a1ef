"""What a site profile says: settings that differ between clusters."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from jobs.site_keys import Kind, KindName, Name, PerKind, Texts
from jobs.spec import check_variables
from trainer.errors import JobError

Names = Annotated[tuple[Name, ...], Field(strict=False)]


class Site(PerKind):
    """One cluster, or this machine. Schedulers have subclasses with keys of their own."""

    name: str = Field("here", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="name of the profile")
    description: str = Field("", description="one-line description, for lists")
    gpu_type: Name | None = Field(None, description="kind of GPU, such as a100")
    before_modules: str = Field(
        "",
        description="lines of bash to run before modules are loaded, such as `module purge` or "
        "`module use /apps/modules`",
    )
    modules: Names = Field((), description="modules to load, in this order")
    setup: str = Field(
        "",
        description="lines of bash to run once modules are loaded, such as `source activate`; no secrets",
    )
    environment: Annotated[dict[str, str], Field(strict=False)] = Field(
        {}, description="variables for every rank; never secrets, as scripts hold them"
    )
    mpirun: str | None = Field(
        None, description="path of mpirun; default: the one beside the program, else the first on PATH"
    )
    python: str | None = Field(
        None,
        description="python3 (3.6 or newer) that looks after jobs under a scheduler, outside of images; "
        "default: the first on PATH, else the one beside the program",
    )
    hostfile: str | None = Field(
        None, description="file of hosts for `--launcher mpirun` without a scheduler"
    )
    fabric: Literal["auto", "ethernet", "infiniband"] = Field(
        "auto", description="network between hosts; `auto` leaves the choice to MPI and NCCL"
    )
    interfaces: Names = Field((), description="network interfaces between hosts, such as eth0")
    infiniband_devices: Names = Field((), description="ports for data, such as mlx5_0:1")
    cluster: str | None = Field(
        None,
        description="cluster file of `cingulum simulate`, by name or path, for the predicted time of "
        "submissions with a profile",
    )
    scratch: str | None = Field(
        None, description="folder on each host's own disk; `$NAME` is a variable of the job"
    )
    container: Literal["none", "apptainer", "docker"] = Field(
        "none", description="what runs a job's image, one container around each rank"
    )
    container_options: Texts = Field((), description="further options of `apptainer exec` or `docker run`")
    share: Names = Field(
        (),
        description="Unix groups whose members may look at jobs in a store that they share, where a job says "
        "nothing; those that its user is in",
    )
    kinds: Annotated[dict[KindName, Kind], Field(strict=False)] = Field(
        {}, description="what is different for a kind of job; see below"
    )

    @field_validator("environment")
    @classmethod
    def _variables_are_usable(cls, environment: dict[str, str]) -> dict[str, str]:
        try:
            check_variables(environment)
        except JobError as error:
            raise ValueError(error.message.removesuffix(".")) from None
        return environment

    @field_validator(
        "before_modules", "setup", "mpirun", "python", "hostfile", "scratch", "container_options"
    )
    @classmethod
    def _text_can_be_written(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        for text in (value,) if isinstance(value, str) else value or ():
            if "\0" in text or not _is_unicode(text):
                raise ValueError("holds a NUL byte, or half a character")
        return value

    @model_validator(mode="after")
    def _parts_fit(self) -> Site:
        if self.infiniband_devices and self.fabric != "infiniband":
            raise ValueError("infiniband_devices need fabric: infiniband")
        return self

    def of(self, kind: str) -> Self:
        """Return this site for a kind of job: keys under `kinds` override those for all."""
        own = self.kinds.get(kind)  # type: ignore[call-overload]
        if own is None:
            return self
        return self.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})


HERE = Site()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
