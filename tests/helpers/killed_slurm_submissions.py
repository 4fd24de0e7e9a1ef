"""As killed_submissions, on a real Slurm: `python killed_slurm_submissions.py FOLDER` on one of its hosts.

A submission to Slurm takes longer, so that it is not every line at which one is killed, but every one of
`submit` itself and every tenth of the rest, from before the row is written on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import killed_submissions as killed

from jobs.schedulers.slurm import commands, launcher
from jobs.schedulers.slurm.launcher import Slurm
from jobs.spec import JobSpec
from jobs.store.store import Store

EVERY = 10
killed.TRACED.update((launcher.__file__, commands.__file__))


def main(folder: Path) -> None:
    os.environ["CINGULUM_HOME"] = str(folder / "home")
    spec = JobSpec("killed", "command", (("true",),), str(folder), parallel=False)
    known, others = Store(), set(jobs_there())
    lines = killed.lines_of(known, Slurm(), spec)
    first = next(n for n, where in enumerate(lines) if where.startswith("store.py") and "(add)" in where)
    points = [n for n in range(first, len(lines)) if n % EVERY == 0 or "(submit)" in lines[n]]
    met = [killed.killed_at(point + 1, known, Slurm(), spec) for point in points]
    there = [job for job in jobs_there() if job not in others]
    rows = known.list()
    result = {
        "killed_at": [where for where, survived in met if not survived],
        "wrong": killed.disagreements(known, there),
        "lost": sum(job.state == "LOST" for job in rows),
        "adopted": len(there),
        "rows": len(rows),
    }
    sys.stdout.write(json.dumps(result))


def jobs_there() -> list[tuple[str, str]]:
    """Token and id of every job, as Slurm itself tells."""
    line = ["squeue", "--noheader", "--states=all", "--format=%k %i"]
    told = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout
    return [
        (comment.removeprefix("cingulum:"), number) for comment, number in map(str.split, told.splitlines())
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
