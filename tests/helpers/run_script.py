"""Run a rendered script with bash, its launcher replaced by a program that notes what it was given."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import supervised_folder

# Stands for mpirun, srun, apptainer and the program itself; `env -0` is what the ranks would find set.
_NOTES = """#!/bin/sh
if [ "$1" = --mpi=list ]; then echo "MPI plugin types are... none pmix"; exit 0; fi
if [ "$1" = --version ]; then echo "${STUB_VERSION:-mpirun (Open MPI) 4.1.8}"; exit 0; fi
printf '%s\\0' "$0" "$@" > "$NOTES/arguments"
pwd -P > "$NOTES/folder"
env -0 > "$NOTES/environment"
exit "${STUB_EXIT:-0}"
"""
_SCONTROL = """#!/bin/sh
if [ "$1 $2" = "show job" ]; then echo "JobId=4711 JobState=RUNNING Restarts=0"; exit; fi
printf '%s\\0' "$@" >> "$NOTES/scontrol"
"""
_SQUEUE = """#!/bin/sh
echo "${STUB_STATE:-RUNNING}"
"""


@dataclass(frozen=True)
class Noted:
    """What the launcher was given: its words, the environment, the working folder; and what bash said."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    modules: list[str]
    setup: list[str]
    stderr: str
    code: int


def stubs(folder: Path) -> Path:
    """Make the programs that stand for Slurm and MPI; return the folder to put first on PATH."""
    place = folder / "stubs"
    place.mkdir()
    for name, text in [
        *((name, _NOTES) for name in ("mpirun", "srun", "apptainer", "program")),
        *((name, _SCONTROL) for name in ("scontrol", "sinfo")),
        ("squeue", _SQUEUE),
    ]:
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    return place


def run(script: str, place: Path, notes: Path, *, task: int | None = None, **extra: str) -> Noted:
    """Run `script` as slurmd would, as task `task` of an array; `notes` is an empty folder.

    `extra` are further variables; an empty one is left out.
    """
    supervised_folder.fill(_job_folder(script))
    path = notes / "job.sbatch"
    path.write_bytes(script.encode())
    environment = {
        "PATH": f"{place}{os.pathsep}/usr/bin:/bin",
        "NOTES": str(notes),
        "HOME": str(notes),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_CPUS_PER_TASK": "3",
        # Functions of a login shell; `eval` is only noted, as it would run whatever a test made up.
        "BASH_FUNC_module%%": '() { printf "%s\\0" "$@" >> "$NOTES/modules"; }',
        "BASH_FUNC_eval%%": '() { printf "%s\\0" "$@" >> "$NOTES/setup"; }',
        **({} if task is None else {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "4710"}),
        **extra,
    }
    environment = {name: value for name, value in environment.items() if value}
    ran = subprocess.run(
        ["bash", str(path)], env=environment, cwd=notes, capture_output=True, timeout=60, check=False
    )
    return Noted(
        arguments=_parts(notes / "arguments"),
        environment=dict(part.split("=", 1) for part in _parts(notes / "environment") if "=" in part),
        folder=_text(notes / "folder").removesuffix("\n"),
        modules=_parts(notes / "modules"),
        setup=_parts(notes / "setup"),
        stderr=ran.stderr.decode(errors="replace"),
        code=ran.returncode,
    )


def _job_folder(script: str) -> Path:
    """As bash reads it."""
    (line,) = [line for line in script.split("\n") if line.startswith("job_folder=")]
    told = subprocess.run(
        ["bash", "-c", f'{line}\nprintf %s "$job_folder"'], capture_output=True, timeout=60, check=True
    )
    return Path(os.fsdecode(told.stdout))


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="surrogateescape") if path.exists() else ""


def _parts(path: Path) -> list[str]:
    return _text(path).split("\0")[:-1]
