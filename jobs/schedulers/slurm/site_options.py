"""Which further options of sbatch and srun may stand in a site's profile."""

from __future__ import annotations

from jobs.schedulers.slurm.site_keys import SlurmSite
from trainer.errors import JobError

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


def check(site: SlurmSite) -> None:
    """Refuse options of a profile that would compete with what a script, a job or another key says.

    All kinds' are looked at, whichever kind of job it is for.

    Raises:
        JobError: names the first one.
    """
    of_kinds = [(f"kinds.{name}.options", kind.options, _OF_SBATCH) for name, kind in site.kinds.items()]
    for key, options, reserved in (
        ("options", site.options, _OF_SBATCH),
        ("srun_options", site.srun_options, _OF_SRUN),
        *of_kinds,
    ):
        for name in (option[2:].partition("=")[0] for option in options):
            # Slurm takes the beginning of a name for the whole.
            whole = next((one for one in (name, *reserved) if one in reserved and one.startswith(name)), None)
            if whole is not None:
                meant = f"--{name}" if whole == name else f"--{name} (--{whole})"
                raise JobError(
                    f"Site {site.name!r}: {key}: {meant} {reserved[whole]}.",
                    cure="Take it out of the site's profile.",
                )
