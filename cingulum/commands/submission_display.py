"""What `cingulum submit` shows: what it would do, and what it did."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cingulum.commands.predicted_time import Predicted
    from jobs.job import Job
    from jobs.requests.submitting import Preview


def readable(preview: Preview, needed: Predicted | None) -> str:
    """Return a preview as text: jobs with their files and command lines, then the time needed."""
    from cingulum.commands.job_display import plain
    from jobs.schedulers.base import SUPERVISOR

    lines = [f"CONFIG as it is now, with its changes, would be kept as {plain(preview.kept)}"]
    for number, job in enumerate(preview.jobs, 1):
        waits = f", after {', '.join(job.after)}" if job.after else ""
        lines += [
            "",
            f"Job {number} of {len(preview.jobs)}: {plain(job.spec.name)} ({job.spec.kind}){waits}",
        ]
        for name, text in job.launch.files.items():
            # What looks after a job is the same for all of them.
            ours = name.startswith(f"{SUPERVISOR}/")
            lines += [] if ours else ["", f"{job.folder}/{name}:", *_indented(text)]
        variables = [f"{key}={value}" for key, value in job.launch.environment.items()]
        lines += ["", shlex.join(["env", *variables, *job.command] if variables else job.command)]
    lines += [] if needed is None else ["", plain(needed.said)]
    return "\n".join(lines)


def submitted(jobs: Sequence[Job], needed: Predicted | None) -> str:
    """Return the submitted jobs as sbatch names them, the time needed, and the commands that follow them."""
    from cingulum.commands.job_display import plain

    lines = []
    for job in jobs:
        tasks = f", {len(job.spec.tasks)} tasks" if job.spec.is_array else ""
        waits = f", after {', '.join(job.spec.after)}" if job.spec.after else ""
        lines.append(f"Submitted {job.label}: {plain(job.spec.name)} ({job.spec.kind}{tasks}{waits})")
    lines += [] if needed is None else [plain(needed.said)]
    main = max(jobs, key=lambda job: job.spec.kind in ("train", "crossval"))
    task = "_0" if main.spec.is_array else ""
    lines.append(f"See: cingulum jobs; cingulum logs {main.label}{task} --follow")
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.splitlines()]
