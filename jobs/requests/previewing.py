"""What submitting would do, before it is done."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobs import home
from jobs.launchers.base import Launch, Launcher
from jobs.launchers.slurm import with_dependency
from jobs.sites import Site
from jobs.spec import JobSpec

# In place of the token, which is drawn anew for each submission.
NO_TOKEN = "0" * 16


@dataclass(frozen=True)
class Planned:
    """One job that would be submitted, with the jobs that it would wait for."""

    spec: JobSpec
    folder: str
    launch: Launch
    command: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class Preview:
    """All that would be done: the configuration that would be kept (its text as JSON), and the jobs."""

    kept: str
    text: str
    jobs: Sequence[Planned]

    def as_json(self) -> dict[str, Any]:
        """Return the preview with the text of every file."""
        return {
            "config": {"path": self.kept, "text": self.text},
            "jobs": [
                {
                    "name": job.spec.name,
                    "kind": job.spec.kind,
                    "after": list(job.after),
                    "tasks": [list(task) for task in job.spec.tasks],
                    "folder": job.spec.folder,
                    "job_folder": job.folder,
                    "resources": dataclasses.asdict(job.spec.resources),
                    "files": dict(job.launch.files),
                    "command": list(job.command),
                    "environment": dict(job.launch.environment),
                }
                for job in self.jobs
            ],
        }


def plans(launcher: Launcher, chain: Sequence[JobSpec], site: Site, after: Sequence[str]) -> list[Planned]:
    """Return what submitting these jobs in order would do; change nothing."""
    folder = home.planned_path(NO_TOKEN)
    made: list[Planned] = []
    for spec in chain:
        waits_for = (f"<id of {made[-1].spec.name}>",) if made else tuple(after)
        launch = launcher.plan(spec, site, folder, NO_TOKEN)
        command = with_dependency(launch.command, waits_for) if launcher.name == "slurm" else launch.command
        made.append(Planned(spec, str(folder), launch, tuple(command), waits_for))
    return made
