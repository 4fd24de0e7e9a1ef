"""Jobs under Slurm: sbatch, squeue, sacct, scancel, scontrol."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.launchers import slurm_output
from jobs.launchers.base import ENDED, WAITING, Launch, NoAnswer, TaskState
from jobs.sites import Site
from jobs.spec import JobSpec
from trainer.errors import JobError, LauncherError

SCRIPT = "job.sbatch"
# slurmctld may be busy for seconds; Slurm's own clients give up after some ten.
ASK_S, SUBMIT_S = 30.0, 60.0
# How far back the accounting is searched for a submission whose answer was lost.
SEARCH_DAYS = 14

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
}
# What Slurm's commands say when slurmctld took what they sent and did not answer in time.
_UNHEARD = ("timed out", "zero bytes were transmitted", "connection reset")
# Times as seconds since 1970, and lists of tasks whole: by default Slurm cuts them to 64 characters.
_EXACT = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


class Slurm:
    """One cluster, reached through Slurm's own commands."""

    name = "slurm"

    @property
    def place(self) -> str:
        """The cluster's name, within which job ids are unique; "" where the configuration
        does not give one.
        """
        return os.environ.get("SLURM_CLUSTERS") or _cluster_name()

    def plan(self, spec: JobSpec, site: Site, folder: Path, token: str) -> Launch:
        """Return the batch script, and the sbatch that submits it."""
        from jobs import supervised
        from jobs.rendering import batch_script

        return Launch(
            files={SCRIPT: batch_script(spec, site, folder, token), **supervised.sources()},
            command=(
                "sbatch",
                "--parsable",
                f"--comment={slurm_output.comment_of(token)}",
                # Else a job whose predecessor failed waits for ever.
                "--kill-on-invalid-dep=yes",
                str(folder / SCRIPT),
            ),
        )

    def preflight(self, spec: JobSpec, site: Site) -> str:
        """Ask Slurm whether it would accept such a job, and check that its image exists; return its answer:
        when and where the job would start as the queue is now.

        Raises:
            JobError: the image is not; or it may go to one of several clusters, or to another than this.
            LauncherError: Slurm would not, there is no Slurm here, or it does not answer.
        """
        from jobs import image_checks
        from jobs.rendering import batch_script

        _check_clusters(site.of(spec.kind))
        if spec.image is not None and site.container == "apptainer":
            image_checks.check_image(spec.image)
        script = batch_script(dataclasses.replace(spec, after=()), site, Path(spec.folder), "0" * 16)
        answer = " ".join(_run(["sbatch", "--test-only"], SUBMIT_S, text=script).stderr.split())
        if site.launcher != "srun":
            return answer
        # Slurm before 22.05 writes the list to standard error.
        kinds = _run(["srun", "--mpi=list"], ASK_S)
        if site.mpi.split("_")[0] not in kinds.stdout + kinds.stderr:
            raise LauncherError(
                f"Site {site.name!r} starts ranks with `srun --mpi={site.mpi}`, unknown to this Slurm.",
                cure="See `srun --mpi=list`; or set `launcher: mpirun` in the site profile.",
            )
        return answer

    def start(self, launch: Launch, folder: Path, after: Sequence[str]) -> str:
        """Submit; returns Slurm's job id.

        Raises:
            LauncherError: Slurm refused; NoAnswer: it did not answer, and the job may be there (see `find`).
        """
        for name, text in launch.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch(mode=0o600)
            (folder / name).write_text(text, encoding="utf-8")
        answer = _call(with_dependency(launch.command, after), SUBMIT_S, environment=launch.environment)
        external = answer.strip().partition(";")[0]  # with several clusters: id;cluster
        if not external.isdigit():
            raise LauncherError(f"sbatch answered {answer.strip()!r} instead of a job id.")
        return external

    def find(self, token: str) -> str | None:
        """Return the job that carries this token, searched in the queue and then in the accounting."""
        found = slurm_output.with_comment(_squeue(), token)
        if found is not None:
            return found
        since = time.strftime("%Y-%m-%d", time.localtime(time.time() - SEARCH_DAYS * 86400))
        answer = _sacct(["--starttime", since, "--format=JobID,SubmitLine"])
        return slurm_output.submitted_with(answer, token)

    def states(self, externals: Sequence[str]) -> dict[str, list[TaskState]]:
        """Return states from squeue, which also lists jobs that ended minutes ago, and from sacct, where
        there is accounting.
        """
        if not externals:
            return {}
        wanted = set(externals)
        queue = _squeue()
        jobs = {job: tasks for job, tasks in slurm_output.queued(queue).items() if job in wanted}
        # Slurm forgets ended tasks of an array one by one, also while others run.
        ask = sorted(wanted - (set(jobs) - slurm_output.arrays(queue)))
        for first in range(0, len(ask), 500):
            chosen = ",".join(ask[first : first + 500])
            answer = _sacct(["--duplicates", f"--format={slurm_output.ACCOUNT_FIELDS}", "--jobs", chosen])
            for job, tasks in slurm_output.accounted(answer).items():
                # What waits or runs is in the queue: else the accounting has missed its end.
                ended = {task: state for task, state in tasks.items() if state.state in ENDED}
                if job in wanted and ended:
                    jobs[job] = {**ended, **jobs.get(job, {})}
        return {job: [tasks[number] for number in sorted(tasks)] for job, tasks in jobs.items()}

    def cancel(self, external: str, task: int | None = None) -> None:
        """Cancel with scancel; a job that has ended is left unchanged."""
        _call(["scancel", _name(external, task)], ASK_S)

    def requeue(self, external: str, task: int | None = None) -> None:
        """Ask a running job to save and requeue itself; put one that has ended into the queue again.

        Of an array both, but for the tasks that have completed.

        Raises:
            JobError: it is in the queue already.
            LauncherError: Slurm does not know it any more, or refuses.
        """
        found = [state for state in self.states([external]).get(external, []) if task in (None, state.task)]
        running = [state for state in found if state.state not in (*WAITING, *ENDED)]
        for state in running:
            number = state.task if task is not None or len(found) > 1 else None
            _call(["scancel", "--batch", "--signal=USR2", _name(external, number)], ASK_S)
        if found and all(state.state in WAITING for state in found):
            raise JobError(f"Job {_name(external, task)} is in the queue already ({found[0].reason}).")
        if task is not None or len(found) <= 1:
            if not running:
                _call(["scontrol", "requeue", _name(external, task)], ASK_S)
            return
        for state in found:
            if state.state in ENDED and state.state != "COMPLETED":
                _call(["scontrol", "requeue", _name(external, state.task)], ASK_S)

    def hold(self, external: str, task: int | None = None) -> None:
        """Keep what waits in the queue; what runs goes on."""
        _call(["scontrol", "uhold", _name(external, task)], ASK_S)

    def release(self, external: str, task: int | None = None) -> None:
        """Let what `hold` kept start again."""
        _call(["scontrol", "release", _name(external, task)], ASK_S)

    def nice(self, external: str, task: int | None, by: int) -> None:
        """Lower the priority of what waits by so much; 0: as it was."""
        _call(["scontrol", "update", f"JobId={_name(external, task)}", f"Nice={by}"], ASK_S)

    def logs(self, folder: Path, external: str, task: int) -> Path:
        """Return Slurm's output file, to which every start appends."""
        return folder / (f"out-{task}.log" if _is_array(folder) else "out.log")


def with_dependency(command: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return the sbatch command for a job that starts when all of `after` (Slurm ids)
    have completed with 0.
    """
    if not after:
        return list(command)
    return [*command[:-1], f"--dependency=afterok:{':'.join(after)}", command[-1]]


def _cluster_name() -> str:
    """Return ClusterName of slurm.conf, read without asking slurmctld, which may be down."""
    for path in (os.environ.get("SLURM_CONF"), "/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"):
        try:
            text = Path(path or "").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found = re.search(r"^\s*ClusterName\s*=\s*(\S+)", text, re.M | re.I)
        return found[1] if found else ""
    return ""


def _check_clusters(site: Site) -> None:
    """Check for a single cluster: ids and states are valid within one cluster only."""
    given = os.environ.get("SLURM_CLUSTERS", "")
    named = [option for option in site.options if "--clusters".startswith(option.split("=")[0])]
    if "," in given or given == "all" or named:
        raise JobError(
            f"A job is followed on one cluster; {' '.join(named) or f'SLURM_CLUSTERS={given}'} names others.",
            cure="Set SLURM_CLUSTERS to one cluster, for this command and those that follow the job.",
        )


def _is_array(folder: Path) -> bool:
    try:
        return JobSpec.from_json((folder / "spec.json").read_text(encoding="utf-8")).is_array
    except OSError:
        return False


def _name(external: str, task: int | None) -> str:
    return external if task is None else f"{external}_{task}"


def _squeue() -> str:
    """Return all jobs of this user that Slurm remembers."""
    mine = ["--states=all", f"--user={os.getuid()}"]
    line = ["squeue", "--noheader", *mine, f"--Format={slurm_output.QUEUE_FORMAT}"]
    return _call(line, ASK_S, environment=_EXACT)


def _sacct(options: Sequence[str]) -> str:
    """Return the accounting's records; nothing where there is no accounting."""
    if shutil.which("sacct") is None:
        return ""
    try:
        # Alone of Slurm's commands sacct does not heed the variable.
        where = [f"--clusters={name}" for name in [os.environ.get("SLURM_CLUSTERS")] if name]
        line = ["sacct", "--allocations", "--noheader", "--parsable2", *where, *options]
        return _call(line, ASK_S, environment=_EXACT)
    except LauncherError as error:
        said = error.message.lower()
        if "accounting storage is disabled" in said or "invalid field" in said:
            return ""
        raise


def _call(
    line: Sequence[str],
    limit: float,
    *,
    text: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return the standard output of one of Slurm's commands; raises what `_run` does."""
    return _run(line, limit, text=text, environment=environment).stdout


def _run(
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
    try:
        done = subprocess.run(
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
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        cure = next((cure for words, cure in _CURES.items() if words in said.lower()), None)
        kind = NoAnswer if any(words in said.lower() for words in _UNHEARD) else LauncherError
        raise kind(f"`{line[0]}` failed: {said}", cure=cure)
    return done


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
