"""Render a job and a site to the script that Slurm runs: a pure function.

What is the same under every scheduler is in jobs/schedulers/script.py. Options stand in `#SBATCH` lines,
whose values are plain or were made so.
"""

from __future__ import annotations

import re
from pathlib import Path

from jobs.schedulers import script
from jobs.schedulers.script import SchedulerLines, plain_name
from jobs.schedulers.slurm import site_keys, site_options
from jobs.schedulers.slurm.site_keys import SlurmSite
from jobs.sites import Site
from jobs.spec import GRACE_S, JobSpec
from trainer.errors import JobError

_TOKEN = re.compile(r"[0-9a-f]{16}")
# Slurm's own limit of a script (max_script_size), bytes.
_LONGEST_SCRIPT = 4 * 1024 * 1024
# Slurm reads a #SBATCH line into a buffer of 8192 bytes.
_LONGEST_PATH = 4000


def batch_script(spec: JobSpec, site: Site, folder: Path, token: str) -> str:
    """Return the text of `job.sbatch`.

    Args:
        spec: what to run.
        site: where.
        folder: the job's private folder, seen by all hosts: output and failures go there.
        token: names the submission: 16 hex digits, found again in Slurm's comment of the job.

    Raises:
        JobError: the site cannot run such a job, or a value can be given to no Slurm or no program.
    """
    own = site_keys.of(site)
    site_options.check(own)
    own = own.of(spec.kind)
    is_array = len(spec.tasks) > 1
    lines = SchedulerLines(
        directives=[f"#SBATCH {option}" for option in options(spec, own, folder, token)],
        label='"${SLURM_ARRAY_JOB_ID}_$task"' if is_array else '"$SLURM_JOB_ID"',
        task="${SLURM_ARRAY_TASK_ID:-0}",
        told_by=" (--signal=B:USR2)",
        by_mpirun=own.launcher == "mpirun",
    )
    text = script.render(spec, own, folder, lines, _supervised(spec, own, folder))
    if len(text.encode()) > _LONGEST_SCRIPT:
        raise JobError(
            f"Job {plain_name(spec.name)}: its script is larger than the 4 MiB that Slurm takes.",
            cure="Put long lists into a file, or submit fewer tasks at once.",
        )
    return text


def options(spec: JobSpec, site: SlurmSite, folder: Path, token: str) -> list[str]:
    """Return options of sbatch for `#SBATCH` lines, quoted as Slurm reads them.

    Raises:
        JobError: the folder cannot be written in such a line, or the token is none.
    """
    if not _TOKEN.fullmatch(token):
        raise JobError(f"{token!r} is not the token of a submission.", cure="It has 16 hex digits.")
    resources = spec.resources
    arguments = [f"--job-name={plain_name(spec.name)}", f"--comment=cingulum:{token}"]
    for key in ("partition", "account", "qos"):
        if (value := getattr(site, key)) is not None:
            arguments.append(f"--{key}={value}")
    arguments += [
        f"--nodes={resources.nodes}",
        f"--ntasks-per-node={resources.ranks_per_node}",
        f"--cpus-per-task={resources.cpus_per_rank}",
    ]
    if resources.gpus_per_node:
        arguments.append(_gpus(spec, site))
    if resources.memory_mib is not None:
        arguments.append(f"--mem={resources.memory_mib}M")
    grace_s = spec.grace_s or site.grace_s or GRACE_S
    if (minutes := resources.minutes or site.minutes) is not None:
        arguments.append(f"--time={minutes}")
        # Told to save as soon as it has started, a short job would be started again for ever.
        grace_s = min(grace_s, minutes * 60 // 4)
    if spec.is_array:
        some = f"%{spec.at_once}" if spec.at_once else ""
        arguments.append(f"--array=0-{len(spec.tasks) - 1}{some}")
    log = _slurm_path(folder) + ("/out-%a.log" if spec.is_array else "/out.log")
    arguments += [
        f'--output="{log}"' if _needs_quotes(log) else f"--output={log}",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR2@{grace_s}",
    ]
    return _with_site(arguments, site)


def _supervised(spec: JobSpec, site: SlurmSite, folder: Path) -> list[str]:
    """Return the options of supervisor/main.py that are the same for all tasks."""
    resources, runs = spec.resources, spec.run_folders
    container = script.in_container(spec, site, folder)
    arguments = [f"--requeues={spec.requeues}", f"--ranks-per-node={resources.ranks_per_node}"]
    if spec.shrink:
        arguments.append(f"--least-nodes={resources.least_nodes or resources.nodes}")
    if runs and (resources.minutes or site.minutes) is not None:
        arguments.append("--limited")
    if len(runs) == 1:
        arguments.append(f"--run={runs[0]}")
    if container:
        arguments.append(f"--contained={len(container)}")
    if not spec.parallel:
        return arguments
    arguments.append(f"--launcher={site.launcher}")
    if site.launcher == "srun":
        arguments += [f"--mpi={site.mpi}", *(f"--srun-option={option}" for option in site.srun_options)]
    elif site.mpirun:
        arguments.append(f"--mpirun={site.mpirun}")
    if spec.outlives:
        arguments.append("--outlives")
    return arguments


def _with_site(arguments: list[str], site: Site) -> list[str]:
    """Return all options; of two --gres Slurm would take the last only, so they become one."""
    gpus = next((option for option in arguments if option.startswith("--gres=")), None)
    others = [option for option in site.options if not (gpus and option.startswith("--gres="))]
    more = [option.removeprefix("--gres=") for option in site.options if option not in others]
    return [",".join([option, *more]) if option is gpus else option for option in arguments] + others


def _gpus(spec: JobSpec, site: SlurmSite) -> str:
    count = spec.resources.gpus_per_node
    kind = f"{site.gpu_type}:" if site.gpu_type else ""
    if site.gpu_request == "gres":
        return f"--gres=gpu:{kind}{count}"
    if site.gpu_request == "gpus-per-task" and spec.parallel:
        return f"--gpus-per-task={kind}1"
    return f"--gpus-per-node={kind}{count}"


def _slurm_path(folder: Path) -> str:
    """Return `folder` as Slurm's pattern of a file name, to be put in double quotes."""
    text = str(folder)
    if not text.isprintable() or "\\" in text or len(text.encode()) > _LONGEST_PATH or text[:1] != "/":
        raise JobError(
            f"{text!r}: Slurm cannot write to a path with a backslash or a control character, "
            "nor to one that is relative or very long.",
            cure="Set CINGULUM_HOME to a plain absolute path.",
        )
    return text.replace("%", "%%").replace('"', '\\"')


def _needs_quotes(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_./%+@:,-]+", text) is None
