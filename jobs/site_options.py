"""Options of sbatch and srun that a site's profile may add, and those that it may not."""

from __future__ import annotations

import re
from collections.abc import Sequence

_OPTION = re.compile(r"--[a-z][a-z-]*(=[A-Za-z0-9_.,:;+@/%&|*!<>()\[\]{}=~^-]+)?")

_SCRIPT = "is set by the script itself"
_RANKS = "conflicts with the nodes, ranks, cores and GPUs that a job asks for"
_JOB = "belongs to the job: see the keys of the profile, and `options`"
_OUTPUT = "would change how ranks are started or what their output looks like, which the script relies on"


def _all(names: str, why: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), why)


# A second one would win: the job would not be found, not be started again, or have other ranks than it says.
_OF_SBATCH = {
    **_all(
        "array chdir comment cpus-per-task dependency error gpus gpus-per-node gpus-per-task help", _SCRIPT
    ),
    **_all("job-name kill-on-invalid-dep mem nodes no-requeue ntasks ntasks-per-node open-mode", _SCRIPT),
    **_all("output parsable requeue signal test-only time version wait wrap", _SCRIPT),
    **{key: f"is the key `{key}`" for key in ("partition", "account", "qos")},
    **_all(
        "cpus-per-gpu gpus-per-socket ntasks-per-core ntasks-per-gpu ntasks-per-socket overcommit", _RANKS
    ),
    **_all("mem-per-cpu mem-per-gpu", "conflicts with the key `memory`, which is per host"),
    "time-min": "conflicts with the key `minutes`",
}
_OF_SRUN = {
    **_all("mpi ntasks kill-on-bad-exit wait no-kill", _SCRIPT),
    **_all("chdir error exact export help immediate input jobid label multi-prog nodefile nodelist", _OUTPUT),
    **_all("open-mode output overlap preserve-env pty quiet test-only time unbuffered version", _OUTPUT),
    **_all("account comment dependency job-name partition qos reservation signal", _JOB),
    **_all("cpus-per-gpu cpus-per-task exclusive gpus gpus-per-node gpus-per-socket gpus-per-task", _RANKS),
    **_all("gres mem mem-per-cpu mem-per-gpu nodes ntasks-per-core ntasks-per-gpu ntasks-per-node", _RANKS),
    **_all("ntasks-per-socket overcommit relative", _RANKS),
}


def refuse_options(options: Sequence[str], *, of_srun: bool = False) -> None:
    """Check that these options may stand in a script beside our own.

    Raises:
        ValueError: one is not `--name` or `--name=value`, or competes with what the script or a key says.
    """
    known = _OF_SRUN if of_srun else _OF_SBATCH
    for option in options:
        if not _OPTION.fullmatch(option):
            raise ValueError(f"{option!r} is not --name or --name=value without blanks and quotes")
        name = option[2:].split("=")[0]
        # Slurm takes the beginning of a name for the whole.
        whole = next((one for one in (name, *known) if one in known and one.startswith(name)), None)
        if whole is not None:
            meant = f"--{name}" if whole == name else f"--{name} (--{whole})"
            raise ValueError(f"{meant} {known[whole]}")
