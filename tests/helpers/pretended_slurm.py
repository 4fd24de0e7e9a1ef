"""A launcher that is a dictionary, for tests of the commands about jobs; and how these tests call them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stand_in_cluster import StandInScheduler

from cingulum.cli import app
from jobs.schedulers.base import Launch, TaskState
from jobs.sites import Site
from jobs.spec import JobSpec
from trainer.errors import LauncherError


class Pretended(StandInScheduler):
    """Jobs as tests want them to be."""

    name = "slurm"
    place = ""

    def __init__(self) -> None:
        self.jobs: dict[str, list[TaskState]] = {}
        self.tokens: dict[str, str] = {}
        self.started: list[tuple[JobSpec, tuple[str, ...]]] = []
        self.refuses: str | None = None
        self.told: list[tuple[str, str, int | None]] = []
        self._spec: JobSpec | None = None

    def plan(self, spec: JobSpec, site: Site, folder: Path, token: str) -> Launch:
        self._spec = spec
        return Launch({"job.sbatch": f"#!/bin/bash\n# {token}\n"}, ("sbatch", str(folder / "job.sbatch")))

    def preflight(self, spec: JobSpec, site: Site) -> str:
        if self.refuses == "preflight":
            raise LauncherError("no such partition", cure="Mend the site.")
        return f"{spec.kind} to start tomorrow"

    def start(self, launch: Launch, folder: Path, after: Sequence[str]) -> str:
        assert self._spec is not None
        if self.refuses == self._spec.kind:
            raise LauncherError("the queue is full", cure="Wait.")
        self.started.append((self._spec, tuple(after)))
        external = str(4710 + len(self.started))
        self.jobs[external] = [TaskState(task, "PENDING") for task in range(len(self._spec.tasks))]
        return external

    def find(self, token: str) -> str | None:
        return None

    def states(self, externals: Sequence[str]) -> dict[str, list[TaskState]]:
        if self.refuses == "states":
            raise LauncherError("slurmctld is away")
        return {external: self.jobs[external] for external in externals if external in self.jobs}

    def cancel(self, external: str, task: int | None = None) -> None:
        self.told.append(("cancel", external, task))
        self.jobs[external] = [
            replace(state, state="CANCELLED", ended=1.0) if task in (None, state.task) else state
            for state in self.jobs[external]
        ]

    def requeue(self, external: str, task: int | None = None) -> None:
        self.told.append(("requeue", external, task))
        for state in self.jobs[external]:
            self.becomes(external, "PENDING", task=state.task, restarts=1, exit_code=None, ended=None)

    def hold(self, external: str, task: int | None = None) -> None:
        self.told.append(("hold", external, task))

    def release(self, external: str, task: int | None = None) -> None:
        self.told.append(("release", external, task))

    def is_held(self, external: str, task: int | None = None) -> bool:
        held = (
            state.reason.startswith("JobHeld") for state in self.jobs[external] if task in (None, state.task)
        )
        return any(held)

    def nice(self, external: str, task: int | None, by: int) -> None:
        self.told.append((f"nice {by}", external, task))

    def logs(self, folder: Path, external: str, task: int) -> Path:
        return folder / f"out-{task}.log"

    def becomes(self, external: str, state: str, *, task: int = 0, **facts: object) -> None:
        self.jobs[external][task] = replace(self.jobs[external][task], state=state, **facts)  # type: ignore[arg-type]


def told(capsys, *words: str) -> object:
    capsys.readouterr()
    assert app.run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def submit(capsys, *words: str) -> list[str]:
    return [job["id"] for job in told(capsys, "submit", "mine.yaml", *words)["jobs"]]  # type: ignore[index]
