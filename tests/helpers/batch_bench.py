"""A batch script run by bash as slurmd would, beside stand-ins for Slurm's commands."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import supervised_folder

from jobs.schedulers.slurm.script import batch_script
from jobs.sites import Site
from jobs.spec import JobSpec, Resources

SUBMISSION = "0123456789abcdef"


class Bench:
    """A job's folder, and a PATH on which scontrol and sinfo say what a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "it's a $(job)"
        self.programs = folder / "bin"
        self.folder.mkdir()
        self.programs.mkdir()
        self.calls = folder / "calls"
        self.calls.touch()
        self.silent = folder / "silent"
        self.starts = 0
        supervised_folder.fill(self.folder)
        self.slurm_says("JobState=RUNNING PreemptTime=None StartTime=2026-01-01T00:00:00 ExcNodeList=(null)")
        self.program("sinfo", "true")
        self.program("srun", "false")

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def slurm_says(self, fields: str) -> None:
        """What `scontrol show job` prints; other uses of scontrol are noted in `calls`."""
        if "Restarts=" not in fields:
            fields += " Restarts=${SLURM_RESTART_COUNT:-0} BatchHost=n1"
        names = 'if [ "$2" = hostnames ]; then printf "n1\\nn2\\nn3\\n"; exit; fi'
        show = f'{names}\nif [ "$1" = show ]; then echo "JobId=7 {fields}"; exit; fi'
        self.program("scontrol", f'{show}\necho "$*" >>{shlex.quote(str(self.calls))}')

    def hold_answers(self, *, to: str = "*") -> None:
        """Let sinfo and scontrol answer what begins with `to` when the file `silent` is gone only, and note
        there that they were asked."""
        for name in ("sinfo", "scontrol"):
            path, silent = self.programs / name, shlex.quote(str(self.silent))
            lines = path.read_text().split("\n", 1)
            wait = f"[ ! -e {silent} ] || {{ echo >>{silent}; while [ -e {silent} ]; do sleep 0.02; done; }}"
            path.write_text(f'{lines[0]}\ncase "$*" in {to}) {wait};; esac\n{lines[1]}')

    def killed_unheard(self, command: str, *numbers: signal.Signals, **options: Any) -> None:
        """Start the command, signal it when it is `ready`, and kill its supervisor while Slurm owes it an
        answer. The command may go on as long as there is a file `ready`."""
        process = self.start(command, **options)
        try:
            wait_until(lambda: (self.folder / "ready").exists(), "the command to start")
            self.silent.touch()
            (self.folder / "go").touch()
            for number in numbers:
                process.send_signal(number)
            wait_until(lambda: self.silent.stat().st_size, "a question to Slurm")
        finally:
            process.kill()
            process.wait()
            for path in (self.silent, self.folder / "go", self.folder / "ready"):
                path.unlink(missing_ok=True)

    def start(
        self,
        command: str,
        *,
        shrink: bool = False,
        requeues: int = 1,
        setup: str = "",
        task: int | None = None,
        trains: Path | None = None,
        minutes: int | None = None,
        **variables: str,
    ) -> subprocess.Popen[bytes]:
        """The script as slurmd starts it; with `task`, as that task of an array of four.

        `trains`: the command is a training in this run folder.
        """
        spec = JobSpec(
            "t",
            "train" if trains else "command",
            (("bash", "-c", command),) * (1 if task is None else 4),
            str(self.folder),
            parallel=False,
            requeues=requeues,
            shrink=shrink,
            run=str(trains) if trains else None,
            resources=Resources(minutes=minutes),
        )
        script = self.folder.parent / "job.sbatch"
        script.write_text(batch_script(spec, Site(setup=setup), self.folder, SUBMISSION))
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "n[1-3]"}
        environment = {**os.environ, **slurm, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        environment |= {"SLURMD_NODENAME": "n1", "SLURM_RESTART_COUNT": str(self.starts), **variables}
        self.starts += 1
        if task is not None:
            environment |= {"SLURM_ARRAY_JOB_ID": "6", "SLURM_ARRAY_TASK_ID": str(task)}
        name = "out.log" if task is None else f"out-{task}.log"
        with (self.folder / name).open("ab") as log:
            return subprocess.Popen(["bash", str(script)], env=environment, stdout=log, stderr=log)

    def run(self, command: str, **options: Any) -> int:
        return self.start(command, **options).wait(timeout=30)

    def signal(self, number: signal.Signals, on_signal: str, **options: Any) -> int:
        """Send a signal while the command runs, which then does `on_signal`; the script's exit code."""
        (self.folder / "ready").unlink(missing_ok=True)
        command = f"trap '{on_signal}' USR2; touch ready; while :; do sleep 0.01; done"
        process = self.start(command, **options)
        try:
            wait_until(lambda: (self.folder / "ready").exists(), "the command to start")
            process.send_signal(number)
            return process.wait(timeout=20)
        finally:
            process.kill()
            process.wait()

    @property
    def failures(self) -> list[list[str]]:
        path = self.folder / "failures"
        return [line.split("\t")[1:] for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def requeued(self) -> int:
        return self.calls.read_text().splitlines().count("requeue 7")


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)
