"""Jobs under Slurm: sbatch, squeue, sacct, scancel, scontrol."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from jobs.schedulers.base import ENDED, SUPERVISOR, WAITING, Allocation, Launch, TaskState
from jobs.schedulers.cluster_view import Picture
from jobs.schedulers.slurm import output, queue, site_keys
from jobs.schedulers.slurm.allocation import allocation
from jobs.schedulers.slurm.commands import ASK_S, SUBMIT_S, call, order, run
from jobs.schedulers.slurm.site_keys import SlurmSite
from jobs.sites import Site
from jobs.spec import JobSpec
from trainer.errors import JobError, LauncherError


def supervisor_sources() -> dict[str, str]:
    """Return the supervisor's files, texts by path below the job's folder; `python3 FOLDER` runs them.

    So a job is looked after by what it was submitted with, whatever is installed meanwhile, and where the
    program itself lies in an image.
    """
    package, texts = resources.files("jobs"), {}
    for folder in ("supervisor", "schedulers/slurm/supervisor"):
        for part in (package / folder).iterdir():
            if part.name.endswith(".py"):
                texts[f"jobs/{folder}/{part.name}"] = part.read_text(encoding="utf-8")
    for folder in ("", "schedulers/", "schedulers/slurm/"):
        path = f"{folder}__init__.py"
        texts[f"jobs/{path}"] = (package / path).read_text(encoding="utf-8")
    texts["__main__.py"] = texts.pop("jobs/schedulers/slurm/supervisor/__main__.py")
    return {f"{SUPERVISOR}/{path}": text for path, text in sorted(texts.items())}


SCRIPT = "job.sbatch"
# How far back the accounting is searched for a submission whose answer was lost.
SEARCH_DAYS = 14

# Times as seconds since 1970, and lists of tasks whole: by default Slurm cuts them to 64 characters.
_EXACT = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


class Slurm:
    """One cluster, reached through Slurm's own commands."""

    name = "slurm"
    variables = ("SLURM_CONF",)
    place_variable = "SLURM_CLUSTERS"
    site: type[Site] = SlurmSite

    def is_here(self) -> bool:
        """Return whether sbatch is on this host."""
        return shutil.which("sbatch") is not None

    def look(self) -> Picture | None:
        """Ask Slurm what its hosts and its queue do; None: this is no host of a cluster."""
        return queue.look() if queue.is_here() else None

    def allocation(self, environment: Mapping[str, str]) -> Allocation | None:
        """Return the hosts that Slurm has given to a process with this environment; None: none."""
        return allocation(environment)

    def after(self, command: Sequence[str], externals: Sequence[str]) -> list[str]:
        """Return the sbatch command for a job that starts when all of these Slurm ids have ended with 0."""
        if not externals:
            return list(command)
        return [*command[:-1], f"--dependency=afterok:{':'.join(externals)}", command[-1]]

    @property
    def place(self) -> str:
        """The cluster's name, within which job ids are unique; "" where the configuration
        does not give one.
        """
        return os.environ.get("SLURM_CLUSTERS") or _cluster_name()

    def plan(self, spec: JobSpec, site: Site, folder: Path, token: str) -> Launch:
        """Return the batch script, and the sbatch that submits it."""
        from jobs.schedulers.slurm.script import batch_script

        return Launch(
            files={SCRIPT: batch_script(spec, site, folder, token), **supervisor_sources()},
            command=(
                "sbatch",
                "--parsable",
                f"--comment={output.comment_of(token)}",
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
        from jobs import containers
        from jobs.schedulers.slurm.script import batch_script

        _check_clusters(site.of(spec.kind))
        if spec.image is not None and site.container == "apptainer":
            containers.check_image(spec.image)
        script = batch_script(dataclasses.replace(spec, after=()), site, Path(spec.folder), "0" * 16)
        answer = " ".join(run(["sbatch", "--test-only"], SUBMIT_S, text=script).stderr.split())
        own = site_keys.of(site)
        if own.launcher != "srun":
            return answer
        # Slurm before 22.05 writes the list to standard error.
        kinds = run(["srun", "--mpi=list"], ASK_S)
        if own.mpi.split("_")[0] not in kinds.stdout + kinds.stderr:
            raise LauncherError(
                f"Site {site.name!r} starts ranks with `srun --mpi={own.mpi}`, unknown to this Slurm.",
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
        answer = call(self.after(launch.command, after), SUBMIT_S, environment=launch.environment)
        external = answer.strip().partition(";")[0]  # with several clusters: id;cluster
        if not external.isdigit():
            raise LauncherError(f"sbatch answered {answer.strip()!r} instead of a job id.")
        return external

    def find(self, token: str) -> str | None:
        """Return the job that carries this token, searched in the queue and then in the accounting."""
        found = output.with_comment(_squeue(), token)
        if found is not None:
            return found
        since = time.strftime("%Y-%m-%d", time.localtime(time.time() - SEARCH_DAYS * 86400))
        answer = _sacct(["--starttime", since, "--format=JobID,SubmitLine"])
        return output.submitted_with(answer, token)

    def states(self, externals: Sequence[str]) -> dict[str, list[TaskState]]:
        """Return states from squeue, which also lists jobs that ended minutes ago, and from sacct, where
        there is accounting.
        """
        if not externals:
            return {}
        ids = set(externals)
        queued = _squeue()
        jobs = {job: tasks for job, tasks in output.queued(queued).items() if job in ids}
        # Slurm forgets ended tasks of an array one by one, also while others run.
        ask = sorted(ids - (set(jobs) - output.arrays(queued)))
        for first in range(0, len(ask), 500):
            chosen = ",".join(ask[first : first + 500])
            answer = _sacct(["--duplicates", f"--format={output.ACCOUNT_FIELDS}", "--jobs", chosen])
            for job, tasks in output.accounted(answer).items():
                # What waits or runs is in the queue: else the accounting has missed its end.
                ended = {task: state for task, state in tasks.items() if state.state in ENDED}
                if job in ids and ended:
                    jobs[job] = {**ended, **jobs.get(job, {})}
        return {job: [tasks[number] for number in sorted(tasks)] for job, tasks in jobs.items()}

    def cancel(self, external: str, task: int | None = None) -> None:
        """Cancel with scancel; a job that has ended is left unchanged."""
        call(["scancel", _name(external, task)], ASK_S)

    def requeue(self, external: str, task: int | None = None) -> None:
        """Ask a running job to save and requeue itself; put one that has ended into the queue again.

        Of an array both, but for the tasks that have completed.

        Raises:
            JobError: it is in the queue already.
            LauncherError: Slurm does not know it any more, or refuses.
        """
        states = [state for state in self.states([external]).get(external, []) if task in (None, state.task)]
        running = [state for state in states if state.state not in (*WAITING, *ENDED)]
        for state in running:
            number = state.task if task is not None or len(states) > 1 else None
            call(["scancel", "--batch", "--signal=USR2", _name(external, number)], ASK_S)
        if states and all(state.state in WAITING for state in states):
            raise JobError(f"Job {_name(external, task)} is in the queue already ({states[0].reason}).")
        if task is not None or len(states) <= 1:
            if not running:
                call(["scontrol", "requeue", _name(external, task)], ASK_S)
            return
        for state in states:
            if state.state in ENDED and state.state != "COMPLETED":
                call(["scontrol", "requeue", _name(external, state.task)], ASK_S)

    def hold(self, external: str, task: int | None = None) -> None:
        """Keep what waits in the queue; what runs goes on."""
        order(["scontrol", "uhold", _name(external, task)], ASK_S)

    def release(self, external: str, task: int | None = None) -> None:
        """Let what `hold` kept start again."""
        order(["scontrol", "release", _name(external, task)], ASK_S)

    def is_held(self, external: str, task: int | None = None) -> bool:
        """Return whether some of what waits is kept: the reason that Slurm tells stays after `release` until
        it looks at its queue again, but not the priority, 0.
        """
        line = ["squeue", "--noheader", "--states=PENDING", "--Format=PriorityLong:24"]
        return "0" in call([*line, "--jobs", _name(external, task)], ASK_S).split()

    def nice(self, external: str, task: int | None, by: int) -> None:
        """Lower the priority of what waits by so much; 0: as it was."""
        order(["scontrol", "update", f"JobId={_name(external, task)}", f"Nice={by}"], ASK_S)

    def logs(self, folder: Path, external: str, task: int) -> Path:
        """Return Slurm's output file, to which every start appends."""
        return folder / (f"out-{task}.log" if _is_array(folder) else "out.log")


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
    clusters = os.environ.get("SLURM_CLUSTERS", "")
    named = [option for option in site.options if "--clusters".startswith(option.split("=")[0])]
    if "," in clusters or clusters == "all" or named:
        raise JobError(
            "A job is followed on one cluster; "
            f"{' '.join(named) or f'SLURM_CLUSTERS={clusters}'} names others.",
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
    line = ["squeue", "--noheader", *mine, f"--Format={output.QUEUE_FORMAT}"]
    return call(line, ASK_S, environment=_EXACT)


def _sacct(options: Sequence[str]) -> str:
    """Return the accounting's records; nothing where there is no accounting."""
    if shutil.which("sacct") is None:
        return ""
    try:
        # Alone of Slurm's commands sacct does not heed the variable.
        where = [f"--clusters={name}" for name in [os.environ.get("SLURM_CLUSTERS")] if name]
        line = ["sacct", "--allocations", "--noheader", "--parsable2", *where, *options]
        return call(line, ASK_S, environment=_EXACT)
    except LauncherError as error:
        said = error.message.lower()
        if "accounting storage is disabled" in said or "invalid field" in said:
            return ""
        raise
