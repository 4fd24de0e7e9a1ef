"""Run Slurm's commands within a time limit, where nothing changes their answers; errors say what helps."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from jobs.schedulers.base import NoAnswer
from trainer.errors import LauncherError

# slurmctld may be busy for seconds; Slurm's own clients give up after some ten.
ASK_S, SUBMIT_S = 30.0, 60.0

# What Slurm says of a submission, with what helps.
_CURES = {
    "invalid partition": "See `sinfo -s`; set `partition` in the site profile.",
    "invalid account": "See `sacctmgr show associations user=$USER`; set `account` in the site profile.",
    "invalid qos": "See `sacctmgr show qos`; set `qos` in the site profile.",
    "invalid generic resource": "No host has such GPUs: see `sinfo -o '%N %G'`, or --gpus-per-node 0.",
    "node configuration is not available": "Compare nodes, ranks, GPUs and memory with `sinfo -Nl`.",
    "time limit": "See `sinfo -o '%P %l'`, and give a shorter --time.",
    "unable to contact slurm controller": "Check that slurmctld is up: `scontrol ping`.",
    "could not establish a configuration source": "Work on a login node, or set SLURM_CONF.",
    "invalid job id": "Slurm keeps ended jobs for minutes only. Submit it again: it resumes where it was.",
    "timed out": "slurmctld is busy (see `sdiag`); try again later.",
    "access/permission denied": "Only its owner may do that.",
    "already finished": "Nothing of it waits any more: `cingulum show` tells how it ended.",
}
# What Slurm's commands say when slurmctld took what they sent and did not answer in time.
_UNHEARD = ("timed out", "zero bytes were transmitted", "connection reset")
# What scontrol says of tasks of an array that obeyed, and of those that had ended.
_OBEYED, _ENDED = "no error", ("job has already finished", "job/step already completing or completed")


def call(
    line: Sequence[str],
    limit: float,
    *,
    text: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return the standard output of one of Slurm's commands; raises what `run` does."""
    return run(line, limit, text=text, environment=environment).stdout


def run(
    line: Sequence[str],
    limit: float,
    *,
    text: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands.

    Raises:
        LauncherError: it is missing, or fails; NoAnswer: no answer within `limit` seconds at most.
    """
    done = _answer(line, limit, text, environment)
    if done.returncode != 0:
        raise _refusal(line, done)
    return done


def order(line: Sequence[str], limit: float) -> None:
    """Have scontrol change a job that waits, or what waits of an array.

    Of an array in which a task has ended, scontrol changes the others, prints a line for each task or range
    of tasks, and exits with 1 (Slurm 22.05). That is no failure where at least one obeyed.

    Raises:
        LauncherError: none obeyed, or one that has not ended did not; else what `run` raises.
    """
    done = _answer(line, limit, None, None)
    if done.returncode != 0 and not _all_obeyed_but_ended(done.stderr):
        raise _refusal(line, done)


def _all_obeyed_but_ended(text: str) -> bool:
    """Return whether scontrol's lines tell of tasks that obeyed (`4711_1-4: No error`), and of no others but
    tasks that had ended (`4711_0: Job has already finished`).
    """
    answers = [line.rpartition(": ")[2].strip().lower() for line in text.splitlines() if line.strip()]
    return _OBEYED in answers and all(answer in (_OBEYED, *_ENDED) for answer in answers)


def _answer(
    line: Sequence[str], limit: float, text: str | None, environment: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    """Return what one of Slurm's commands answers, whatever its exit code."""
    try:
        return subprocess.run(
            line,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            env={**_environment(), **(environment or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
    except FileNotFoundError:
        raise LauncherError(
            f"{line[0]} was not found: this is not a host of a Slurm cluster.",
            cure="Log in to one, load its module, or choose --launcher mpirun.",
        ) from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(
            f"Slurm did not answer `{line[0]}` within {limit:.0f} s.",
            cure="Check that slurmctld is up: `scontrol ping`.",
        ) from None


def _refusal(line: Sequence[str], done: subprocess.CompletedProcess[str]) -> LauncherError:
    """Return the error of a command that failed."""
    said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    cure = next((cure for words, cure in _CURES.items() if words in said.lower()), None)
    kind = NoAnswer if any(words in said.lower() for words in _UNHEARD) else LauncherError
    return kind(f"`{line[0]}` failed: {said}", cure=cure)


def _environment() -> dict[str, str]:
    """Return our environment without what would change the answers, or be inherited by a new job from the
    current one.
    """
    # sbatch's own variables win over the script; kept are those that only say who pays, and where.
    kept = (
        "SLURM_CONF",
        "SLURM_CLUSTERS",
        "SBATCH_ACCOUNT",
        "SBATCH_PARTITION",
        "SBATCH_QOS",
        "SBATCH_RESERVATION",
    )
    # sbatch hands our environment to the job; the URL of the store may hold a password.
    dropped = ("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "CINGULUM_STORE")
    mine = {k: v for k, v in os.environ.items() if k in kept or not k.startswith(dropped)}
    return mine
