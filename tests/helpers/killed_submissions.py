"""Kills the submitter at its every line: `python killed_submissions.py FOLDER`; prints what it found as JSON.

For n = 1, 2, ... a fresh process submits a job and kills itself (SIGKILL) before the n-th line that it runs
in the files of a submission, or in `subprocess`, whose lines lie between the start of the launcher's program
and its answer. A line counts once for each line of `submit` that leads to it, and not for each round of a
loop; lines that only compute (of `job.py`, `rows.py`, `spec.py`, `tables.py`) do not count.
Then the store is recovered, as the next command would do, and compared with the cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import stand_in_cluster
from killed_at_lines import Lines, until_ended
from stand_in_cluster import StandInCluster

from jobs import home
from jobs.requests import submission
from jobs.schedulers.base import Launcher
from jobs.sites import HERE
from jobs.spec import JobSpec
from jobs.store import admission, notes, statements, store, sync, tables
from jobs.store.store import Store
from trainer import atomic

MODULES = (
    *(submission, notes, store, statements, admission, home, sync),
    *(atomic, stand_in_cluster, subprocess),
)
TRACED = {module.__file__ for module in MODULES}
SPEC = JobSpec("killed", "train", (("true",), ("false",)), "/")


def main(folder: Path, every: int) -> None:
    os.environ["CINGULUM_HOME"] = str(folder)
    cluster = StandInCluster(folder / "cluster")
    known = Store()
    empty = (folder / "jobs.db").read_bytes()
    found: dict[str, list[str]] = {"nothing": [], "lost": [], "adopted": [], "finished": [], "wrong": []}
    point = 1 - every
    while not found["finished"]:
        point += every
        where, survived = killed_at(point, known, cluster, SPEC)
        there = [(token, str(number)) for number, token in enumerate(cluster.tokens(), 1)]
        wrong = disagreements(known, there)
        kind = ("adopted" if there else "lost") if known.list() else "nothing"
        found["finished" if survived else kind].append(where)
        found["wrong"] += [f"killed at {where}: {what}" for what in wrong]
        for path in [*folder.glob("jobs.db*"), cluster.file]:
            path.unlink(missing_ok=True)
        (folder / "jobs.db").write_bytes(empty)
    sys.stdout.write(json.dumps(found))


def killed_at(point: int, known: Store, launcher: Launcher, spec: JobSpec) -> tuple[str, bool]:
    """Where a submitter was killed, and whether it ended before that line; then all is recovered."""
    where, survived, group = lines().killed_at(point, lambda: submission.submit(known, launcher, spec, HERE))
    sync.recover(known, {"slurm": launcher}, settle_s=0)  # while the launcher's program may still run
    until_ended(group, where)
    sync.recover(known, {"slurm": launcher}, settle_s=0)
    return where, survived


def disagreements(known: Store, there: list[tuple[str, str]]) -> list[str]:
    """All in which the store and a cluster do not agree, which has jobs of these tokens and ids."""
    tokens = [token for token, _ in there]
    rows = {job.token: job for job in known.list()}
    wrong = [
        f"{token} is there {tokens.count(token)} times" for token in set(tokens) if tokens.count(token) > 1
    ]
    wrong += [f"{token} is lost" for token in tokens if token not in rows]
    for token, job in rows.items():
        external = dict(there).get(token)
        state = "LOST" if external is None else "PENDING"
        if (job.external, job.state) != (external, state):
            wrong.append(f"{token} is {job.state} as {job.external}, and should be {state} as {external}")
        history = [change.state for change in known.changes(f"new-{job.number}_0")]
        if history not in (["SUBMITTING", state], ["SUBMITTING", "LOST", state]):
            wrong.append(f"{token} has the history {history}")
    return wrong


def lines_of(known: Store, launcher: Launcher, spec: JobSpec) -> list[str]:
    """The lines that a submission runs, in order: it does submit a job."""
    return lines().met(lambda: submission.submit(known, launcher, spec, HERE))


def lines() -> Lines:
    """The lines of a submission."""
    writing = tables.writing.__wrapped__.__code__  # type: ignore[attr-defined]
    return Lines(frozenset(TRACED), frozenset({writing}), frozenset({submission.submit.__code__}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
