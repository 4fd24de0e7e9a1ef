"""A site profile: what differs between clusters, written once in YAML."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from jobs.variables import check_variables
from trainer.config import yaml_reader
from trainer.config.explaining import apart, explain, screenful
from trainer.config.yaml_reader import Document
from trainer.errors import JobError

# What Slurm takes for a name, without any sign that a shell, or its own reader of #SBATCH lines, knows.
_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.,:+@/-]*$"
_OPTION = re.compile(r"--[a-z][a-z-]*(=[A-Za-z0-9_.,:;+@/%&|*!<>()\[\]{}=~^-]+)?")
# Set by the script itself. A second one would win, and the job would not be found, or not be started again.
OURS = frozenset(
    {"array", "chdir", "comment", "cpus-per-task", "dependency", "error", "gpus", "gpus-per-node"}
    | {"gpus-per-task", "help", "job-name", "mem", "nodes", "no-requeue", "ntasks", "ntasks-per-node"}
    | {"open-mode", "output", "parsable", "requeue", "signal", "test-only", "time", "version", "wait", "wrap"}
)

Name = Annotated[str, Field(pattern=_NAME, max_length=200)]
Names = Annotated[tuple[Name, ...], Field(strict=False)]
Texts = Annotated[tuple[str, ...], Field(strict=False)]


class Site(BaseModel):
    """One cluster, or this machine."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field("here", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="name of the profile")
    description: str = Field("", description="one line about it, for lists")
    partition: Name | None = Field(None, description="sbatch --partition; several: a,b")
    account: Name | None = Field(None, description="sbatch --account: who pays")
    qos: Name | None = Field(None, description="sbatch --qos")
    minutes: int | None = Field(None, ge=1, description="longest time to run where a job names none, minutes")
    grace_s: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="sbatch --signal: seconds before the time limit to save in; default 120",
    )
    gpu_request: Literal["gpus-per-node", "gres", "gpus-per-task"] = Field(
        "gpus-per-node", description="how sbatch is asked for GPUs; `gpus-per-task` needs `launcher: srun`"
    )
    gpu_type: Name | None = Field(None, description="kind of GPU, as in --gres=gpu:KIND:4")
    options: Texts = Field((), description="further options of sbatch, such as --constraint=a100")
    modules: Names = Field((), description="modules to load, in this order")
    setup: str = Field(
        "",
        description="lines of bash to run before anything else, such as `source activate`; no secrets",
    )
    environment: Annotated[dict[str, str], Field(strict=False)] = Field(
        {}, description="variables for every rank; never secrets, as scripts hold them"
    )
    launcher: Literal["mpirun", "srun"] = Field(
        "mpirun", description="what starts ranks in an allocation; `mpirun` is that of Open MPI 4"
    )
    mpi: Name = Field("pmix", description="srun --mpi=; see `srun --mpi=list`")
    mpirun: str | None = Field(
        None, description="path of mpirun; default: the one beside the program, else the first on PATH"
    )
    hostfile: str | None = Field(None, description="file of hosts for `--launcher mpirun` without Slurm")
    fabric: Literal["auto", "ethernet", "infiniband"] = Field(
        "auto", description="what lies between hosts; `auto` leaves the choice to MPI and NCCL"
    )
    interfaces: Names = Field((), description="network interfaces between hosts, such as eth0")
    infiniband_devices: Names = Field((), description="ports for data, such as mlx5_0:1")
    scratch: str | None = Field(
        None, description="folder on each host's own disk; `$NAME` is a variable of the job"
    )
    container: Literal["none", "apptainer", "docker"] = Field(
        "none", description="what runs a job's image, one container around each rank"
    )
    container_options: Texts = Field((), description="further options of `apptainer exec` or `docker run`")

    @field_validator("options")
    @classmethod
    def _options_are_plain(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if not _OPTION.fullmatch(option):
                raise ValueError(f"{option!r} is not --name or --name=value without blanks and quotes")
            name = option[2:].split("=")[0]
            # Slurm takes the beginning of a name for the whole.
            if any(ours.startswith(name) for ours in OURS):
                raise ValueError(f"--{name} is set by the script itself")
        return options

    @field_validator("environment")
    @classmethod
    def _variables_are_usable(cls, environment: dict[str, str]) -> dict[str, str]:
        try:
            check_variables(environment)
        except JobError as error:
            raise ValueError(error.message.removesuffix(".")) from None
        return environment

    @field_validator("setup", "mpirun", "hostfile", "scratch", "container_options")
    @classmethod
    def _text_can_be_written(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        for text in (value,) if isinstance(value, str) else value or ():
            if "\0" in text or not _is_unicode(text):
                raise ValueError("holds a NUL byte, or half a character")
        return value

    @model_validator(mode="after")
    def _parts_fit(self) -> Site:
        if self.gpu_request == "gpus-per-task" and self.launcher == "mpirun":
            raise ValueError(
                "gpu_request: gpus-per-task needs launcher: srun; mpirun's daemon is one task on each "
                "host, and would get the GPU of one rank"
            )
        if self.infiniband_devices and self.fabric != "infiniband":
            raise ValueError("infiniband_devices need fabric: infiniband")
        return self


HERE = Site()


def load(name_or_path: str | None = None) -> Site:
    """The profile of this name, or in this file.

    A name is looked for in the user's folder (`folder()`), then among those shipped with us. Without one it
    is the user's `default`, or where there is none, a site about which nothing is known.

    Raises:
        JobError: there is none, it cannot be read, or it holds unknown keys or impossible values.
    """
    known = dict(listed())
    if name_or_path is None:
        return _read(known["default"]) if "default" in known else HERE
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        return _read(Path(name_or_path))
    if name_or_path not in known:
        close = difflib.get_close_matches(name_or_path, known, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise JobError(
            f"There is no site profile {name_or_path!r}.{hint}",
            cure=f"There are: {', '.join(known)}. Write your own as {folder() / 'NAME.yaml'}.",
        )
    return _read(known[name_or_path])


def listed() -> Iterator[tuple[str, Path]]:
    """Name and file of every profile that `load` finds by name, the user's own first."""
    seen: set[str] = set()
    for place in (folder(), shipped() / "sites"):
        for path in sorted(place.glob("*.yaml")):
            if path.stem not in seen:
                seen.add(path.stem)
                yield path.stem, path


def folder() -> Path:
    """Where the user's profiles are: `$XDG_CONFIG_HOME/cingulum/sites`, else `~/.config/cingulum/sites`."""
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "cingulum" / "sites"


def shipped() -> Path:
    """The folder `slurm` with templates and example profiles, in a checkout or as installed."""
    return Path(str(resources.files("jobs"))) / "slurm"


def parse(text: str, *, name: str, source: str) -> Site:
    """A profile from YAML.

    Args:
        text: the YAML.
        name: its name, where the text names none.
        source: names it in errors.

    Raises:
        JobError: no YAML mapping, an unknown key, an impossible value.
    """
    return _made(yaml_reader.parse(text, source=source, error=JobError), name, source)


def _made(document: Document, name: str, source: str) -> Site:
    if not isinstance(document.tree, dict):
        raise JobError(f"{source}: holds no keys.", cure="See docs/reference/site-profile.md for them.")
    try:
        return Site.model_validate({"name": name, **document.tree})
    except ValidationError as error:
        found = apart(error.errors())
    said = (explain(source, problem, Site, document.written) for problem in found)
    raise JobError(screenful(said, len(found)))


def _read(path: Path) -> Site:
    document = yaml_reader.read(path, error=JobError, cure="Name a YAML file, or a known site.")
    return _made(document, path.stem, str(path))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
