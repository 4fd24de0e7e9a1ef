"""A stand-in for a cluster, with which submissions can be interrupted: a real program, run as sbatch is,
that appends a line to a file, and a launcher that calls it. Nothing is started; the file is what counts.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.schedulers.base import Launch, TaskState
from jobs.schedulers.slurm.launcher import Slurm
from jobs.sites import Site
from jobs.spec import JobSpec
from trainer.errors import LauncherError

# Waits if told to, appends the token, and prints the number of its line: the job's id.
_PROGRAM = """\
while [ -e "$1.hold" ]; do sleep 0.01; done
if [ -e "$1.refuse" ]; then echo "invalid partition" >&2; exit 1; fi
echo "$2" >> "$1"
if [ -e "$1.mute" ]; then exit 1; fi
id=0
while read -r line; do
  id=$((id + 1))
  if [ "$line" = "$2" ]; then echo "$id"; exit 0; fi
done < "$1"
"""


class StandInScheduler:
    """What a scheduler is asked besides its jobs: it is on no host, and gives out none."""

    variables: tuple[str, ...] = ()
    place_variable = ""
    site = Site

    def is_here(self) -> bool:
        return False

    def look(self) -> None:
        return None

    def allocation(self, environment: Mapping[str, str]) -> None:
        return None

    def after(self, command: Sequence[str], externals: Sequence[str]) -> list[str]:
        return Slurm().after(command, externals)


class StandInCluster(StandInScheduler):
    """A launcher whose cluster is a file with one token per line; `answers` is what `states` says."""

    def __init__(self, file: Path, *, name: str = "slurm", place: str = "") -> None:
        self.name = name
        self.place = place
        self.file = file
        self.answers: dict[str, list[TaskState]] = {}
        self.down = False
        self.started_after: list[list[str]] = []

    def tokens(self) -> list[str]:
        return self.file.read_text().split() if self.file.exists() else []

    def plan(self, spec: JobSpec, site: Site, folder: Path, token: str) -> Launch:
        return Launch(files={"job": spec.name}, command=("sh", "-c", _PROGRAM, "sh", str(self.file), token))

    def preflight(self, spec: JobSpec, site: Site) -> None:
        if spec.kind == "impossible":
            raise LauncherError("no such hosts")

    def start(self, launch: Launch, folder: Path, after: Sequence[str]) -> str:
        for name, text in launch.files.items():
            (folder / name).write_text(text)
        self.started_after.append(list(after))
        done = subprocess.run(launch.command, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise LauncherError(f"the cluster said: {done.stderr.strip() or 'nothing'}")
        return done.stdout.strip()

    def find(self, token: str) -> str | None:
        self._ask()
        tokens = self.tokens()
        return str(tokens.index(token) + 1) if token in tokens else None

    def states(self, externals: Sequence[str]) -> dict[str, list[TaskState]]:
        self._ask()
        return {name: self.answers[name] for name in externals if name in self.answers}

    def cancel(self, external: str, task: int | None = None) -> None:
        self.answers[external] = [dataclasses.replace(t, state="CANCELLED") for t in self.answers[external]]

    def requeue(self, external: str, task: int | None = None) -> None:
        raise LauncherError("a stand-in starts nothing again")

    def logs(self, folder: Path, external: str, task: int) -> Path:
        return folder / "out.log"

    def _ask(self) -> None:
        if self.down:
            raise LauncherError("the cluster does not answer")
