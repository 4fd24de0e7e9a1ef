"""What `cingulum submit` shows: what it would do, and what it did."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.job import Job
    from jobs.launchers.base import Launch, Launcher
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
    """All that `--dry-run` shows: the configuration that would be kept (its text as JSON), and the jobs."""

    kept: str
    text: str
    jobs: Sequence[Planned]

    def as_json(self) -> dict[str, Any]:
        """With the text of every file."""
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

    def readable(self) -> str:
        """As text: a heading for each job, its files, and the command line."""
        from cingulum.commands.job_display import plain
        from jobs import supervised

        lines = [f"CONFIG as it is now, with its changes, would be kept as {plain(self.kept)}"]
        for number, job in enumerate(self.jobs, 1):
            waits = f", after {', '.join(job.after)}" if job.after else ""
            lines += [
                "",
                f"Job {number} of {len(self.jobs)}: {plain(job.spec.name)} ({job.spec.kind}){waits}",
            ]
            for name, text in job.launch.files.items():
                # What looks after a job is the same for all of them.
                ours = name.startswith(f"{supervised.FOLDER}/")
                lines += [] if ours else ["", f"{job.folder}/{name}:", *_indented(text)]
            variables = [f"{key}={value}" for key, value in job.launch.environment.items()]
            lines += ["", shlex.join(["env", *variables, *job.command] if variables else job.command)]
        return "\n".join(lines)


def plans(launcher: Launcher, chain: Sequence[JobSpec], site: Site, after: Sequence[str]) -> list[Planned]:
    """What submitting these jobs one after the other would do; nothing is touched."""
    from jobs import home
    from jobs.launchers.slurm import with_dependency

    folder = home.planned_path(NO_TOKEN)
    made: list[Planned] = []
    for spec in chain:
        waits_for = (f"<id of {made[-1].spec.name}>",) if made else tuple(after)
        launch = launcher.plan(spec, site, folder, NO_TOKEN)
        command = with_dependency(launch.command, waits_for) if launcher.name == "slurm" else launch.command
        made.append(Planned(spec, str(folder), launch, tuple(command), waits_for))
    return made


def submitted(jobs: Sequence[Job]) -> str:
    """What sbatch would say, and how to look on."""
    from cingulum.commands.job_display import plain

    lines = []
    for job in jobs:
        tasks = f", {len(job.spec.tasks)} tasks" if job.spec.is_array else ""
        waits = f", after {', '.join(job.spec.after)}" if job.spec.after else ""
        lines.append(f"Submitted {job.label}: {plain(job.spec.name)} ({job.spec.kind}{tasks}{waits})")
    main = max(jobs, key=lambda job: job.spec.kind in ("train", "crossval"))
    task = "_0" if main.spec.is_array else ""
    lines.append(f"See: cingulum jobs; cingulum logs {main.label}{task} --follow")
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.splitlines()]
