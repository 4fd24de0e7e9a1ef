"""run.json: what a run is, and what ran where on which data. Only `RunRecord` writes and reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from trainer.errors import RunError
from trainer.processor import HostProcessor
from trainer.run_folder import record
from trainer.run_folder.record import RunFolder

# Of the file's form. Files of before it was counted name none, and count as 0: they may lack any key.
VERSION = 1


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Processor(_Part):
    """That of rank 0's host."""

    model: str | None = None
    cores: int | None = None
    threads: int | None = None
    memory_gib: float | None = None


class ShardsOfRun(_Part):
    """The shard set that was trained on.

    Attributes:
        path: where it was.
        content_hash: of all that is in it.
        volumes: how many.
        label_name: of the column that the classes come from.
        source: where its images came from; says so where they are phantoms.
    """

    path: str = ""
    content_hash: str = ""
    volumes: int | None = None
    label_name: str | None = None
    source: str | None = None


class TaskOfRun(_Part):
    """As `Task.to_json`, with what a task adds."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = "classification"
    target: str = ""
    classes: list[str] = []


class CodeOfRun(_Part):
    """The file of a user's own network or strategy."""

    file: str = ""
    sha256: str = ""


class Resumption(_Part):
    """One time that the run went on: at which step, when, and the number of that start."""

    step: int
    time: str = ""
    start: int | None = None


class UpdateOfRun(_Part):
    """How the optimizer's update was computed at the last start: see strategies/compiled_update.py.

    Attributes:
        compiled: whether XLA compiled it.
        why: what decided.
        plain_ms: milliseconds of an update uncompiled, on the slowest rank; of servers, of their largest
            messages of weights. None where it was not timed.
        compiled_ms: compiled; None also where that failed.
    """

    compiled: bool = False
    why: str = ""
    plain_ms: float | None = None
    compiled_ms: float | None = None

    def __str__(self) -> str:
        """Return one line for people."""
        timed = (self.plain_ms, self.compiled_ms)
        both = "" if None in timed else f" ({timed[1]:.1f} ms, uncompiled {timed[0]:.1f} ms)"
        return f"the update is {'compiled by XLA' if self.compiled else 'not compiled'}: {self.why}{both}"


class PassesOfRun(_Part):
    """How forward and backward passes were computed at the last start: see strategies/compiled_passes.py.

    Attributes:
        way: `none`: not compiled; `whole`: each as one function; `buckets`: one for each bucket of gradients.
        why: what decided.
        ms: milliseconds of both, with the exchange of gradients, by each way that was timed, on the slowest
            rank.
    """

    way: Literal["none", "whole", "buckets"] = "none"
    why: str = ""
    ms: dict[str, float] = {}

    def __str__(self) -> str:
        """Return one line for people."""
        how = {"none": "not compiled", "whole": "compiled by XLA", "buckets": "compiled by XLA in buckets"}
        timed = ", ".join(f"{way} {ms:.1f} ms" for way, ms in self.ms.items())
        return f"the passes are {how[self.way]}: {self.why}{timed and f' ({timed})'}"


class RunRecord(_Part):
    """Content of run.json; docs/reference/run-folder.md says what each key is."""

    version: int = VERSION
    id: str = ""
    cingulum: str | None = None
    python: str | None = None
    packages: dict[str, str] = {}
    system: str | None = None
    cpu: Processor | str | None = None
    world_size: int | None = None
    hosts: list[str] = []
    mpi: dict[str, int] = {}
    servers: list[str] = []
    gpus: list[list[str] | str | None] = []
    processors: list[HostProcessor] = []
    shards: ShardsOfRun = ShardsOfRun()
    split: dict[str, list[int]] = {}
    task: TaskOfRun = TaskOfRun()
    code: CodeOfRun | None = None
    strategy_code: CodeOfRun | None = None
    classes: list[str] = []
    covariates: dict[str, Any] | None = None
    volume: list[int] = []
    patch: list[int] | None = None
    preprocessing: dict[str, Any] = {}
    parameters: int | None = None
    command: list[str] | str = []
    cache: dict[str, Any] | None = None
    update: UpdateOfRun | None = None
    passes: PassesOfRun | None = None
    float32_layers: list[str] = []
    started: str | None = None
    finished: str | None = None
    resumed_from: list[Resumption] = []
    cycles: list[tuple[int, int]] = []

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of the task, in the order of the network's outputs; a run of before tasks has them for itself."""
        return tuple(self.task.classes or self.classes)

    @property
    def knows_code(self) -> bool:
        """Whether the run was begun by a cingulum that records the file of a network of the user's own."""
        return "code" in self.model_fields_set

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Read a run.json, of this version or an earlier one.

        Raises:
            RunError: it is missing, damaged or of a later version; a key of another type is named.
        """
        content = record.read_json(path)
        if not isinstance(content, dict):
            raise RunError(f"{path}: is damaged (not a JSON object).", path=path)
        version = content.get("version", 0)
        if isinstance(version, int) and version > VERSION:
            raise RunError(
                f"{path}: has version {version}; this cingulum reads versions up to {VERSION}.",
                cure="Use the cingulum that made this run, or a later one.",
                path=path,
            )
        try:
            return cls.model_validate({"version": 0, **content})
        except ValidationError as error:
            raise RunError(
                f"{path}: is damaged (wrong type: {', '.join(_wrong(error))}).", path=path
            ) from None

    @classmethod
    def usable(cls, found: Mapping[str, Any]) -> tuple[RunRecord, list[str]]:
        """Return what can be used of a run.json that may be damaged, and the keys whose values cannot."""
        given = {"version": 0, **{key: value for key, value in found.items() if value is not None}}
        try:
            return cls.model_validate(given), []
        except ValidationError as error:
            wrong = _wrong(error)
            return cls.model_validate({key: part for key, part in given.items() if key not in wrong}), wrong

    def write(self, path: Path) -> None:
        """Write it as of this version."""
        record.write_json(path, {**self.model_dump(mode="json"), "version": VERSION})


def identity(folder: RunFolder) -> str | None:
    """Return the identity of the run in this folder, which tells its checkpoints from another run's.

    Returns:
        None where run.json is lost.

    Raises:
        RunError: run.json is damaged.
    """
    return RunRecord.read(folder.run).id if folder.run.is_file() else None


def _wrong(error: ValidationError) -> list[str]:
    return sorted({str(one["loc"][0]) for one in error.errors()})
